"""The frontier: the path of every method through training in the plane of Pass@1 and Pass@k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sps.algo.frontier import NO_RANGE, QUANTILES, Frontier, Gap, Standing
from sps.algo.passk import pass_at_k
from sps.diagnose.frontier import TEMPERED_BASE, Paths, validation_paths
from sps.reporting.blocks import Cell, Figure, Table, percent, points
from sps.reporting.plane import Line, draw_lines, words_of_heats
from sps.reporting.study import Study
from sps.reporting.style import Mark, marks
from sps.reporting.svg import Point


def frontier_blocks(study: Study) -> list[Figure | Table]:
    """The paths in the plane of Pass@1 and Pass@k, and the verdicts; nothing without validation."""
    runs = {s.name: s.runs for s in study.trained()}
    paths = validation_paths(runs)
    if paths is None:
        return _recorded(study)
    study.missing += [("frontier", text) for text in paths.left_out]
    found = paths.compare()
    lines = [_line(paths, one, found.base) for one in found.standings]
    figure = _figure(study, lines, found.k, len(paths.questions), found.gaps)
    return [figure, _table(paths, found)]


def _recorded(study: Study) -> list[Figure | Table]:
    """The paths of results that kept only means; they have no verdicts."""
    known = {s.name: s.means for s in study.subjects if len(s.means) > 1 and 0 in s.means}
    if not known:
        return []
    k = min(max(curve) for means in known.values() for curve in means.values())
    lines = []
    for name, means in known.items():
        points = [(means[step][1], means[step][k]) for step in sorted(means)]
        lines.append(Line(name, sorted(means)[1:], points, points, points))
    questions = next((s.facts["questions"] for s in study.subjects if "questions" in s.facts), 0)
    return [_figure(study, lines, k, questions)]


def frontier_verdict(study: Study) -> str:
    """The method that is furthest above the first, in words; empty without validation."""
    paths = validation_paths({s.name: s.runs for s in study.trained()})
    found = paths.compare() if paths else None
    if not found or not found.gaps:
        return ""
    told = [gap for gap in found.gaps if gap.verdict != NO_RANGE] or found.gaps
    return gap_sentence(max(told, key=lambda gap: gap.mean[0]), found.k)


def _figure(
    study: Study, lines: list[Line], k: int, questions: int, gaps: Sequence[Gap] = ()
) -> Figure:
    seeds = max(len(s.runs) or s.facts.get("seeds", 1) for s in study.subjects)
    style = marks(s.name for s in study.subjects) | {TEMPERED_BASE: Mark("grey", "circle", "dot")}
    data, layout = draw_lines(lines, k, seeds, style)
    note = (
        f"Up and to the right is better. Each line follows a method on {questions} validation "
        "questions from the base (star) to its last step; there is a mark at every validation. "
        "Training can stop at any of them, so at a given Pass@1 the higher line is the better "
        f"method. Below the dashed line Pass@{k} is worse than the base's."
    )
    note += _mixes_note(study, lines) + _heats_note(lines)
    bars = f" Bars span the {seeds} seeds." if any(line.low != line.high for line in lines) else ""
    said = " ".join(gap_sentence(gap, k) for gap in gaps)
    title = f"The frontier: Pass@{k} against Pass@1 during training"
    text = f"{note}{bars} {said}".strip()
    return Figure("frontier", title, text, data, layout, height=460, wide=True)


def _mixes_note(study: Study, lines: list[Line]) -> str:
    """Which methods end mixed, and with how much of the base."""
    mixed = [line.name for line in lines if "mixed" in line.steps]
    if not mixed:
        return ""
    shares = {s.name: [f"{run.base_share():g}" for run in s.runs] for s in study.subjects}
    told = [f"{name} ({', '.join(own)})" if (own := shares[name]) else name for name in mixed]
    mark = "last full mark" if _heats(lines) else "last mark"
    note = f" The {mark} of {', '.join(told)} is its weights mixed with the base's"
    note += f"{' (the share in brackets)' * (told != mixed)}."
    runs = [run for s in study.subjects if s.name in mixed for run in s.runs]
    chosen = any(run.setting("checkpoint", "mix") == "auto" for run in runs)
    return note + " The base's share in them was chosen on these questions." * chosen


def _heats_note(lines: list[Line]) -> str:
    """At which temperatures paths go on."""
    if not (heats := ", ".join(_heats(lines))):
        return ""
    own = any(line.name == TEMPERED_BASE for line in lines)
    if _heats([line for line in lines if line.name != TEMPERED_BASE]):
        way = f"Dotted it goes on through other sampling temperatures ({heats})"
        way += ", as the base does from the star" * own
    else:
        way = f"Dotted is the base at other sampling temperatures ({heats})"
    return f" {way}: sampling colder sharpens without training."


def _heats(lines: list[Line]) -> list[str]:
    return words_of_heats(point for line in lines for point in line.steps)


def _line(paths: Paths, one: Standing, base: Point) -> Line:
    """A method with the lowest and the highest of its seeds; at the base all are the same."""
    counts = paths.correct[one.name]  # [step, seed, question]
    xy = np.stack([pass_at_k(counts, paths.n, k).mean(-1) for k in (1, paths.n)], -1)
    low, high = ([base, *map(tuple, end.tolist())] for end in (xy.min(1), xy.max(1)))
    return Line(one.name, paths.steps[one.name], [base, *one.points], low, high)


def gap_sentence(gap: Gap, k: int) -> str:
    """One comparison in words."""
    if gap.verdict == NO_RANGE:
        return (
            f"{gap.name} and {gap.minus} have {NO_RANGE} of Pass@1: one of them is never above the "
            "base there."
        )
    mean, low, high = (f"{100 * v:+.1f}" for v in gap.mean)
    interval = f"{mean} points [{low}, {high}]"
    if gap.verdict == "tied":
        return f"At equal Pass@1, {gap.name} and {gap.minus} are tied on Pass@{k} ({interval})."
    word = "higher" if gap.verdict == "above" else "lower"
    return f"At equal Pass@1, {gap.name} has {word} Pass@{k} than {gap.minus}: {interval}."


def _not_the_base(found: Frontier) -> str:
    """Where its own path at other temperatures ends before those of the methods."""
    own = [one for one in found.standings if one.name == TEMPERED_BASE]
    short = own and own[0].reach < found.range[1]
    return "; the base at other temperatures counts as 0 where it does not reach" if short else ""


def _table(paths: Paths, found: Frontier) -> Table:
    """What the figure's verdicts are made of."""
    gaps = {gap.name: gap for gap in found.gaps}
    reference, (base, level) = found.standings[0].name, found.base
    rows: list[list[Cell]] = []
    for one in found.standings:
        gap = gaps.get(one.name)
        free = percent([base + v for v in one.free_gain])
        cells: list[Cell] = [None] * (2 + len(QUANTILES)) if gaps else []
        if gap and gap.verdict == NO_RANGE:
            cells[1] = NO_RANGE
        elif gap:
            cells = [percent(gap.mean), gap.verdict, *map(percent, gap.at)]
        rows.append([one.name, points(one.reach), free, percent(one.area), *cells])
    low, high = (points(v) for v in found.range)
    note = (
        f"On {len(paths.questions)} validation questions; the base has Pass@1 {points(base)} and "
        f"Pass@{found.k} {points(level)}. A path is straight between validations; its envelope is "
        f"the best Pass@{found.k} at that Pass@1 or more. Without loss: the largest Pass@1 with "
        f"Pass@{found.k} not below the base's. Mean: of the envelope from Pass@1 {low} to {high}, "
        f"which all methods reach{_not_the_base(found)}. 95 % intervals over questions and seeds."
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
