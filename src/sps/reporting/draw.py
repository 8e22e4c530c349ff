"""A figure of the report as an SVG file, drawn without a browser: on every machine the same bytes.

It knows what the report's figures use of plotly's language: lines, bands, stacked areas, marks with
error bars, grouped bars, lines across the plot and names at points. `wide` figures fill a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sps.reporting.blocks import Figure, clean
from sps.reporting.scales import Scale, flat, make_scale, ticks
from sps.reporting.svg import Point, Sheet, width_of

WIDTH, WIDE = 480, 760  # pixels
_SMALL, _NORMAL = 11.5, 12.5  # font sizes
_EDGE = 14  # pixels around all
Trace = dict[str, Any]


@dataclass(frozen=True)
class _Area:
    """Pixels of the plot within the file."""

    left: float
    right: float
    top: float
    bottom: float


def draw(figure: Figure) -> str:
    """The text of the file."""
    sheet = Sheet(WIDE if figure.wide else WIDTH, figure.height, figure.title)
    layout = clean(figure.layout)
    traces = [_stacked(clean(trace), figure.data) for trace in figure.data]
    top = _legend(sheet, traces, layout)
    area = _area(sheet, traces, layout, top)
    panels = sorted(key for key in layout if key.startswith("yaxis")) or ["yaxis"]
    for key in panels:
        _panel(sheet, traces, layout, area, key, last=key == panels[-1])
    return sheet.file()


def _panel(
    sheet: Sheet, traces: list[Trace], layout: dict, area: _Area, key: str, last: bool
) -> None:
    """One pair of axes with what is drawn in it."""
    own, axis = _of_axis(traces, key), layout.get(key, {})
    x = _x_scale(traces, layout, area)
    y = _y_scale(own, axis, area)
    _grid(sheet, layout, axis, x, y, last)
    for shape in layout.get("shapes", ()):
        sheet.line(_shape(shape, x, y), shape["line"]["color"], shape["line"]["width"],
                   shape["line"]["dash"])  # fmt: skip
    bars = [t for t in own if t["type"] == "bar"]
    for trace in own:
        if trace["type"] == "bar":
            _bars(sheet, trace, bars.index(trace), len(bars), x, y)
        else:
            _scatter(sheet, trace, x, y)
    for note in layout.get("annotations", ()):
        _annotation(sheet, note, x, y)


def _of_axis(traces: list[Trace], key: str) -> list[Trace]:
    """Traces name their axis 'y2' where the layout has 'yaxis2'."""
    return [t for t in traces if t.get("yaxis", "y") == key.replace("axis", "")]


def _x_scale(traces: list[Trace], layout: dict, area: _Area) -> Scale:
    values = flat(_values(t, "x") for t in traces)
    dotted = any("markers" in t.get("mode", "") for t in traces)
    return make_scale(layout.get("xaxis", {}), values, area.left, area.right, 0.03 * dotted)


def _y_scale(own: list[Trace], axis: dict, area: _Area) -> Scale:
    low, high = axis.get("domain", (0, 1))
    tall = area.bottom - area.top
    values = flat(_values(t, "y") for t in own)
    if any(t["type"] == "bar" for t in own):
        axis = {"rangemode": "tozero"} | axis
    return make_scale(axis, values, area.bottom - low * tall, area.bottom - high * tall, 0.05)


def _values(trace: Trace, along: str) -> list[Any]:
    """What an axis must hold of a trace: its points, and the ends of its error bars."""
    points = list(trace[along])
    bars = trace.get(f"error_{along}")
    if bars:
        points += [p + d for p, d in zip(trace[along], bars["array"], strict=True)]
        points += [p - d for p, d in zip(trace[along], bars["arrayminus"], strict=True)]
    return points + ([*trace["from"]] if along == "y" and "from" in trace else [])


def _stacked(trace: Trace, all_traces: Sequence[Trace]) -> Trace:
    """A stacked trace with the sums below it in `from`; any other as it is."""
    if "stackgroup" not in trace:
        return trace
    below = [0.0] * len(trace["y"])
    for other in all_traces:
        if other["name"] == trace["name"]:
            break
        below = [a + (b or 0.0) for a, b in zip(below, other["y"], strict=True)]
    above = [a + (b or 0.0) for a, b in zip(below, trace["y"], strict=True)]
    return trace | {"from": below, "y": above}


def _legend(sheet: Sheet, traces: list[Trace], layout: dict) -> float:
    """Names on top, in rows; returns where the plot may begin."""
    named = [t for t in traces if t.get("name") and t.get("showlegend", True)]
    if not layout.get("showlegend", len(named) > 1) or not named:
        return _EDGE
    x, y = float(_EDGE), _EDGE + 6.0
    for trace in named:
        wide = 32 + width_of(trace["name"], _NORMAL) + 14
        if x > _EDGE and x + wide > sheet.width - _EDGE:
            x, y = float(_EDGE), y + 19
        _sample(sheet, trace, x, y)
        sheet.text((x + 28, y), escape(trace["name"], quote=False), size=_NORMAL)
        x += wide
    return y + 18


def _sample(sheet: Sheet, trace: Trace, x: float, y: float) -> None:
    """What a trace looks like, before its name."""
    if trace["type"] == "bar" or "stackgroup" in trace:
        colour = trace.get("fillcolor") or trace["marker"]["color"]
        sheet.box((x + 8, y - 6), (13, 12), colour, _striped(trace))
        return
    if "lines" in trace["mode"]:
        sheet.line([(x, y), (x + 22, y)], trace["line"]["color"], 2, trace["line"]["dash"])
    if "markers" in trace["mode"]:
        symbol = trace["marker"]["symbol"]
        shown = symbol if isinstance(symbol, str) else "circle"
        sheet.mark((x + 11, y), shown, 8, _mark_colour(trace))


def _area(sheet: Sheet, traces: list[Trace], layout: dict, top: float) -> _Area:
    """The plot, with room for the labels of its axes."""
    whole = _Area(0, sheet.width, top, sheet.height - 44)
    texts, titled = [], False
    for key, axis in layout.items():
        if key.startswith("yaxis"):
            scale = _y_scale(_of_axis(traces, key), axis, whole)
            texts += [text for _, text in ticks(axis, scale, _count(scale))]
            titled = titled or bool(_title(axis))
    room = max((width_of(text, _SMALL) for text in texts), default=0)
    bottom = sheet.height - (44 if _title(layout.get("xaxis", {})) else 28)
    bottom -= 20 * bool(_key(layout))
    return _Area(_EDGE + room + 8 + 20 * titled, sheet.width - _EDGE - 6, top, bottom)


def _key(layout: dict) -> str:
    """How marks are read, where a figure says so."""
    return layout.get("meta", {}).get("key", "")


def _count(scale: Scale) -> int:
    return max(2, round(abs(scale.end - scale.start) / 38))


def _title(axis: dict) -> str:
    return axis.get("title", {}).get("text", "")


def _grid(sheet: Sheet, layout: dict, axis: dict, x: Scale, y: Scale, last: bool) -> None:
    """Lines at labelled values, labels, and what the axes are called."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    across = layout.get("xaxis", {})
    for value, text in ticks(across, x, max(2, round((right - left) / 70))):
        at = x.at(value)
        if left - 0.5 <= at <= right + 0.5:
            if across.get("showgrid", True):
                sheet.line([(at, top), (at, bottom)], "@grid")
            if last:
                sheet.text((at, bottom + 13), escape(text), "@muted", _SMALL, "middle")
    for value, text in ticks(axis, y, _count(y)):
        at = y.at(value)
        sheet.line([(left, at), (right, at)], "@grid")
        sheet.text((left - 8, at), escape(text, quote=False), "@muted", _SMALL, "end")
    for along, scale in ((across, x), (axis, y)):
        if along.get("zeroline") and scale.low <= 0 <= scale.high:
            at, colour = scale.at(0), along.get("zerolinecolor", "@muted")
            ends = [(at, top), (at, bottom)] if scale is x else [(left, at), (right, at)]
            sheet.line(ends, colour)
    if last and _title(across):
        sheet.text(((left + right) / 2, bottom + 33), _title(across), "@muted", _NORMAL, "middle")
    if last and _key(layout):
        sheet.text(((left + right) / 2, bottom + 54), _key(layout), "@muted", _SMALL, "middle")
    if _title(axis):
        middle = (_EDGE + 2, (top + bottom) / 2)
        sheet.text(middle, _title(axis), "@muted", _NORMAL, "middle", turn=True)


