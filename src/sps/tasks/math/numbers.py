"""Exact numbers q * sqrt(r) * pi^k: most competition answers, compared without sympy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_FACTORS = r"(\d{1,15})?\s*(?:\\sqrt\s*(?:\{\s*(\d{1,6})\s*\}|(\d)))?\s*(\\pi(?![a-zA-Z]))?"
_PRODUCT = re.compile(_FACTORS)
_FRACTION = re.compile(
    r"\\[dt]?frac\s*(?:\{([^{}]*(?:\{\d+\})?[^{}]*)\}\s*\{([^{}]*(?:\{\d+\})?[^{}]*)\})"
)
_SLASH = re.compile(r"(\d{1,15})\s*/\s*(\d{1,15})")
_DECIMAL = re.compile(r"\d{0,15}\.\d{1,15}")
_LARGEST = 2000  # factor that is looked for under a root


@dataclass(frozen=True)
class Exact:
    """A number in lowest terms: two are equal when their fields are."""

    ratio: Fraction
    radicand: int = 1  # without square factors
    pi: int = 0  # power


def exact(latex: str) -> tuple[Exact, bool] | None:
    """The number a plain spelling stands for, and whether it was a decimal; None for all others."""
    body = latex.strip().strip("$").strip().replace("\\left", "").replace("\\right", "")
    sign = -1 if body.startswith("-") else 1
    body = body.lstrip("+-").strip() if re.match(r"[+-][^+-]", body) else body
    if _DECIMAL.fullmatch(body):
        return Exact(sign * Fraction(body)), True
    if match := _SLASH.fullmatch(body):
        top, bottom = int(match[1]), int(match[2])
        return (Exact(sign * Fraction(top, bottom)), False) if bottom else None
    if match := _FRACTION.fullmatch(body):
        top, bottom = _product(match[1]), _product(match[2])
        found = _divide(top, bottom, sign) if top and bottom and bottom.ratio else None
    else:
        whole = _product(body)
        found = _signed(whole, sign) if whole else None
    return (found, False) if found else None


def _product(text: str) -> Exact | None:
    """A whole number times a root times pi, each of which may be missing, but not all."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    match = _PRODUCT.fullmatch(text.removeprefix("-").strip())
    if match is None or not any(match.groups()):
        return None
    number, braced, bare, pi = match.groups()
    root = _root(int(braced or bare or 1))
    if root is None:
        return None
    outside, radicand = root
    ratio = Fraction(sign * int(number or 1) * outside)
    return Exact(ratio, radicand if ratio else 1, int(bool(pi and ratio)))


def _divide(top: Exact, bottom: Exact, sign: int) -> Exact | None:
    """sqrt(a) / sqrt(b) is sqrt(a * b) / b."""
    root = _root(top.radicand * bottom.radicand)
    if root is None:
        return None
    outside, radicand = root
    ratio = sign * top.ratio / bottom.ratio * Fraction(outside, bottom.radicand)
    return Exact(ratio, radicand if ratio else 1, top.pi - bottom.pi if ratio else 0)


def _signed(number: Exact, sign: int) -> Exact:
    return Exact(sign * number.ratio, number.radicand, number.pi)


def _root(n: int) -> tuple[int, int] | None:
    """sqrt(n) as a whole number times the root of one without square factors.

    None where a larger factor than those looked for may be left.
    """
    if n == 0:
        return 0, 1
    outside, factor = 1, 2
    while factor * factor <= n and factor < _LARGEST:
        while n % (factor * factor) == 0:
            n //= factor * factor
            outside *= factor
        factor += 1
    return None if factor * factor <= n else (outside, n)
