"""Mathematics judged by Math-Verify, with guards where it is known to err.

The last box counts; without a box, what Math-Verify finds in the text. Nothing here loads torch:
the pool's workers import this module.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from sps.limit import TimeIsUp, time_limit
from sps.tasks import answers
from sps.tasks.numbers import exact
from sps.tasks.prompts import BOXED, Prompt, render
from sps.types import Problem, Verdict

# It warns that it has no time limit of its own: ours is outside of it.
logging.getLogger("math_verify").setLevel(logging.ERROR)
_LONGEST = 2000  # characters of an answer that are read as one
_DEEPEST = 16  # nested brackets; sympy needs seconds for 15 nested fractions, hours for 30
_TAIL = 6000  # characters at the end of a text without a box that are searched for an answer
_BITS = 200_000  # of a number that is still worked out
_NORMAL = {"basic_latex": True, "malformed_operators": True, "nits": True, "equations": False}
_LATEX = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(**_NORMAL, units=True, boxed="all"),
)
# For answers with words in the middle: the unit rule would cut off all that follows them.
_WHOLE = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(**_NORMAL, units=False, boxed="all"),
)
_PLAIN = ExprExtractionConfig()
# A per cent is an unevaluated product; the others may take long, or have no value.
_SLOW = (
    sympy.UnevaluatedExpr,
    sympy.Integral,
    sympy.Sum,
    sympy.Product,
    sympy.Limit,
    sympy.Derivative,
    sympy.core.function.AppliedUndef,
    sympy.zoo,
    sympy.nan,
    sympy.oo,
)
_MATH = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed|\\fbox")


@dataclass(frozen=True)
class Reading:
    """One way to understand an answer."""

    text: str  # as it was written
    values: tuple[Any, ...]  # as Math-Verify gives it: an expression, and the string it came from

    @property
    def expression(self) -> Any:
        """The mathematical object, or None when it is words to Math-Verify."""
        return next((v for v in self.values if not isinstance(v, str)), None)


class Mathematics:
    """Questions with one mathematical answer each."""

    name = "math"

    def __init__(
        self,
        splits: dict[str, list[Problem]],
        template: str = "qwen_boxed",
        instruction: str = BOXED,
        cut: str = "zero",
        seconds: float = 6.0,
    ):
        self.splits, self.template, self.instruction = splits, template, instruction
        self.cut, self.seconds = cut, seconds

    def problems(self, split: str) -> list[Problem]:
        """The problems it was given."""
        return self.splits[split]

    def prompt(self, problem: Problem) -> Prompt:
        """The question in the chosen template."""
        return render(self.template, problem.question, self.instruction, problem.meta)

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """See `judge`; in this process, so the time limit is a soft one. Use the pool."""
        return judge_within(self.seconds, problem.answer, text, finished, self.cut)


def judge_within(seconds: float, gold: str, text: str, finished: bool, cut: str) -> Verdict:
    """`judge` with a time limit, where signals work (see limit.py)."""
    try:
        with time_limit(seconds):
            return judge(gold, text, finished, cut)
    except TimeIsUp:
        return Verdict("timeout", 0.0, f"no verdict within {seconds:g} s")
    except Exception as error:
        return Verdict("crashed", 0.0, f"{type(error).__name__}: {error}"[:200])


def make_judge(cut: str = "zero") -> Callable[[Problem, str, bool], Verdict]:
    """The judge as the pool's workers build it. `cut` says what becomes of a completion that was
    cut off at the token limit: 'zero' or, if it holds a box already, 'judge'."""

    def judge_with(problem: Problem, text: str, finished: bool) -> Verdict:
        return judge(problem.answer, text, finished, cut)

    return judge_with


def judge(gold: str, text: str, finished: bool = True, cut: str = "zero") -> Verdict:
    """The verdict on one completion; may take as long as sympy pleases, so run it in the pool."""
    found = answers.last_boxes(text)
    if not finished and (cut == "zero" or not found):
        return Verdict("truncated", 0.0, "cut off at the token limit", found[-1] if found else "")
    stated = answers.stated_after_boxes(text) if found else ""
    if not found or stated:
        return _judge_text(gold, stated or text)
    return _judge_boxes(gold, tuple(found))


@lru_cache(maxsize=20_000)  # the samples of a question share a few answers
def _judge_boxes(gold: str, found: tuple[str, ...]) -> Verdict:
    last = found[-1]
    faults = _faults(last)
    if faults:
        return Verdict("unparsed", 0.0, faults, last[:200])
    if not last:
        return Verdict("unparsed", 0.0, "the box is empty")
    if _same_text(gold, last):
        return Verdict("correct", 1.0, "same text", last)
    known = _compare_numbers(gold, last)
    if known is not None:
        return known
    readings = [_read_box(last)]
    if len(found) > 1 and not _faults(together := ", ".join(found)):
        readings.append(_read_box(together))
    return _compare(gold, readings, last)


def _judge_text(gold: str, text: str) -> Verdict:
    tail = text[-_TAIL:].replace("\0", " ")
    if not tail.strip():
        return Verdict("unparsed", 0.0, "empty")
    faults = _faults(tail, limit=_TAIL)
    if faults:
        return Verdict("unparsed", 0.0, faults)
    if answers.is_bare(tail):
        bare = _judge_boxes(gold, (tail.strip(),))
        # A number alone may still be meant in another way: 1000,99 is a decimal or a pair.
        if bare.kind == "correct" or (bare.kind == "wrong" and not answers.is_number(tail)):
            return bare
    reading = _read_text(answers.tidy(tail))
    if not reading.values:
        return Verdict("unparsed", 0.0, "no answer found")
    return _compare(gold, [reading], reading.text)


def _faults(answer: str, limit: int = _LONGEST) -> str:
    """Why an answer is not even read: nothing honest looks like that, and it may take hours."""
    if len(answer) > limit:
        return "the answer is too long"
    if answers.nesting(answer) > _DEEPEST:
        return "brackets are nested too deep"
    if answer.count("\\frac") > 100 or answer.count("^") > 100:
        return "too many fractions or powers"
    if re.search(
        r"binom\s*\{?\s*\d{5,}|\\binom\s*\{[^{}]*\^", answer
    ):  # worked out while it is read
        return "a binomial coefficient too large to work out"
    return ""


def _compare(gold: str, readings: list[Reading], shown: str) -> Verdict:
    golds = read_gold(gold)
    readings = readings + [r for r in map(_less_percent, readings) if r and _above_one(golds)]
    for reading in readings:
        for want in golds:
            why_not = _differ(want, reading)
            if why_not is None:
                return Verdict("correct", 1.0, "equal", shown)
    want_expression = any(g.expression is not None for g in golds)
    if want_expression and all(r.expression is None for r in readings):
        return Verdict("unparsed", 0.0, "not a mathematical expression", shown)
    return Verdict("wrong", 0.0, "not equal", shown)


def _less_percent(got: Reading) -> Reading | None:
    """12.5% for a gold answer of 12.5: the question asked for per cent already."""
    bare = answers.without_percent(got.text)
    return None if bare is None else _read_box(bare)


def _above_one(golds: tuple[Reading, ...]) -> bool:
    """Not a share: 0.5% is not 0.5."""
    numbers = [g.expression for g in golds if isinstance(g.expression, sympy.Number)]
    return any(abs(float(number)) > 1 for number in numbers)


def _differ(gold: Reading, got: Reading) -> str | None:
    """None when they are the same answer, else why not."""
    plain = answers.words(gold.text)
    if plain and plain == answers.words(got.text):
        return None
    if _too_big(gold.expression) or _too_big(got.expression):
        same = gold.expression is not None and gold.expression == got.expression
        return None if same else "too large to work out, and not written the same way"
    if _clearly_different(gold.expression, got.expression):
        return "not equal"
    if not verify(list(gold.values), list(got.values), timeout_seconds=None):
        return "not equal"
    bases = answers.numeral(gold.text), answers.numeral(got.text)
    if None not in bases and bases[0] != bases[1]:
        return "another base, or other digits"
    units = answers.unit(gold.text), answers.unit(got.text)
    if None not in units and units[0] != units[1]:
        return f"the unit is {units[1]}, not {units[0]}"
    if _far_apart(gold.expression, got.expression):
        return "equal only after rounding"
    return None


def _clearly_different(a: Any, b: Any) -> bool:
    """Values far from each other at one point: no need to have sympy simplify the difference, which
    takes most of the time of a wrong answer. False where that is not easily told."""
    if (
        not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr))
        or a.has(*_SLOW)
        or b.has(*_SLOW)
    ):
        return False
    names = {str(symbol) for symbol in a.free_symbols}
    if names != {str(symbol) for symbol in b.free_symbols} or len(names) > 3:
        return False
    try:
        x, y = (_at_a_point(expression) for expression in (a, b))
        return abs(x - y) > 1e-3 * max(1.0, abs(x), abs(y))  # nan compares false
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False


def _at_a_point(expression: sympy.Expr) -> complex:
    """Its value where the n-th letter of the alphabet is about 1.3 + n / 7."""
    symbols = expression.free_symbols
    point = {s: sympy.Float(1.3 + (ord(str(s)[0]) % 32) / 7) for s in symbols}
    return complex(cast(Any, expression.evalf(15, subs=point)))


def _far_apart(a: Any, b: Any) -> bool:
    """Numbers that Math-Verify calls equal because it rounds to 6 places or chops what is tiny."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return False
    if a.free_symbols or b.free_symbols or a == b:
        return False
    try:
        x, y = (complex(cast(Any, number.doit().evalf(30))) for number in (a, b))
        size = max(abs(x), abs(y))
    except (TypeError, ValueError, OverflowError, AttributeError):
        return False
    # Above that, rounding to 6 places leaves digits enough.
    return 0 < size < 1e-3 and abs(x - y) > 1e-3 * size


