"""What became of the questions, and how different the answers are."""

from __future__ import annotations

from typing import Any

from sps.diagnose.questions import BUCKETS, accuracy_buckets, gained_and_lost
from sps.report.blocks import Figure, Table, axis, band, line, percent, percent_axis
from sps.report.figures_squeeze import Diagnoses
from sps.report.study import Study, Subject, seeds_curve
from sps.report.style import Mark, marks


def bucket_figure(study: Study, diagnoses: Diagnoses) -> Figure | None:
    """Questions by accuracy: methods side by side, or first against last evaluation of a run."""
    style = marks(s.name for s in study.subjects)
    bars: list[tuple[str, list[float], str]] = []
    with_counts = [s for s in study.subjects if s.counts]
    if len(with_counts) > 1:
        main = [s for s in with_counts if s.runs or s.name.lower() == "base"]
        bars = [(s.name, _buckets(s), style[s.name].colour) for s in main]
    else:
        for row in _stages(diagnoses):
            bars = [
                (row["before"], row["buckets_before"], "grey"),
                (row["after"], row["buckets_after"], "blue"),
            ]
    if not bars:
        return None
    data: list[dict[str, Any]] = []
    shades: dict[str, int] = {}
    for name, counts, colour in bars:
        shade = (1, 0.6, 0.35)[min(shades.get(colour, 0), 2)]
        shades[colour] = shades.get(colour, 0) + 1
        bar = {"type": "bar", "name": name, "x": list(BUCKETS), "y": counts}
        data.append(bar | {"marker": {"color": f"@{colour}/{shade}"}, "hovertemplate": "%{y:.1f}"})
    layout = {
        "barmode": "group",
        "bargap": 0.22,
        "xaxis": axis("share of right samples", type="category"),
        "yaxis": axis("questions", rangemode="tozero"),
    }
    note = (
        "Questions by their share of right samples; the first bucket holds those never solved, the "
        "others are (0, 0.1], (0.1, 0.2] and so on. Squeezing drains the middle: it moves "
        "questions to the right end and others back to 0. Mean over seeds."
    )
    return Figure("buckets", "Accuracy buckets", note, data, layout, height=340, wide=True)


def passk_over_steps(study: Study) -> list[Figure]:
    """Pass@1 and Pass@max-k at each validation."""
    ways = {s.name: way for s in study.subjects if len(way := validated(s)) > 1}
    if not ways:
        return []
    style = marks(s.name for s in study.subjects)
    top = max(set.intersection(*(set(curve) for way in ways.values() for curve in way.values())))
    return [_over_steps(ways, k, style) for k in sorted({1, top})]


def validated(subject: Subject) -> dict[int, dict[int, list[float]]]:
    """The Pass@k curve at each step that every seed has validated, over the seeds."""
    seeds = [
        {e.step: (e.correct, e.n) for e in run.split("validation") if e.step is not None}
        for run in subject.runs
    ]
    shared = set.intersection(*map(set, seeds)) if seeds else set()
    curves = {step: seeds_curve([seed[step] for seed in seeds]) for step in sorted(shared)}
    return {step: curve for step, curve in curves.items() if curve}


def _over_steps(ways: dict[str, Any], k: int, style: dict[str, Mark]) -> Figure:
    data = []
    for name, way in ways.items():
        mark, steps = style[name], list(way)
        mean, low, high = zip(*(way[s][k] for s in steps), strict=True)
        dots = {"mode": "lines+markers", "marker": {"symbol": mark.symbol, "size": 7}}
        data.append(band(steps, low, high, mark.colour, name, 0.12))
        entry = line(steps, list(mean), name, mark.colour, mark.dash, legendgroup=name, **dots)
        data.append(entry | {"hovertemplate": "%{y:.1%}"})
    note = f"Pass@{k} on the validation questions as training goes on, over seeds, 95 % intervals."
    if k > 1:
        note += " More steps need not raise it: that is the bound on exploration the paper saw."
    layout: dict[str, Any] = {"xaxis": axis("RL step"), "yaxis": percent_axis(f"Pass@{k}")}
    layout["showlegend"] = len(ways) > 1
    return Figure(f"steps-{k}", f"Pass@{k} over training", note, data, layout, height=300)


