"""An answer as a mathematical object: LaTeX in, what Math-Verify's parser makes of it out."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.sets import FiniteSet
from math_verify.grader import should_treat_as_complex
from sympy.matrices.expressions.matexpr import MatrixExpr

from sps.tasks.math import notation, units
from sps.tasks.math.equality import agree
from sps.tasks.math.magnitude import too_big

# It warns that it has no time limit of its own: ours is outside of it.
logging.getLogger("math_verify").setLevel(logging.ERROR)
# Its units rule cuts off letters that are none, and its symbols are all in lower case.
_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_SYMBOLS = ConversionConfig(lowercase_symbols=False)
_PERCENT = (("percent", 1),)
_DOTS = re.compile(r"\\(?:[lcv]?dots|dotsc|dotsb)(?![a-zA-Z])|\.\.\.|\u2026")
# 2 3 is read as 5, the greatest common divisor of two letters as 1, a date as a difference and a
# hexadecimal number as a product; an index or a prime of a number is left out.
_MISREAD = re.compile(
    r"\d \d|(?:gcd|lcm)\}?\s*\([^)]*[a-zA-Z]|\A\d{4}-\d\d-\d\d\Z|\b0x[\da-fA-F]"
    r"|(?<![\w^{}_\\.])\d+(?:\.\d+)?_|[\de)]\^(?:\w|\{[^{}]*\})_|'"
)
_ANGLE = re.compile(r"\\angle\s*([A-Z])([A-Z])([A-Z])(?![a-zA-Z])")
_APPROX = re.compile(r"\\(?:approx|simeq|thickapprox)(?![a-zA-Z])")
_LABEL = re.compile(
    r"(?!.*\\(?:neg?|neq|not|sum|prod|pm|mp)(?![a-zA-Z]))(?:[^=\d!/<>]|_\{?\d+\}?|\(\d+\))*"
)  # P(A|B), E[X], \text{Area}, S_{10}


@dataclass(frozen=True)
class Reading:
    """One way to understand an answer."""

    text: str  # as it was written
    latex: str = ""  # the same in one spelling, less its unit
    expression: Any = None  # None when it is words to the parser
    units: units.Units | None = None
    label: str = ""  # what an '=' that the parser cannot read gives a value to


def read(text: str) -> Reading:
    """The plain reading of an answer."""
    latex = notation.clean(text)
    if notation.without_percent(latex) is not None:
        return _reading(text, units.Quantity(latex, _PERCENT))
    return _reading(text, units.split(latex))


def read_less_percent(text: str) -> Reading | None:
    """12.5% as 12.5, for a question that asks for per cent; None where there is no such sign."""
    bare = notation.without_percent(notation.clean(text))
    return None if bare is None else _reading(bare, units.Quantity(bare, _PERCENT))


def read_with_letter(text: str) -> Reading:
    """The reading that takes a last letter for a unit."""
    return _reading(text, units.with_letter(notation.clean(text)))


@lru_cache(maxsize=20_000)
def _reading(text: str, quantity: units.Quantity) -> Reading:
    latex = notation.parsable(notation.as_number(quantity.body))
    label = ""
    named = re.fullmatch(r"[a-zA-Z] ?= ?(.*)", latex)
    if named and notation.has_base(named[1]):
        latex = named[1]
    if _APPROX.search(latex):  # the parser would take one side, whatever the other says
        latex = _APPROX.sub("=", latex) if _is_rounding(latex) else ""
    expression = _parse(latex)
    if expression is None and "=" in latex:
        sides = latex.split("=")
        expression = _last_side(sides)
        label = notation.squeeze(sides[0]) if expression is not None else ""
    return Reading(text, latex, expression, quantity.units, label)


def _last_side(sides: list[str]) -> Any:
    """The value that P(A|B) = 1/4 + 1/4 = 1/2 gives to what the parser cannot read."""
    if (len(sides) == 2 and not _LABEL.fullmatch(sides[0])) or any("," in side for side in sides):
        return None
    value, *others = [_parse(side) for side in reversed(sides)]
    known = [other for other in others if other is not None]
    return value if value is not None and all(agree(other, value) for other in known) else None


def _is_rounding(latex: str) -> bool:
    """Whether what stands on both sides of an \\approx are numbers near to each other, or one of
    them is none."""
    sides = [_parse(side) for side in re.split(rf"=|{_APPROX.pattern}", latex)]
    numbers = [s for s in sides if isinstance(s, sympy.Expr) and s.is_number and not too_big(s)]
    try:
        values = [complex(cast(Any, number.evalf())) for number in numbers]
    except (TypeError, ValueError):
        return False
    return all(abs(v - values[0]) <= max(0.02 * abs(v), 0.5 * (v == round(v.real))) for v in values)


def _parse(latex: str) -> Any:
    """The object, or None. Dots stand for what is not written: nothing can be worked out."""
    latex = _ANGLE.sub(_angle, _primes(latex))
    if not latex or _DOTS.search(latex):
        return None
    if _MISREAD.search(latex) and not notation.has_base(latex):
        return None
    normal = normalize_latex(latex, _NORMAL)
    try:
        found = latex2sympy(
            normal,
            is_real=not should_treat_as_complex(normal),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_SYMBOLS,
        )
    except Exception:
        return None
    if isinstance(found, MatrixExpr):  # a scalar times a matrix
        try:
            found = found.doit()
        except Exception:
            return None
    if not isinstance(found, sympy.Basic | sympy.MatrixBase):
        return None
    try:
        return _with_letters(_with_rates(found))
    except (TypeError, ValueError):  # 3 + 4i is not less than anything
        return None


def _with_rates(found: Any) -> Any:
    """dy/dx as a name: to sympy it is zero, for y is not x."""
    rates = getattr(found, "atoms", lambda *_: ())(sympy.Derivative)
    names = {r: sympy.Symbol(f"d{r.expr}/d{r.variables}") for r in rates if r.expr.is_Symbol}
    return found.xreplace(names) if names else found


def _with_letters(found: Any) -> Any:
    """i as the imaginary unit, and E as a letter: Math-Verify takes it for e."""
    letters = {s for s in found.free_symbols if s.name in ("i", "E")}
    if not letters:
        return found
    if isinstance(found, sympy.Eq):  # not evaluated: it might become true or false
        return sympy.Eq(_with_letters(found.lhs), _with_letters(found.rhs), evaluate=False)
    if isinstance(found, FiniteSet):
        return FiniteSet(*map(_with_letters, cast(Any, found)._unsorted_args))
    return found.subs({s: sympy.I if s.name == "i" else sympy.Symbol("E_") for s in letters})


def _primes(latex: str) -> str:
    """y' as a name of its own; the parser would leave the prime out."""
    return re.sub(r"(?<=[a-zA-Z])('+)", lambda m: f"_{{{'p' * len(m[1])}}}", latex)


def _angle(match: re.Match[str]) -> str:
    """An angle as a name of its own: ABC is CBA and not ACB, which the product of letters is."""
    ends = sorted(match.group(1, 3))
    return f"a_{{{ends[0]}{match.group(2)}{ends[1]}}}"