def _too_big(expression: Any) -> bool:
    """A power or factorial that would take for ever or all memory to work out."""
    if not isinstance(expression, sympy.Basic):
        return False
    for part in sympy.preorder_traversal(expression):
        if isinstance(part, sympy.Pow) and _bits(part) > _BITS:
            return True
        if isinstance(part, sympy.factorial | sympy.binomial) and _size(part.args[0]) > 20_000:
            return True
        if isinstance(part, sympy.Sum | sympy.Product):
            ends = [end for limits in part.limits for end in limits[1:]]
            if any(_size(end) > 10_000 for end in ends if not end.has(sympy.oo)):
                return True
    return False


def _bits(power: sympy.Pow) -> float:
    if power.free_symbols:
        return 0.0
    base, exponent = _size(power.base), _size(power.exp)
    return exponent * max(1.0, base.bit_length() if isinstance(base, int) else 1.0)


def _size(expression: sympy.Basic) -> float:
    """A bound on the absolute value, without working it out; infinite where that is not easy."""
    if isinstance(expression, sympy.Integer):
        return abs(int(expression))
    if isinstance(expression, sympy.Number):
        return abs(float(expression))
    if isinstance(expression, sympy.Pow) and not expression.free_symbols:
        return float("inf") if _bits(expression) > 1000 else 2.0 ** _bits(expression)
    if isinstance(expression, sympy.Add | sympy.Mul):
        sizes = [max(1.0, _size(part)) for part in expression.args]
        total = 1.0
        for size in sizes:
            total = total * size if isinstance(expression, sympy.Mul) else total + size
        return total
    return 1.0


