"""Whether two mathematical objects are the same answer.

Math-Verify compares numbers, expressions, sets and matrices. Equations and inequalities are
compared here: it takes the right-hand side alone, solves what it cannot compare, for seconds, and
calls two equations without solutions equal.
"""

from __future__ import annotations

from typing import Any, cast

import sympy
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom

from sps.tasks.math.magnitude import too_big
from sps.tasks.math.values import (
    POINTS,
    SLOW,
    clearly_different,
    far_apart,
    letters,
    same_at_points,
    value_at,
)

_TRIED = (-60.1, -7.7, -2.3, -0.6, 0.4, 1.7, 3.2, 8.9, 50.3)
_LESS = (sympy.StrictLessThan, sympy.LessThan)


def same(gold: Any, got: Any) -> bool:
    """Whether an answer equals the gold one."""
    if too_big(gold) or too_big(got):
        return gold == got
    equations = _holds_equation(gold), _holds_equation(got)
    if all(equations):
        return _same_equations(gold, got)
    if equations[1]:
        values = _values(got, strict=False)
        return any(_same_values(gold, value) for value in values)
    if equations[0]:
        values = _values(gold, strict=True)
        return any(_same_values(value, got) for value in values)
    return not _fewer_times(gold, got) and _same_values(gold, got, as_sets=True)


def _fewer_times(gold: Any, got: Any) -> bool:
    """A list of 1, 1, 2 asks for 1 twice; as a set it would be 1, 2."""
    if not _is_list(gold) or len(_items(gold)) == len(set(_items(gold))):
        return False
    return len(_items(gold)) != len(_items(got)) or any(
        _items(gold).count(item) != _items(got).count(item)
        for item in set(_items(gold)) & set(_items(got))
    )


def _same_values(gold: Any, got: Any, as_sets: bool = False) -> bool:
    """`as_sets`: 1 < x < 2 may stand for the interval (1, 2)."""
    gold, got = _worked_out(gold), _worked_out(got)
    if _is_relation(gold) and _is_relation(got):
        return _same_inequalities(gold, got)
    if clearly_different(gold, got):
        return False
    equal = verify(gold, got, timeout_seconds=None, allow_set_relation_comp=as_sets)
    if not equal and as_sets and isinstance(gold, sympy.Set) and _is_list(got):
        equal = gold == _union(_items(got))
    if not equal:
        return same_at_points(gold, got)
    return not far_apart(gold, got)


def _union(relations: list[Any]) -> Any:
    """Where one of a few inequalities holds: x < 2 or x > 3."""
    if len(relations) > 4 or not all(map(_is_relation, relations)):
        return None
    try:
        return sympy.Union(*(relation.as_set() for relation in relations))
    except Exception:  # of more than one letter, or with no solution that sympy finds
        return None


def _worked_out(found: Any) -> Any:
    """2.3 * 10^{-3} as the decimal it is: Math-Verify compares decimals with what is near."""
    if not _is_number(found) or found.is_Number or not found.has(sympy.Float) or found.has(*SLOW):
        return found
    value = found.evalf(15)
    return value if value.is_Float else found


# Equations


def _parts(chain: Any) -> list[Any]:
    """The relations of a = b = c."""
    return list(cast(Any, chain)._unsorted_args) if isinstance(chain, And) else [chain]


def _is_equation(found: Any) -> bool:
    return all(isinstance(part, sympy.Eq) for part in _parts(found))


def _is_relation(found: Any) -> bool:
    return all(isinstance(part, Relational) for part in _parts(found))


def _is_list(found: Any) -> bool:
    return isinstance(found, sympy.FiniteSet | sympy.Tuple)


def _items(found: Any) -> list[Any]:
    return list(getattr(found, "_unsorted_args", found.args)) if _is_list(found) else [found]


def _holds_equation(found: Any) -> bool:
    return any(_is_equation(item) for item in _items(found))


