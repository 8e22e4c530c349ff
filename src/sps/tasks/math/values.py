"""Values of expressions where letters have numbers: what tells two apart without algebra."""

from __future__ import annotations

import zlib
from typing import Any, cast

import sympy
from sympy.core.function import AppliedUndef

# A per cent is an unevaluated product; the others may take long, or have no value.
SLOW = (
    sympy.UnevaluatedExpr,
    sympy.Integral,
    sympy.Sum,
    sympy.Product,
    sympy.Limit,
    sympy.Derivative,
    AppliedUndef,
    sympy.zoo,
    sympy.nan,
    sympy.oo,
)
# Where expressions are tried: letters lie between these, each at its own place. At the first one
# logarithms and roots are real.
POINTS = ((1.3, 3.3), (0.1, 9.0), (-5.0, -0.3), (-4.0, 4.0), (-9.0, 9.0))
# Equal at many points without being equal.
_STEPS = (sympy.Min, sympy.Max, sympy.floor, sympy.ceiling, sympy.Mod, sympy.Piecewise, sympy.Float)


def letters(expression: Any) -> set[str]:
    """The names of its letters."""
    return {str(symbol) for symbol in expression.free_symbols}


def value_at(
    expression: Any, place: tuple[float, float], fixed: dict[str, float] | None = None
) -> complex:
    """Its value where every letter has a number between two, that its name decides."""
    low, high = place
    point = {}
    for symbol in expression.free_symbols:
        share = zlib.crc32(f"{symbol}{place}".encode()) % 9973 / 9973
        value = (fixed or {}).get(str(symbol), low + share * (high - low))
        point[symbol] = sympy.Float(value, 30)
    return complex(cast(Any, expression.evalf(20, subs=point)))


def _comparable(a: Any, b: Any) -> bool:
    plain = isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)
    return plain and not a.has(*SLOW) and not b.has(*SLOW) and len(a.free_symbols) <= 6


def clearly_different(a: Any, b: Any, tolerance: float = 1e-3) -> bool:
    """Values far from each other at one point: no need to have sympy simplify the difference, which
    takes most of the time of a wrong answer. False where that is not easily told."""
    if not _comparable(a, b):
        return False
    try:
        x, y = value_at(a, POINTS[0]), value_at(b, POINTS[0])
        if float("inf") in (abs(x), abs(y)):  # too large for a float, not for sympy
            return not letters(a) | letters(b) and bool(abs((a / b).evalf(20) - 1) > tolerance)
        return abs(x - y) > tolerance * max(1.0, abs(x), abs(y))  # nan compares false
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False


def same_at_points(a: Any, b: Any) -> bool:
    """Equal wherever they are tried, which sympy could not show."""
    if not _comparable(a, b) or not a.free_symbols or a.has(*_STEPS) or b.has(*_STEPS):
        return False
    try:
        pairs = [(value_at(a, place), value_at(b, place)) for place in POINTS]
        return all(abs(x - y) < 1e-12 * max(abs(x), abs(y)) for x, y in pairs)
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False


def far_apart(a: Any, b: Any) -> bool:
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
    return 0 < size < 1e-3 and abs(x - y) > 1e-4 * size
