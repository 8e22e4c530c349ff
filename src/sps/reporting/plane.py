"""Lines of methods in the plane of Pass@1 and Pass@k, each with its name at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sps.reporting.blocks import axis, escape
from sps.reporting.names import NAME_SIZE, Spot, place_names
from sps.reporting.style import Mark
from sps.reporting.svg import Point

_NARROW = 0.02  # the least width of an axis


@dataclass(frozen=True)
class Line:
    """A method's way through training; the base is the first of its points."""

    name: str
    steps: Sequence[int | str]  # a word where it is no step: mixed, or a temperature
    points: Sequence[Point]  # means over seeds
    low: Sequence[Point]  # of the seeds, Pass@1 and Pass@k by themselves
    high: Sequence[Point]


def draw_lines(
    lines: Sequence[Line], k: int, seeds: int, style: Mapping[str, Mark]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Traces and layout of the figure."""
    base = lines[0].points[0]
    ranges = _ranges(lines)
    data = [trace for line in lines for trace in _paths(line, k, style[line.name])]
    ends = {line.name: line.points for line in lines} | {"base": [base]}
    colours = {line.name: f"@{style[line.name].colour}" for line in lines} | {"base": "@grey"}
    level = ((ranges[0][0], base[1]), (ranges[0][1], base[1]))
    spots = place_names(ends, [level, *(bar for line in lines for bar in _bars(line))], ranges)
    layout = {
        "xaxis": axis("Pass@1: right at the first try", tickformat=".1~%", range=ranges[0]),
        "yaxis": axis(
            f"Pass@{k}: right at least once in {k} tries", tickformat=".1~%", range=ranges[1]
        ),
        "showlegend": False,
        "hovermode": "closest",
        "shapes": [_level(base[1])],
        "annotations": [_label(n, ends[n][-1], spots[n], colours[n]) for n in ends],
        "meta": {"key": _key(lines, seeds)},  # for a file, which has no text beside it
    }
    return [*data, _star(base, k)], layout


def _paths(line: Line, k: int, mark: Mark) -> list[dict[str, Any]]:
    """Training, and the way on from its end through temperatures, which is dotted."""
    heats = [str(s).startswith("T=") for s in line.steps]
    if True not in heats:
        return [_path(line, k, mark)]
    end = heats.index(True)
    trained, heated = (
        Line(line.name, line.steps[of], *(points[of.start : stop] for points in _points(line)))
        for of, stop in ((slice(0, end), end + 1), (slice(end, None), None))
    )
    faint = replace(mark, symbol=f"{mark.symbol.removesuffix('-open')}-open", dash="dot")
    first = line.steps[end - 1] if end else 0
    return [*([_path(trained, k, mark)] if end else []), _path(heated, k, faint, first)]


def _points(line: Line) -> tuple[Sequence[Point], ...]:
    return line.points, line.low, line.high


def _path(line: Line, k: int, mark: Mark, first: int | str = 0) -> dict[str, Any]:
    """A line, with a bar from the lowest to the highest seed at each mark."""
    said = f"%{{customdata}}: Pass@1 %{{x:.1%}}, Pass@{k} %{{y:.1%}}"
    x, y = (list(values) for values in zip(*line.points, strict=True))
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "name": line.name,
        "line": {"color": f"@{mark.colour}", "width": 2.5, "dash": mark.dash},
        # The first has a mark: the star, or the end of training. Sizes in a list would make them
        # see-through.
        "marker": {
            "symbol": mark.symbol,
            "color": f"@{mark.colour}",
            "size": [0] + [8] * len(line.steps),
            "opacity": 1,
        },
        "error_x": _error(line, 0, mark),
        "error_y": _error(line, 1, mark),
        "customdata": [s if isinstance(s, str) else f"step {s}" for s in (first, *line.steps)],
        "hovertemplate": f"{said}<extra>{escape(line.name)}</extra>",
        "cliponaxis": False,
    }


def _error(line: Line, along: int, mark: Mark) -> dict[str, Any]:
    at, low, high = ([p[along] for p in points] for points in (line.points, line.low, line.high))
    # A mean of equal numbers may differ from them in the last digit.
    more = [max(h - a, 0.0) for a, h in zip(at, high, strict=True)]
    less = [max(a - b, 0.0) for a, b in zip(at, low, strict=True)]
    look = {"type": "data", "symmetric": False, "thickness": 1, "width": 0}
    return {**look, "color": f"@{mark.colour}/0.45", "array": more, "arrayminus": less}


def _bars(line: Line) -> list[tuple[Point, Point]]:
    """The ends of a line's bars: names keep off them."""
    out = []
    for (x, y), low, high in zip(line.points, line.low, line.high, strict=True):
        out += [((low[0], y), (high[0], y)), ((x, low[1]), (x, high[1]))]
    return out


def _star(base: Point, k: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [base[0]],
        "y": [base[1]],
        "name": "base",
        "marker": {"symbol": "star", "color": "@grey", "size": 16},
        "hovertemplate": f"Pass@1 %{{x:.1%}}, Pass@{k} %{{y:.1%}}<extra>base</extra>",
        "cliponaxis": False,
    }


def _ranges(lines: Sequence[Line]) -> list[list[float]]:
    """Of both axes, from 0 on: all lines and bars, and room for names at their ends."""
    out = []
    for along, (before, after) in enumerate(((0.05, 0.10), (0.08, 0.08))):
        values = [p[along] for line in lines for p in (*line.low, *line.points, *line.high)]
        low, high = min(values), max(values)
        # Labels have a tenth of a per cent: an axis with less than two would repeat them.
        short = max(_NARROW - (high - low), 0.0)
        low, high = (low - short, high) if high + short > 1 else (low, high + short)
        wide = high - low
        out.append([max(low - before * wide, 0.0), high + after * wide])
    return out


def _key(lines: Sequence[Line], seeds: int) -> str:
    """How marks and bars are read, in a few words."""
    steps = [sorted({s for s in (0, *line.steps) if isinstance(s, int)}) for line in lines]
    gaps = {b - a for own in steps for a, b in pairwise(own)}
    last = max(own[-1] for own in steps)
    each = f"every {gaps.pop()} steps" if len(gaps) == 1 else "at each validation"
    bars = f"; bars span {seeds} seeds" if any(line.low != line.high for line in lines) else ""
    words = {s for line in lines for s in line.steps if isinstance(s, str)}
    more = ", then mixed with the base" * ("mixed" in words)
    known = words_of_heats(words)  # more than four of them would not fit beside the rest
    heats = ", ".join(known) if len(known) < 5 else f"{known[0]} to {known[-1]}"
    goes_on = any(words_of_heats(line.steps) and isinstance(line.steps[0], int) for line in lines)
    more += f",{' then' * goes_on} dotted at {heats}" if heats else ""
    return f"a mark {each}, to step {last}{more}{bars}"


def words_of_heats(steps: Iterable[int | str]) -> list[str]:
    """The temperatures among the points of paths, the hottest first."""
    found = {s for s in steps if isinstance(s, str) and s.startswith("T=")}
    return sorted(found, key=lambda s: -float(s[2:]))


def _label(name: str, at: Point, spot: Spot, colour: str) -> dict[str, Any]:
    """A name near the end of its line; from one that is further away a thin line leads there."""
    look = {"arrowwidth": 1, "arrowcolor": f"{colour}/0.6"}
    place = {"x": at[0], "y": at[1], "ax": spot.right, "ay": spot.down, "xanchor": spot.anchor}
    return {
        **place,
        **(look if spot.far else {"arrowcolor": "@paper/0"}),
        "yanchor": "middle",
        "text": f"<b>{escape(name)}</b>",
        "showarrow": True,
        "arrowhead": 0,
        "font": {"color": colour, "size": NAME_SIZE},
    }


def _level(y: float) -> dict[str, Any]:
    look = {"color": "@grey/0.6", "width": 1, "dash": "dash"}
    place = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {**place, "line": look, "layer": "below"}
