"""Axes of a drawn figure: where a value lies in pixels, and which values get a label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Tick = tuple[Any, str]  # a value and its label
_FEW = 2.5  # decades of a log axis below which 2 and 5 are labelled, too


@dataclass(frozen=True)
class Scale:
    """From values to pixels: linear, log (its ends are decades) or category (places of names)."""

    kind: str
    low: float
    high: float
    start: float  # pixel of `low`
    end: float
    names: tuple[str, ...] = ()

    def at(self, value: Any) -> float:
        """The pixel of a value."""
        if self.kind == "category":
            place = float(self.names.index(str(value)))
        else:
            place = math.log10(value) if self.kind == "log" else float(value)
        return self.start + (place - self.low) / (self.high - self.low) * (self.end - self.start)


def make_scale(
    axis: dict[str, Any], values: Sequence[Any], start: float, end: float, room: float
) -> Scale:
    """The scale of an axis that holds all values, with a share of `room` at both ends."""
    kind = axis.get("type", "linear")
    if kind == "category" or any(isinstance(v, str) for v in values):
        names = tuple(axis.get("categoryarray") or dict.fromkeys(map(str, values)))
        return Scale("category", -0.5, len(names) - 0.5, start, end, names)
    if axis.get("range"):
        first, last = axis["range"]
        return Scale(kind, first, last, start, end)
    if kind == "log":
        values = [math.log10(v) for v in values if v > 0]
    low, high = min(values, default=0.0), max(values, default=1.0)
    zero = axis.get("rangemode") == "tozero" and kind != "log"
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    pad = room * (high - low) if high > low else abs(high) / 10 or 1.0
    bottom = low if zero and low == 0 else low - pad
    return Scale(kind, bottom, high if zero and low < high == 0 else high + pad, start, end)


def ticks(axis: dict[str, Any], scale: Scale, count: int) -> list[Tick]:
    """Values to label, about `count` of them."""
    if "tickvals" in axis:
        shown = zip(axis["tickvals"], axis["ticktext"], strict=True)
        return [(value, str(text)) for value, text in shown]
    if scale.kind == "category":
        return [(name, name) for name in scale.names]
    if scale.kind == "log":
        return log_ticks(scale.low, scale.high, count)
    step = _round_step((scale.high - scale.low) / count)
    first, last = math.ceil(scale.low / step - 1e-6), math.floor(scale.high / step + 1e-6)
    percent = str(axis.get("tickformat", "")).endswith("%")
    return [(i * step, _label(i * step, step, percent)) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[Tick]:
    """Powers of ten between two decades; where these are few, twice and five times them, too."""
    stride = max(1, math.ceil((high - low) / count))
    decades = range(math.floor(low), math.ceil(high) + 1)
    mantissas = (1, 2, 5) if high - low < _FEW else (1,)
    values = [m * 10.0**d for d in decades if d % stride == 0 for m in mantissas]
    return [(v, f"{v:g}") for v in values if low <= math.log10(v) <= high]


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, the smallest that is no smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def _label(value: float, step: float, percent: bool) -> str:
    factor = 100 if percent else 1
    digits = max(0, -math.floor(math.log10(step * factor) + 1e-9))
    text = f"{round(value * factor, digits) + 0.0:,.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") + "%" * percent


def flat(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """All values of several lists that are there."""
    return [value for group in groups for value in group if value is not None]