def gained_table(study: Study, diagnoses: Diagnoses) -> Table | None:
    """Questions gained and lost against the base, or against the run's first evaluation."""
    rows: list[list] = []
    base = next((s for s in study.subjects if s.name.lower() == "base" and s.counts), None)
    if base is not None:
        for s in study.subjects:
            if s is not base and s.counts:
                rows.append(_gained_over_seeds(base, s))
    else:
        for name, found in diagnoses.items():
            for r in (r for r in found.get("questions") or [] if "gained" in r):
                counts = [len(r["gained"]), len(r["lost"]), r["kept"], r["never"]]
                rows.append([f"{name}: {r['before']} to {r['after']}", *counts])
    if not rows:
        return None
    note = (
        "A question is solved if any of its samples is right. Gained: solved now, never by the "
        "base (or the first evaluation). Lost: the other way round. Chance alone moves questions "
        "both ways, so look at the balance. Means over seeds."
    )
    columns = ["method", "gained", "lost", "solved by both", "solved by neither"]
    return Table("gained", "Questions gained and lost", note, columns, rows)


def bound_table(diagnoses: Diagnoses) -> Table | None:
    """The empirical upper bound: union over checkpoints."""
    rows: list[list] = []
    for name, found in diagnoses.items():
        for r in found.get("questions") or []:
            bound = r["upper_bound"]
            if len(bound["each"]) > 1 and bound["rate"]:
                best = max(bound["each"])
                drawn = [bound["questions"], bound["samples"], best, bound["union"][-1]]
                rows.append([name, r["split"], *drawn, percent(bound["rate"])])
    if not rows:
        return None
    note = (
        "Questions that at least one evaluated checkpoint solved, out of all its samples: what the "
        "run has been able to solve at some time, whatever it can still solve."
    )
    columns = [
        "method",
        "split",
        "questions",
        "samples each",
        "best checkpoint",
        "union",
        "union, %",
    ]
    return Table("bound", "Empirical upper bound", note, columns, rows)


def diversity_table(diagnoses: Diagnoses) -> Table | None:
    """How different the answers to one question are."""
    rows: list[list] = []
    measures = ("jaccard", "edit", "jaccard_correct", "edit_correct")
    for name, found in diagnoses.items():
        for d in found.get("diversity") or []:
            cells = [None if d[m] is None else f"{100 * d[m]:.1f}" for m in measures]
            n, distinct = d["samples"] // d["questions"], f"{d['distinct_correct']:.2f}"
            rows.append([*_named(name, d), n, distinct, *cells])
    if not rows:
        return None
    note = (
        "Distinct right: different right texts a question, mean over all questions. Similarities, "
        "in per cent, are means over pairs of answers to one question, then over questions; lower "
        "is more diverse. Jaccard: shared word 3-grams over all. Edit: 1 minus Levenshtein "
        "distance in words over the longer length. The last two are over right answers only. "
        "Compare rows with equal n."
    )
    columns = ["method", "evaluation", "n", "distinct right", "Jaccard", "edit"]
    columns += ["Jaccard, right", "edit, right"]
    return Table("diversity", "Diversity of answers", note, columns, rows)


def _named(method: str, row: dict[str, Any]) -> tuple[str, str]:
    """Method and evaluation as other tables call them: 'grpo @100' and 'grpo T=1.2' on test."""
    split, _, heat = row["split"].partition(" at ")
    if heat:
        return f"{method} {heat}", split
    if row["name"] == split or row["step"] is None:
        return method, split
    at = f" @{row['step']}"
    return (method + at, split) if split == "test" else (method, split + at)


def _buckets(subject: Subject) -> list[float]:
    found = [accuracy_buckets(correct, n) for correct, n in subject.counts]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]


def _stages(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Question rows with two evaluations, validation last so that it wins."""
    rows = [r for found in diagnoses.values() for r in found.get("questions") or []]
    rows = [r for r in rows if r["before"] != r["after"]]
    return sorted(rows, key=lambda r: r["split"] == "validation")


def _gained_over_seeds(base: Subject, other: Subject) -> list:
    (before, n_before), *_ = base.counts
    found = [gained_and_lost(before, n_before, after, n) for after, n in other.counts]
    seeds = len(found)
    cells = [sum(len(f[k]) for f in found) / seeds for k in ("gained", "lost")]
    cells += [sum(f[k] for f in found) / seeds for k in ("kept", "never")]
    return [other.name, *(f"{c:g}" if seeds == 1 else f"{c:.1f}" for c in cells)]
