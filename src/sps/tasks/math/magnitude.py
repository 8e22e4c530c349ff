"""Numbers that nobody should work out: a bound on the size, from the expression alone."""

from __future__ import annotations

import math
from typing import Any

import sympy

_BITS = 200_000  # of a number that is still worked out


def too_big(expression: Any) -> bool:
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
    if isinstance(expression, sympy.factorial):
        inner = _size(expression.args[0])
        return math.gamma(inner + 1) if inner <= 100 else float("inf")
    if isinstance(expression, sympy.Add | sympy.Mul):
        sizes = [max(1.0, _size(part)) for part in expression.args]
        total = 1.0
        for size in sizes:
            total = total * size if isinstance(expression, sympy.Mul) else total + size
        return total
    return 1.0
