"""What became of the questions: accuracy buckets, measures at each validation, gained and lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sps.algo.passk import BUCKETS, Counts
from sps.diagnose.questions import buckets, gained_and_lost, pass_curve, seeds_diversity
from sps.diagnose.read import Evaluation
from sps.reporting.blocks import Figure, Table, axis, band, line, percent_axis
from sps.reporting.figures_squeeze import Diagnoses
from sps.reporting.study import Study, Subject
from sps.reporting.style import marks

Measure = Callable[[Sequence[Evaluation]], Sequence[float] | None]  # of a step, over its seeds


def bucket_figure(study: Study) -> Figure | None:
    """Questions by accuracy: methods side by side, or first against last validation of a run."""
    style = marks(s.name for s in study.subjects)
    bars: list[tuple[str, list[float], str]] = []
    with_counts = [s for s in study.subjects if s.counts]
    if len(with_counts) > 1:
        main = [s for s in with_counts if s.runs or s.is_base()]
        for s in main:
            mark = style[s.name]
            bars.append((s.name, _buckets(s.counts), f"@{mark.colour}/{mark.shade}"))
    elif study.subjects and len(steps := _validations(study.subjects[0])) > 1:
        for at, colour in ((min(steps), "@grey"), (max(steps), "@blue")):
            counts = [(e.correct, e.n) for e in steps[at]]
            bars.append((f"step {at}", _buckets(counts), colour))
    if not bars:
        return None
    data: list[dict[str, Any]] = []
    for name, counts, colour in bars:
        bar = {"type": "bar", "name": name, "x": list(BUCKETS), "y": counts}
        data.append(bar | {"marker": {"color": colour}, "hovertemplate": "%{y:.1f}"})
    layout = {
        "barmode": "group",
        "bargap": 0.22,
        "xaxis": axis("right samples of a question, per cent", type="category", showgrid=False),
        "yaxis": axis("questions", rangemode="tozero"),
    }
    note = (
        "Questions by their share of right samples; those with none and with all stand alone, the "
        "others are above 0 and up to 25 %, and so on. Squeezing drains the middle: it moves "
        "questions to the right end and others back to 0. Mean over seeds."
    )
    return Figure("buckets", "Questions by accuracy", note, data, layout, height=340, wide=True)


def passk_over_steps(study: Study) -> list[Figure | None]:
    """Pass@1 and Pass@max-k at each validation."""
    found = [e for s in study.subjects for run in s.runs for e in run.split("validation")]
    top = min((e.n for e in found), default=0)
    return [_pass_over_steps(study, k) for k in sorted({1, top}) if top]


def _pass_over_steps(study: Study, k: int) -> Figure | None:
    def measure(seeds: Sequence[Evaluation]) -> Sequence[float] | None:
        return pass_curve([(e.correct, e.n) for e in seeds], [k]).get(k)

    note = f"Pass@{k} on the validation questions during training, over seeds, 95 % intervals."
    if k > 1:
        note += " In the paper more RL steps did not raise it."
    upright = percent_axis(f"Pass@{k}")
    return _over_steps(study, f"steps-{k}", f"Pass@{k} over training", note, upright, measure)


def diversity_over_steps(study: Study) -> list[Figure | None]:
    """Distinct right solutions and PCMD at each validation, for tasks that tell solutions apart."""
    on = "on the validation questions, over seeds, 95 % intervals."
    chance = "Chance that two right samples of a question are different solutions, "
    alone = " Over the questions with two right samples of every seed."
    rows = (
        ("distinct", "Distinct right solutions over training",
         f"Different right solutions a question, {on}",
         axis("solutions a question", rangemode="tozero")),
        ("pcmd", "PCMD over training", f"{chance}{on}{alone}", percent_axis("PCMD")),
    )  # fmt: skip

    def measure(name: str) -> Measure:
        return lambda seeds: seeds_diversity(seeds).get(name)

    return [_over_steps(study, *row, measure(row[0])) for row in rows]


def _over_steps(
    study: Study, id: str, title: str, note: str, upright: dict[str, Any], measure: Measure
) -> Figure | None:
    """A measure with its interval at each step that every seed of a method has validated."""
    style, data = marks(s.name for s in study.subjects), []
    for s in study.subjects:
        steps = _validations(s)
        found = {step: value for step in steps if (value := measure(steps[step]))}
        if len(found) < 2:
            continue
        mark = style[s.name]
        mean, low, high = zip(*found.values(), strict=True)
        dots = {"mode": "lines+markers", "marker": {"symbol": mark.symbol, "size": 7}}
        data.append(band([*found], low, high, mark.colour, s.name, 0.12))
        data.append(line([*found], mean, s.name, mark.colour, mark.dash, **dots))
        data[-1] |= {"legendgroup": s.name}
        if "tickformat" in upright:
            data[-1] |= {"hovertemplate": "%{y:.1%}"}
    layout = {"xaxis": axis("RL step"), "yaxis": upright, "showlegend": len(data) > 2}
    return Figure(id, title, note, data, layout, height=300) if data else None


def _validations(subject: Subject) -> dict[int, list[Evaluation]]:
    """By step, those of all seeds; steps that a seed lacks are left out."""
    seeds = [
        {e.step: e for e in run.split("validation") if e.step is not None} for run in subject.runs
    ]
    shared = set.intersection(*map(set, seeds)) if seeds else set()
    return {step: [seed[step] for seed in seeds] for step in sorted(shared)}


def gained_table(study: Study, diagnoses: Diagnoses) -> Table | None:
    """Questions gained and lost against the base, or against the run's first evaluation."""
    rows: list[list] = []
    base = next((s for s in study.subjects if s.is_base() and s.counts), None)
    if base is not None:
        for s in study.subjects:
            if s is not base and s.counts:
                rows.append(_gained_over_seeds(base, s))
    else:
        for name, found in diagnoses.items():
            for r in found.get("questions") or []:
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


def _buckets(counts: Sequence[Counts]) -> list[float]:
    found = [buckets(correct, n) for correct, n in counts]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]


def _gained_over_seeds(base: Subject, other: Subject) -> list:
    (before, n_before), *_ = base.counts
    found = [gained_and_lost(before, n_before, after, n) for after, n in other.counts]
    seeds = len(found)
    cells = [sum(len(f[k]) for f in found) / seeds for k in ("gained", "lost")]
    cells += [sum(f[k] for f in found) / seeds for k in ("kept", "never")]
    return [other.name, *(f"{c:g}" if seeds == 1 else f"{c:.1f}" for c in cells)]