def _same_text(gold: str, got: str) -> bool:
    bare = gold.strip()
    return bare == got or _squeeze(bare) == _squeeze(got)


def _squeeze(latex: str) -> str:
    latex = latex.strip().strip("$").replace("\\left", "").replace("\\right", "")
    latex = latex.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    # A space between digits or letters may mean something: 1 1/2 is not 11/2.
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", latex)


def _compare_numbers(gold: str, got: str) -> Verdict | None:
    """Most competition answers: no need to ask Math-Verify, and no way for it to err. None where
    it has to be asked; a decimal that is not exactly the gold answer may be near enough."""
    a, b = (exact(answers.tidy_answer(text.strip().strip("$"))) for text in (gold, got))
    if a is None or b is None:
        return None
    if a[0] == b[0]:
        return Verdict("correct", 1.0, "equal", got)
    return None if a[1] or b[1] else Verdict("wrong", 0.0, "not equal", got)


def _read_box(inside: str) -> Reading:
    latex = answers.tidy_answer(inside)
    config = _WHOLE if answers.text_inside(latex) else _LATEX
    values = _parse(f"\\boxed{{{latex}}}", [config])
    if values and not answers.balanced(values[-1]) and config is _LATEX:
        values = _parse(f"\\boxed{{{latex}}}", [_WHOLE])
    return Reading(inside, tuple(values))


def _read_text(text: str) -> Reading:
    values = _parse(text, [_LATEX, _PLAIN])
    if values and isinstance(values[-1], str) and not answers.balanced(values[-1]):
        values = _parse(text, [_WHOLE, _PLAIN])
    shown = values[-1] if values and isinstance(values[-1], str) else ""
    return Reading(shown, tuple(values))


@lru_cache(maxsize=50_000)
def read_gold(gold: str) -> tuple[Reading, ...]:
    """Every sound reading of a gold answer; parsed once in the life of a worker."""
    if _MATH.search(gold):
        found = [Reading(gold, _read_text(answers.tidy(gold)).values)]
        inside = answers.last_boxes(gold)
        if len(inside) == 1:
            found.append(_read_box(inside[0]))
    else:
        found = [_read_box(gold)]
        bare = answers.without_percent(gold)
        if bare is not None:
            found.append(_read_box(bare))
        if answers.is_number(gold):
            # Plain numbers: '1,22' may be a decimal, '1 000' has a separator.
            found.append(Reading(gold, tuple(_parse(gold, [_PLAIN]))))
    return tuple(reading for reading in found if reading.values) or (
        Reading(gold, (gold.strip(),)),
    )


def _parse(text: str, configs: list[Any]) -> list[Any]:
    return parse(text, configs, parsing_timeout=0)
