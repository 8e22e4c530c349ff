r"""Which answers may be handed to a judge that evaluates them: numbers and mathematics alone.

Some judges read an answer with Python's `eval` or sympy's `parse_expr`, which run whatever they are
given. Here an answer is taken apart into tokens, and every one must be on the list: numbers,
operators, brackets, single letters, the names of mathematical functions. There is no way to write
an attribute, a keyword, an escape, a longer name or a call of anything but those functions; strings
are for lists of them, never beside round brackets, so that none can be put together and evaluated
once more. The rule holds for every part of an answer too, as some judges evaluate only a part.
"""

from __future__ import annotations

import re

LONGEST = 10_000  # characters
FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc",
    "sinh", "cosh", "tanh", "coth", "sech", "csch", "asinh", "acosh", "atanh", "exp", "log", "ln",
    "sqrt", "cbrt", "abs", "Abs", "sign", "floor", "ceiling", "factorial", "erf", "erfi", "gcd",
    "lcm",
})  # fmt: skip
_VALUES = frozenset({"pi", "oo", "True", "False", "None"})
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z]+)(?P<digits>[0-9]*)(?P<call>\s*\()?"
    r"|0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+"
    r"|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|_(?![_A-Za-z0-9])|[-+*/%^&|~<>,()\[\]'\"\s]",
    re.ASCII,
)


def plain(answer: str) -> bool:
    """Whether an answer is nothing but numbers and mathematics."""
    if len(answer) > LONGEST:
        return False
    strings = "'" in answer or '"' in answer
    if strings and any(mark in answer for mark in "(%*"):
        return False
    at = 0
    while at < len(answer):
        token = _TOKEN.match(answer, at)
        if not token or (token["word"] and not _known(token)):
            return False
        at = token.end()
    return True


def _known(token: re.Match[str]) -> bool:
    word = token["word"]
    if token["call"]:
        return word in FUNCTIONS and not token["digits"]
    return len(word) == 1 or (not token["digits"] and word in FUNCTIONS | _VALUES)