def _values(found: Any, strict: bool) -> list[Any]:
    """What x = 5, or x = 1, y = 2, gives: the value or the values in their order; none where an
    equation is not the naming of a value. An exact value may be followed by its decimals."""
    values = []
    for item in _items(found):
        if not _is_equation(item):
            values.append([item])
            continue
        sides = [_parts(item)[0].lhs, *(part.rhs for part in _parts(item))]
        given = _given(sides, strict)
        if isinstance(sides[0], sympy.Add) and given[-1:] == [0] and len(sides) == 2:
            return []  # a + b - c = 0 says nothing of a sum
        if not given or not all(agree(side, given[-1]) for side in given[:-1]):
            return []
        values.append(given)
    if not _is_list(found):
        return values[0]
    last = [given[-1] for given in values]
    return [FiniteSet(*last), sympy.Tuple(*last)]


def _given(sides: list[Any], strict: bool) -> list[Any]:
    """The values among the sides of x = 2 + 3 = 5, of 5 = x and of 2 + 3 = 5."""
    if all(map(_is_number, sides)):
        return sides
    if _is_name(sides[0], strict):
        return sides[1:]
    return sides[:1] if len(sides) == 2 and isinstance(sides[1], sympy.Symbol) else []


def _is_number(found: Any) -> bool:
    plain = isinstance(found, sympy.Expr) and not found.is_Matrix
    return plain and not found.free_symbols and not found.has(AppliedUndef)


def _is_name(side: Any, strict: bool) -> bool:
    """x, f(x), f^{-1}(x), AB, |AB|, a/b, sin A, (x, y); in an answer a + b too, but not 2x or x^2,
    which are on the way to an answer."""
    if isinstance(side, sympy.Symbol | AppliedUndef | sympy.Derivative):
        return True
    if isinstance(side, sympy.Pow):
        return side.exp == -1 and _is_name(side.base, strict)
    parts = [part for part in side.args if not isinstance(part, BooleanAtom)]
    if isinstance(side, sympy.Mul | sympy.Function | sympy.Tuple | sympy.Interval):
        return all(_is_name(part, strict) for part in parts)
    return (
        not strict
        and isinstance(side, sympy.Add)
        and all(_is_name(part, strict) or _is_name(-part, strict) for part in parts)
    )


def agree(a: Any, b: Any) -> bool:
    """Two sides of one equation: equal, or rounded to a decimal; no others can be told apart."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)) or letters(a) != letters(b):
        return True
    if too_big(a) or too_big(b):
        return a == b
    if a.has(sympy.Float) or b.has(sympy.Float):
        return not clearly_different(a, b, 1e-2)
    return not clearly_different(a, b, 1e-9)


def _same_equations(gold: Any, got: Any) -> bool:
    left, right = _items(gold), _items(got)
    if len(left) != len(right):
        return False
    rest = list(right)
    for item in left:
        match = next((other for other in rest if _same_equation(item, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _same_equation(gold: Any, got: Any) -> bool:
    if not (_is_equation(gold) and _is_equation(got)):
        return not _is_equation(gold) and not _is_equation(got) and _same_values(gold, got)
    if gold == got:
        return True
    chains = _parts(gold), _parts(got)
    if all(_is_name(chain[0].lhs, strict=False) for chain in chains):
        named = chains[0][0].lhs, chains[1][0].lhs
        alike = named[0] == named[1] or _are_y_and_f(*named)
        ends = [
            value for value in (_values(gold, strict=False), _values(got, strict=False)) if value
        ]
        if alike and len(ends) == 2:
            others = [part.rhs for part in chains[0][:-1] if part.rhs.free_symbols]
            if not all(any(side == part.rhs for part in chains[1]) for side in others):
                return False  # a = b = c = 0 is more than a = 0
            return any(_same_values(ends[0][-1], value) for value in ends[1])
        if alike:
            return False
    if len(chains[0]) != 1 or len(chains[1]) != 1:
        return len(chains[0]) == len(chains[1]) and all(map(_same_equation, *chains))
    a, b = chains[0][0], chains[1][0]
    sides = (a.lhs, a.rhs, b.lhs, b.rhs)
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return _same_values(a.lhs, b.lhs) and _same_values(a.rhs, b.rhs)
    if not a.free_symbols or not b.free_symbols:
        return _same_values(a.lhs, b.lhs) and _same_values(a.rhs, b.rhs)
    return _same_zeros(a.lhs - a.rhs, b.lhs - b.rhs)


def _are_y_and_f(a: Any, b: Any) -> bool:
    """y = 2x and f(x) = 2x say the same of a function."""
    functions = isinstance(a, AppliedUndef), isinstance(b, AppliedUndef)
    return any(functions) and not all(functions) and sympy.Symbol("y", real=True) in (a, b)


def _same_zeros(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether a = 0 and b = 0 are one equation: multiples of each other, or with the same solution
    for a letter that both are linear in."""
    a, b = _without_functions(a), _without_functions(b)
    names = sorted(letters(a))
    if names != sorted(letters(b)):
        return False
    try:
        ratios = [value_at(a, place) / value_at(b, place) for place in POINTS]
        if all(abs(r - ratios[0]) < 1e-9 * abs(ratios[0]) for r in ratios):
            return True
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        pass
    return any(_same_root(a, b, name) for name in names)


