"""Arithmetic as it is written: tokens, and a reader that works expressions out exactly."""

from __future__ import annotations

import re
from fractions import Fraction

Number = int | Fraction  # exact; integers stay integers, which are many times faster


def shown(value: Number) -> str:
    """The number as text; Python refuses to write out integers of thousands of digits."""
    size = max(value.numerator.bit_length(), value.denominator.bit_length())
    return str(value) if size <= 200 else "huge"


class Malformed(Exception):
    """The text is not in the grammar."""


def tokens_of(text: str) -> list[str] | None:
    """Numbers, signs and brackets; one final '.' is dropped; None if anything else is there."""
    body = text.strip()
    body = body[:-1] if body.endswith(".") else body
    tokens = re.findall(r"[0-9]{1,18}|[-+*/()=]", body)
    return tokens if "".join(tokens) == "".join(body.split()) else None


class Reader:
    """Reads expressions from left to right and works them out."""

    def __init__(self, tokens: list[str]):
        self.left = tokens[::-1]  # the next one is the last
        self.used: list[Number] = []
        self.steps: list[tuple[Number, str, Number]] = []

    def expression(self, depth: int = 0) -> Number:
        """Sums and differences of terms."""
        value = self._term(depth)
        while self.left and self.left[-1] in "+-":
            value = self._step(value, self.left.pop(), self._term(depth))
        return value

    def stated(self) -> int:
        """The whole number after `=`."""
        if len(self.left) < 2 or self.left.pop() != "=" or not self.left[-1].isdigit():
            raise Malformed
        return int(self.left.pop())

    def _term(self, depth: int) -> Number:
        value = self._atom(depth)
        while self.left and self.left[-1] in "*/":
            value = self._step(value, self.left.pop(), self._atom(depth))
        return value

    def _atom(self, depth: int) -> Number:
        if not self.left or depth > 50:
            raise Malformed
        token = self.left.pop()
        if token.isdigit():
            self.used.append(int(token))
            return int(token)
        if token != "(":
            raise Malformed
        value = self.expression(depth + 1)
        if not self.left or self.left.pop() != ")":
            raise Malformed
        return value

    def _step(self, a: Number, op: str, b: Number) -> Number:
        value = apply(op, a, b)
        if value is None:
            raise ZeroDivisionError
        self.steps.append((a, op, b))
        return value


def apply(op: str, a: Number, b: Number) -> Number | None:
    """The exact result, an integer where it is one; None for a division by zero."""
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if b == 0:
        return None
    value = Fraction(a) / b
    return value.numerator if value.denominator == 1 else value
