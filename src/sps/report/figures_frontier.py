"""The frontier: the path of every method through training in the plane of Pass@1 and Pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sps.algo.frontier import QUANTILES, Frontier, Gap, Standing
from sps.algo.passk import pass_at_k
from sps.diagnose.frontier import Paths, validation_paths
from sps.report.blocks import Cell, Figure, Table, axis, escape, percent, points
from sps.report.names import NAME_SIZE, Point, Spot, place_names
from sps.report.study import Study
from sps.report.style import Mark, marks


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
    spans = {s.name: _seed_span(paths, s.name) for s in found.standings}
    ranges = _room(found, spans)
    data = [
        _path(s, paths.steps[s.name], found, style[s.name], spans[s.name]) for s in found.standings
    ]
    data.append(_star(found))
    lines = {s.name: [found.base, *s.points] for s in found.standings} | {"base": [found.base]}
    colours = {s.name: f"@{style[s.name].colour}" for s in found.standings} | {"base": "@grey"}
    level = ((ranges[0][0], found.base[1]), (ranges[0][1], found.base[1]))
    bars = [bar for trace in data for bar in _bar_ends(trace)]
    spots = place_names(lines, [level, *bars], ranges)
    layout: dict[str, Any] = {
        "xaxis": axis("Pass@1: right at the first try", tickformat=".1~%", range=ranges[0]),
        "yaxis": axis(
            f"Pass@{found.k}: right at least once in {found.k} tries",
            tickformat=".1~%",
            range=ranges[1],
        ),
        "showlegend": False,
        "hovermode": "closest",
        "shapes": [_level(found.base[1])],
        "annotations": [
            *(_label(name, lines[name][-1], spots[name], colours[name]) for name in spots),
            _small_print(_key(paths)),
        ],
    }
    note = (
        f"Up and to the right is better. Each line follows a method on {len(paths.questions)} "
        "validation questions from the base (star) to its last step; there is a mark at every "
        "validation. Training can stop at any of them, so at a given Pass@1 the higher line is the "
        f"better method. Below the dashed line Pass@{found.k} is worse than the base's."
    )
    if _seeds(paths) > 1:
        note += f" Bars span the {_seeds(paths)} seeds."
    said = " ".join(gap_sentence(gap, found.k) for gap in found.gaps)
    return Figure(
        "frontier",
        f"The frontier: Pass@{found.k} against Pass@1 during training",
        f"{note} {said}".strip(),
        data,
        layout,
        height=460,
        wide=True,
    )


def _seeds(paths: Paths) -> int:
    return next(iter(paths.correct.values())).shape[1]


def _key(paths: Paths) -> str:
    """How marks and bars are read, in a few words."""
    gaps = {b - a for steps in paths.steps.values() for a, b in pairwise([0, *steps])}
    last = max(steps[-1] for steps in paths.steps.values())
    each = f"every {gaps.pop()} steps" if len(gaps) == 1 else "at each validation"
    bars = f"; bars span {_seeds(paths)} seeds" if _seeds(paths) > 1 else ""
    return f"a mark {each}, to step {last}{bars}"


def _seed_span(paths: Paths, name: str) -> np.ndarray:
    """Lowest and highest seed [end, step, axis], at the base first, where all are the same."""
    counts = paths.correct[name]  # [step, seed, question]
    xy = np.stack([pass_at_k(counts, paths.n, k).mean(-1) for k in (1, paths.n)], -1)
    base = np.array([pass_at_k(paths.base_Q, paths.n, k).mean() for k in (1, paths.n)])
    return np.stack([np.vstack([base, end]) for end in (xy.min(1), xy.max(1))])


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


def _small_print(text: str) -> dict[str, Any]:
    """In the corner that paths leave empty: they lead to the right, and downwards."""
    place = {"xref": "paper", "x": 0.01, "xanchor": "left", "yref": "paper", "y": 0.01}
    font = {"color": "@muted", "size": 11.5}
    return {**place, "yanchor": "bottom", "text": text, "showarrow": False, "font": font}


def _bar_ends(trace: dict[str, Any]) -> list[tuple[Point, Point]]:
    """The error bars of a path, as lines."""
    if "error_x" not in trace:
        return []
    across, up = trace["error_x"], trace["error_y"]
    out = []
    for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        out.append(((x - across["arrayminus"][i], y), (x + across["array"][i], y)))
        out.append(((x, y - up["arrayminus"][i]), (x, y + up["array"][i])))
    return out


def gap_sentence(gap: Gap, k: int) -> str:
    """One comparison in words."""
    mean, low, high = (f"{100 * v:+.1f}" for v in gap.mean)
    interval = f"{mean} points [{low}, {high}]"
    if gap.verdict == "tied":
        return f"At equal Pass@1, {gap.name} and {gap.minus} are tied on Pass@{k} ({interval})."
    word = "higher" if gap.verdict == "above" else "lower"
    return f"At equal Pass@1, {gap.name} has {word} Pass@{k} than {gap.minus}: {interval}."


def _path(
    one: Standing, steps: list[int], found: Frontier, mark: Mark, span: np.ndarray
) -> dict[str, Any]:
    """The line of a method, with a bar from the lowest to the highest seed at each mark."""
    x, y = zip(found.base, *one.points, strict=True)
    said = f"step %{{customdata}}: Pass@1 %{{x:.1%}}, Pass@{found.k} %{{y:.1%}}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(x),
        "y": list(y),
        "name": one.name,
        "line": {"color": f"@{mark.colour}", "width": 2.5, "dash": mark.dash},
        # The star stands for the first. Sizes in a list would make them see-through.
        "marker": {
            "symbol": mark.symbol,
            "color": f"@{mark.colour}",
            "size": [0] + [8] * len(steps),
            "opacity": 1,
        },
        "error_x": _seed_bars(x, span[..., 0], mark),
        "error_y": _seed_bars(y, span[..., 1], mark),
        "customdata": [0, *steps],
        "hovertemplate": f"{said}<extra>{escape(one.name)}</extra>",
        "cliponaxis": False,
    }


def _seed_bars(mean: Sequence[float], ends: np.ndarray, mark: Mark) -> dict[str, Any]:
    low, high = np.maximum(np.array(mean) - ends[0], 0), np.maximum(ends[1] - np.array(mean), 0)
    look = {"type": "data", "symmetric": False, "thickness": 1, "width": 0}
    return {
        **look,
        "color": f"@{mark.colour}/0.45",
        "array": high.tolist(),
        "arrayminus": low.tolist(),
    }


def _star(found: Frontier) -> dict[str, Any]:
    x, y = found.base
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "y": [y],
        "name": "base",
        "marker": {"symbol": "star", "color": "@grey", "size": 16},
        "hovertemplate": f"Pass@1 %{{x:.1%}}, Pass@{found.k} %{{y:.1%}}<extra>base</extra>",
        "cliponaxis": False,
    }


def _room(found: Frontier, spans: dict[str, np.ndarray]) -> list[list[float]]:
    """Both axes' ranges: all of the paths and bars, and room for names at the ends of paths."""
    ends = np.concatenate([span.reshape(-1, 2) for span in spans.values()])
    low, high = ends.min(0), ends.max(0)
    wide = np.where(high > low, high - low, 0.01)
    (left, under), (right, over) = low - (0.05, 0.08) * wide, high + (0.10, 0.08) * wide
    return [[float(left), float(right)], [float(under), float(over)]]


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
