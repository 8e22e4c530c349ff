"""Answers for judges that evaluate them: mathematics passes, and nothing that could run does."""

import ast
import builtins

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sps.tasks.gym import screen

PLAIN = [
    "42", "-3.5e-4", ".5", "0x1F", "-0b101", "1 + 2*(3 - 4)/5", "x**2/2 + C", "3*x*y - z1",
    "sin(x)*exp(-2*x) + log(x + 1)/sqrt (2)", "pi/2", "_ Q _\n_ _ Q", "[[0, 1], [1, 0]]",
    '["-1.5", "2"]', "['a', 'b']", "0 1 2\n3 4 5", "(1, 2)", "a & ~b | c", "7 % 3", "2^3", "",
]  # fmt: skip
REFUSED = [
    "__import__('os')", "__import__", "a.b", "1..real", "1 .real", "().x", "x.__class__", "open(1)",
    "open", "eval", "oracle_answer", "entry['answer']", "self", "lambda: 1", "f(x)", "S(1)",
    "S (1)", "x1(2)", "sin1(2)", "[i for i in x]", "import os", "print 1", "sin('x')", "'%c' % 40",
    "'a' * 9", "f'{x}'", "'\\x28'", "a\\\nb", "x = 1", "x := 1", "{1: 2}", "a; b", "@a", "a ! b",
    "\uff4fpen", "\uff53in(1)", "\xb2", "\u0663", "\x00", "\ud800", "a_b", "__", "_a", "_1", "`a`",
    "$x$", "a?b", "#",
    "1" * 10_001,
]  # fmt: skip


@pytest.mark.parametrize("answer", PLAIN)
def test_numbers_and_mathematics_are_plain(answer):
    assert screen.plain(answer)


@pytest.mark.parametrize("answer", REFUSED, ids=lambda a: ascii(a)[:20])
def test_anything_that_could_run_is_refused(answer):
    assert not screen.plain(answer)


# Pieces that a hostile answer is made of, and those that get through, in any order.
PIECES = st.sampled_from(
    [
        *"()[]{},.:;=+-*/%^&|~<>!@#'\"\\_ \n\txQe019", "sin", "sqrt", "exp", "1.", "0x1", "1e5",
        "__", "os", "eval", "open", "lambda", "for", "in", "if", "f'", "x1", "pi", "True", "\uff4f",
    ]
)  # fmt: skip
NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.Call, ast.Subscript, ast.operator, ast.unaryop, ast.cmpop, ast.Starred,
)  # fmt: skip
NAMES = screen.FUNCTIONS | {"pi", "oo"}


@given(st.lists(PIECES, max_size=12).map("".join), st.data())
@settings(max_examples=400, deadline=None)
def test_what_passes_has_no_names_calls_or_attributes_to_run(answer, data):
    """By Python's own parser, which shares nothing with the screen; for parts of an answer too."""
    if not screen.plain(answer):
        return
    start = data.draw(st.integers(0, len(answer)))
    stop = data.draw(st.integers(start, len(answer)))
    for text in (answer, answer[start:stop]):
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            assert isinstance(node, NODES), ast.dump(node)
            if isinstance(node, ast.Name):
                # A part of a name may be a shorter one; none that Python knows does harm.
                harmless = {"abs", "in", "or", "id"}
                assert not hasattr(builtins, node.id) or node.id in NAMES | harmless | {"_"}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                whole = any(name.endswith(node.func.id) for name in screen.FUNCTIONS)
                assert whole, ast.dump(node)