def _shape(shape: dict, x: Scale, y: Scale) -> list[Point]:
    """The ends of a line across the plot."""
    return [
        (_along(shape[f"x{i}"], x, shape.get("xref")), _along(shape[f"y{i}"], y, shape.get("yref")))
        for i in (0, 1)
    ]


def _along(value: Any, scale: Scale, reference: str | None) -> float:
    if reference == "paper":  # a share of the plot
        return scale.start + value * (scale.end - scale.start)
    return scale.at(value)


def _scatter(sheet: Sheet, trace: Trace, x: Scale, y: Scale) -> None:
    """Lines, areas, marks and error bars of one trace."""
    points = [
        (x.at(a), y.at(b)) if a is not None and b is not None else None
        for a, b in zip(trace["x"], trace["y"], strict=True)
    ]
    there = [p for p in points if p]
    faint = trace.get("opacity", 1)
    if "from" in trace:
        below = [(x.at(a), y.at(b)) for a, b in zip(trace["x"], trace["from"], strict=True)]
        sheet.area([*there, *reversed(below)], trace["fillcolor"])
    elif trace.get("fill") and there:
        sheet.area(there, trace["fillcolor"])
    line = trace.get("line", {})
    if "lines" in trace["mode"] and line.get("width"):
        colour = line["color"] if faint == 1 else f"{line['color']}/{faint}"
        for part in _unbroken(points):
            sheet.line(part, colour, line["width"], line.get("dash", ""))
    for along in ("x", "y"):
        _error_bars(sheet, trace, along, x, y)
    if "markers" in trace["mode"]:
        marker = trace["marker"]
        sizes, symbols = (_each(marker[k], len(points)) for k in ("size", "symbol"))
        for point, size, symbol in zip(points, sizes, symbols, strict=True):
            if point and size:
                sheet.mark(point, symbol, size, _mark_colour(trace))


