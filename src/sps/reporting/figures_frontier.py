"""The frontier: the path of every method through training in the plane of Pass@1 and Pass@k."""

from __future__ import annotations

from typing import Any

import numpy as np

from sps.algo.frontier import QUANTILES, Frontier, Gap, Standing, envelope
from sps.diagnose.frontier import Paths, validation_paths
from sps.reporting.blocks import Cell, Figure, Table, axis, escape, percent, points
from sps.reporting.study import Study
from sps.reporting.style import Mark, marks

# Corners, so that a name never lies on its own error bars; where that is, in shares of the plot.
_SIDES = {
    "top right": (0.07, 0.045),
    "bottom right": (0.07, -0.045),
    "top left": (-0.07, 0.045),
    "bottom left": (-0.07, -0.045),
}
_SHADED = 2  # methods, the reference and the best other: more areas on each other show nothing


def frontier_blocks(study: Study) -> list[Figure | Table]:
    """The paths in the plane of Pass@1 and Pass@k, and the verdicts; nothing without validation."""
    runs = {s.name: s.runs for s in study.trained()}
    paths = validation_paths(runs)
    if paths is None:
        return []
    study.missing += [("frontier", text) for text in paths.left_out]
    found = paths.compare()
    return [_figure(study, paths, found), _table(paths, found)]


def frontier_verdict(study: Study) -> str:
    """The method that is furthest above the first, in words; empty without validation."""
    paths = validation_paths({s.name: s.runs for s in study.trained()})
    found = paths.compare() if paths else None
    if not found or not found.gaps:
        return ""
    return gap_sentence(max(found.gaps, key=lambda gap: gap.mean[0]), found.k)


def _figure(study: Study, paths: Paths, found: Frontier) -> Figure:
    style = marks(s.name for s in study.subjects)
    shown = found.standings[:1] + sorted(found.standings[1:], key=lambda s: -s.area[0])
    floor = min(y for s in found.standings for _, y in [found.base, *s.points])
    data = [_shade(s, found.base, floor, style[s.name]) for s in shown[:_SHADED]]
    sides = label_sides({s.name: s.points[-1] for s in found.standings})
    for s in found.standings:
        line = _path(s, paths.steps[s.name], found, style[s.name])
        data.append(line | {"textposition": sides[s.name]})
    data.append(_star(found))
    layout: dict[str, Any] = {
        "xaxis": axis("Pass@1", tickformat=".1~%", range=_room(found)),
        "yaxis": axis(f"Pass@{found.k}", tickformat=".1~%"),
        "showlegend": False,
        "hovermode": "closest",
        "shapes": [_level(found.base[1])],
    }
    note = (
        f"Up and to the right is better. Each line follows a method on {len(paths.questions)} "
        "validation questions from the base (star) to its last step, whose number is shown; there "
        "is a mark at every validation. Training can stop at any of them, so at a given Pass@1 the "
        f"higher line is the better method. Below the dashed line Pass@{found.k} is worse than the "
        f"base's. Shaded: the best Pass@{found.k} of a method at that Pass@1 or more."
    )
    said = " ".join(gap_sentence(gap, found.k) for gap in found.gaps)
    return Figure(
        "frontier",
        f"The frontier: Pass@{found.k} against Pass@1 during training",
        f"{note} {said}".strip(),
        data,
        layout,
        height=520,
        wide=True,
    )


def label_sides(at: dict[str, tuple[float, float]]) -> dict[str, str]:
    """The corner of each path's end in which its name is farthest from the other ends and names."""
    xs, ys = zip(*at.values(), strict=True)
    wide, tall = (max(v) - min(v) or 1.0 for v in (xs, ys))
    spots = {n: ((x - min(xs)) / wide, (y - min(ys)) / tall) for n, (x, y) in at.items()}
    taken = list(spots.values())
    out = {}
    for name, (x, y) in spots.items():
        others = [s for s in taken if s != (x, y)]
        rooms = {}
        for side, (dx, dy) in _SIDES.items():
            near = (((x + dx - a) / 2) ** 2 + (y + dy - b) ** 2 for a, b in others)
            rooms[side] = min(near, default=1.0)
        out[name] = side = max(rooms, key=lambda s: (round(rooms[s], 3), s == "top right"))
        taken.append((x + _SIDES[side][0], y + _SIDES[side][1]))
    return out


def gap_sentence(gap: Gap, k: int) -> str:
    """One comparison in words."""
    mean, low, high = (f"{100 * v:+.1f}" for v in gap.mean)
    interval = f"{mean} points [{low}, {high}]"
    if gap.verdict == "tied":
        return f"At equal Pass@1, {gap.name} and {gap.minus} are tied on Pass@{k} ({interval})."
    word = "higher" if gap.verdict == "above" else "lower"
    return f"At equal Pass@1, {gap.name} has {word} Pass@{k} than {gap.minus}: {interval}."


