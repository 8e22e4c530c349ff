"""What a report is made of: sections of figures and tables, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | tuple | None  # a tuple is (value, low, high)


@dataclass(frozen=True)
class Figure:
    """A plotly figure whose colours are names (style.py)."""

    id: str
    title: str
    note: str  # what is drawn and how to read it
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 320
    wide: bool = False  # takes the whole width of the page


@dataclass(frozen=True)
class Table:
    """Rows that can be copied as CSV and LaTeX."""

    id: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it; None among the blocks is left out."""

    id: str
    title: str
    lead: str
    blocks: Sequence[Figure | Table | None]

    def present(self) -> list[Figure | Table]:
        """The blocks that have something to show."""
        return [b for b in self.blocks if b is not None]


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title}, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of shares shown as per cent."""
    return axis(title, tickformat=".1~%", rangemode="tozero", **more)


def line(
    x: Sequence, y: Sequence, name: str, colour: str, dash: str = "solid", **more: Any
) -> dict[str, Any]:
    """A line; 'nan' values become gaps."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": [clean(v) for v in y],
        "name": name,
        "line": {"color": f"@{colour}", "width": 2, "dash": dash},
        **more,
    }


def band(
    x: Sequence, low: Sequence, high: Sequence, colour: str, group: str, strength: float = 0.15
) -> dict[str, Any]:
    """The area between two lines, in the legend entry of its group."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*(clean(v) for v in high), *(clean(v) for v in reversed(low))],
        "fill": "toself",
        "fillcolor": f"@{colour}/{strength}",
        "line": {"width": 0, "color": f"@{colour}/0"},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": group,
    }


def clean(value: Any) -> Any:
    """A number JSON can hold: what is not finite becomes None."""
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """Centred moving mean over what is there."""
    half = window // 2
    out: list[float | None] = []
    for i in range(len(values)):
        nearby = values[max(0, i - half) : i + half + 1]
        near = [v for v in nearby if v is not None and math.isfinite(v)]
        out.append(sum(near) / len(near) if near else None)
    return out


def escape(text: str) -> str:
    """Plotly reads a few tags in text; names must not become any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def points(value: float, digits: int = 1) -> str:
    """A share as per cent points."""
    return f"{round(100 * value, digits) + 0.0:.{digits}f}"  # + 0.0: there is no -0.0


def percent(interval: Sequence[float]) -> tuple[str, str, str]:
    """A cell of a share with its interval, in per cent."""
    mean, low, high = interval
    return points(mean), points(low), points(high)


def triple(interval: Sequence[float]) -> tuple[str, str, str]:
    """A cell of a number with its interval."""
    mean, low, high = (f"{value:.2f}" for value in interval)
    return mean, low, high