def _same_root(a: sympy.Expr, b: sympy.Expr, name: str) -> bool:
    try:
        return all(_same_root_at(place, a, b, name) for place in POINTS)
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False


def _same_root_at(place: tuple[float, float], a: sympy.Expr, b: sympy.Expr, name: str) -> bool:
    roots = []
    for expression in (a, b):
        at = [value_at(expression, place, {name: float(v)}) for v in (0, 1, 2)]
        slope, bend = at[1] - at[0], at[2] - 2 * at[1] + at[0]
        if abs(bend) > 1e-9 * max(map(abs, at)) or abs(slope) < 1e-9:
            return False
        roots.append(-at[0] / slope)
    if abs(roots[0]) < 1e-9:  # a letter that is a factor of both: nothing is known of the others
        return False
    return abs(roots[0] - roots[1]) <= 1e-9 * max(1.0, abs(roots[0]))


def _without_functions(expression: Any) -> Any:
    """f(x) as a letter of its own."""
    calls = expression.atoms(AppliedUndef)
    return (
        expression.subs({call: sympy.Symbol(str(call)) for call in calls}) if calls else expression
    )


# Inequalities


def _same_inequalities(gold: Any, got: Any) -> bool:
    left, right = _parts(gold), _parts(got)
    if len(left) == len(right):
        rest = list(right)
        for part in left:
            match = next((other for other in rest if _same_inequality(part, other)), None)
            if match is None:
                break
            rest.remove(match)
        else:
            return True
    if len(gold.free_symbols) != 1 or gold.free_symbols != got.free_symbols:
        return False
    try:
        if any(_holds_at(gold, value) != _holds_at(got, value) for value in _TRIED):
            return False  # sympy would need seconds to solve them
        return gold.as_set() == got.as_set()
    except Exception:
        return False


def _holds_at(chain: Any, value: float) -> bool:
    at = {symbol: sympy.Float(value) for symbol in chain.free_symbols}
    return all(part.subs(at) == sympy.true for part in _parts(chain))


def _same_inequality(a: Any, b: Any) -> bool:
    """Whether they are multiples of each other, with the sign that keeps their sense."""
    if _kind(a) != _kind(b) or letters(a) != letters(b):
        return False
    below = _below_zero(a), _below_zero(b)
    try:
        ratios = [value_at(below[0], place) / value_at(below[1], place) for place in POINTS]
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False
    keeps = ratios[0].real > 0 or _kind(a) in ("==", "!=")
    return keeps and all(abs(r - ratios[0]) < 1e-9 * abs(ratios[0]) for r in ratios)


def _kind(relation: Any) -> str:
    return relation.rel_op.replace(">", "<")


def _below_zero(relation: Any) -> Any:
    """What a < b says is below zero."""
    gap = relation.lhs - relation.rhs
    return gap if isinstance(relation, _LESS) else -gap