def _path(one: Standing, steps: list[int], found: Frontier, mark: Mark) -> dict[str, Any]:
    """The line of a method with its name at its end."""
    x, y = zip(found.base, *one.points, strict=True)
    last = f"<b>{escape(one.name)}</b> {steps[-1]}"
    said = f"step %{{customdata}}: Pass@1 %{{x:.1%}}, Pass@{found.k} %{{y:.1%}}"
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "x": list(x),
        "y": list(y),
        "name": one.name,
        "line": {"color": f"@{mark.colour}", "width": 2.5, "dash": mark.dash},
        # The star stands for the first. Sizes in a list would make them see-through.
        "marker": {
            "symbol": mark.symbol,
            "color": f"@{mark.colour}",
            "size": [0] + [9] * len(steps),
            "opacity": 1,
        },
        "text": [""] * len(steps) + [last],
        "textfont": {"color": f"@{mark.colour}", "size": 13},
        "customdata": [0, *steps],
        "hovertemplate": f"{said}<extra>{escape(one.name)}</extra>",
        "cliponaxis": False,
    }


def _shade(one: Standing, base: tuple[float, float], floor: float, mark: Mark) -> dict[str, Any]:
    """The area under a method's envelope."""
    at = np.linspace(base[0], one.reach, 101)
    x, y = at.tolist(), envelope(np.array([[base, *one.points]]), at[None])[0].tolist()
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, x[-1], x[0]],
        "y": [*y, floor, floor],
        "fill": "toself",
        "fillcolor": f"@{mark.colour}/0.08",
        "line": {"width": 0, "color": f"@{mark.colour}/0"},
        "hoverinfo": "skip",
    }


def _star(found: Frontier) -> dict[str, Any]:
    x, y = found.base
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x],
        "y": [y],
        "name": "base",
        "text": ["<b>base</b>"],
        "textposition": "bottom center",
        "textfont": {"color": "@grey", "size": 13},
        "marker": {"symbol": "star", "color": "@grey", "size": 16},
        "hovertemplate": f"Pass@1 %{{x:.1%}}, Pass@{found.k} %{{y:.1%}}<extra>base</extra>",
        "cliponaxis": False,
    }


def _room(found: Frontier) -> list[float]:
    """The axis of Pass@1, with room for names at the ends of paths."""
    low = min(x for s in found.standings for x, _ in [found.base, *s.points])
    high = max(s.reach for s in found.standings)
    wide = high - low or 0.01
    return [low - 0.06 * wide, high + 0.14 * wide]


def _level(y: float) -> dict[str, Any]:
    look = {"color": "@grey/0.6", "width": 1, "dash": "dash"}
    place = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {**place, "line": look, "layer": "below"}


def _table(paths: Paths, found: Frontier) -> Table:
    """What the figure's verdicts are made of."""
    gaps = {gap.name: gap for gap in found.gaps}
    reference, (base, level) = found.standings[0].name, found.base
    rows: list[list[Cell]] = []
    for one in found.standings:
        gap = gaps.get(one.name)
        free = percent([base + v for v in one.free_gain])
        cells: list[Cell] = [None] * (2 + len(QUANTILES)) if gaps else []
        if gap:
            cells = [percent(gap.mean), gap.verdict, *map(percent, gap.at)]
        rows.append([one.name, points(one.reach), free, percent(one.area), *cells])
    low, high = (points(v) for v in found.range)
    note = (
        f"On {len(paths.questions)} validation questions; the base has Pass@1 {points(base)} and "
        f"Pass@{found.k} {points(level)}. A path is straight between validations; its envelope is "
        f"the best Pass@{found.k} at that Pass@1 or more. Without loss: the largest Pass@1 with "
        f"Pass@{found.k} not below the base's. Mean: of the envelope from Pass@1 {low} to {high}, "
        "which all methods reach. 95 % intervals over questions and seeds."
    )
    columns = ["method", "largest Pass@1", "Pass@1 without loss", f"mean Pass@{found.k}"]
    if gaps:
        columns += [f"minus {reference}", "verdict", *(f"at {100 * q:.0f} %" for q in QUANTILES)]
        note += (
            f" Minus {reference}: mean difference of the two envelopes from the base's Pass@1 to "
            "the largest that both reach, and at quarters of that range; these intervals hold for "
            "all methods at once."
        )
    title = f"Pass@{found.k} at equal Pass@1, per cent"
    return Table("frontier-table", title, note, columns, rows)