def _error_bars(sheet: Sheet, trace: Trace, along: str, x: Scale, y: Scale) -> None:
    bars = trace.get(f"error_{along}")
    if not bars:
        return
    points = zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True)
    for a, b, more, less in points:
        if more or less:
            ends = (
                ((a - less, b), (a + more, b)) if along == "x" else ((a, b - less), (a, b + more))
            )
            sheet.line([(x.at(p), y.at(q)) for p, q in ends], bars["color"], bars["thickness"])


def _bars(sheet: Sheet, trace: Trace, place: int, count: int, x: Scale, y: Scale) -> None:
    """A trace of several, side by side at each name."""
    wide = abs(x.end - x.start) / len(x.names) * 0.78 / count
    for name, value in zip(trace["x"], trace["y"], strict=True):
        left = x.at(name) + (place - count / 2) * wide
        ends = sorted((y.at(0), y.at(value or 0.0)))
        size = (wide - 1, ends[1] - ends[0])
        sheet.box((left, ends[0]), size, trace["marker"]["color"], _striped(trace))


def _annotation(sheet: Sheet, note: dict, x: Scale, y: Scale) -> None:
    """A text at a point or a few pixels from it; a thin line leads from one that is further."""
    at = _along(note["x"], x, note.get("xref")), _along(note["y"], y, note.get("yref"))
    dx, dy = (note.get("ax", 0), note.get("ay", 0)) if note.get("showarrow") else (0, 0)
    font = note["font"]
    if note.get("arrowwidth"):
        sheet.line([at, (at[0] + dx, at[1] + dy)], note["arrowcolor"], note["arrowwidth"])
    anchor = {"left": "start", "center": "middle", "right": "end"}[note["xanchor"]]
    rise = {"top": 0.75, "middle": 0, "bottom": -0.75}[note["yanchor"]] * font["size"]
    sheet.text((at[0] + dx, at[1] + dy + rise), note["text"], font["color"], font["size"], anchor)


def _unbroken(points: Iterable[Point | None]) -> list[list[Point]]:
    """The parts of a line between its gaps."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if point:
            parts[-1].append(point)
        else:
            parts.append([])
    return parts


def _each(value: Any, count: int) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value] * count


def _mark_colour(trace: Trace) -> str:
    return trace["marker"].get("color") or trace["line"]["color"]


def _striped(trace: Trace) -> bool:
    return "pattern" in trace.get("marker", {})
