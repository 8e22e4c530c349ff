"""The summary: one sentence, no bolder than the numbers, and a small table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sps.diagnose.frontier import MIXED
from sps.diagnose.questions import pass_curve, seeds_diversity
from sps.diagnose.read import Evaluation, RunFolder
from sps.reporting.blocks import Cell, Table, percent, points, triple
from sps.reporting.figures_frontier import frontier_verdict
from sps.reporting.study import Study, Subject

_ALIKE = 0.01  # of Pass@k: methods this near to each other are told apart by Pass@1
_NOTHING = "There are no scores yet; what has been recorded so far is below."


def summary(study: Study) -> tuple[str, Table | None]:
    """What stands at the top of the page."""
    top = study.top_k()
    if study.comparison:
        sentence = (_compared(study, top) if top else "") or frontier_verdict(study)
        return sentence or _NOTHING, _method_table(study, top) if top else None
    (subject,) = study.subjects
    return _solved(subject) if subject.curve else _NOTHING, _run_table(subject.runs[0])


def _compared(study: Study, top: int) -> str:
    """The trained method with the largest Pass@k against the first one, or one against the base.

    Within `_ALIKE` of the largest, the one with the larger Pass@1.
    """
    pairs = {(p["a"], p["b"], p["k"]): p for p in study.paired}
    trained = [s.name for s in study.scored() if s.runs and not s.is_base()]
    for a in _references(study):
        others = [b for b in trained if b != a and (a, b, 1) in pairs and (a, b, top) in pairs]
        if others:
            best = max(pairs[a, b, top]["delta"][0] for b in others)
            alike = [b for b in others if best - pairs[a, b, top]["delta"][0] < _ALIKE]
            b = max(alike, key=lambda name: pairs[a, name, 1]["delta"][0])
            of = f" (the highest Pass@{top} of {len(others)} methods other than {a}"
            of += f", and of {len(alike)} within a point the highest Pass@1" * (len(alike) > 1)
            of = f"{of})" if len(others) > 1 else ""
            parts = [_part(pairs[a, b, k]) for k in dict.fromkeys((top, 1))]
            return f"{b}{of} against {a}: {', '.join(parts)}."
    return ""


def _references(study: Study) -> list[str]:
    """What methods are compared with, the base last."""
    names = dict.fromkeys(p["a"] for p in study.paired)
    return sorted(names, key=lambda name: name.lower() == "base")


def _part(pair: dict[str, Any]) -> str:
    mean, low, high = pair["delta"]
    interval = f"[{points(low)}, {points(high)}]"
    if pair["verdict"] == "tied":
        sign = "+" if round(mean, 3) > 0 else ""
        return f"Pass@{pair['k']} is tied ({sign}{points(mean)} points {interval})"
    word = "higher" if pair["verdict"] == "better" else "lower"
    return f"Pass@{pair['k']} is {points(abs(mean))} points {word} {interval}"


def _method_table(study: Study, top: int) -> Table:
    reference = next(iter(_references(study)), None)
    pairs = {(p["b"], p["k"]): p for p in study.paired if p["a"] == reference}
    ks = [*dict.fromkeys((1, top))]
    rows: list[list[Cell]] = []
    for s in study.scored():
        told = s.facts.get("distinct")
        row: list[Cell] = [s.name, *(percent(s.curve[k]) for k in ks)]
        found = [pairs.get((s.name, k)) for k in ks] if reference else []
        row += [percent(p["delta"]) if p else None for p in found]
        rows.append([*row, triple(told) if told else None])
    columns = ["method", *(f"Pass@{k}" for k in ks)]
    columns += [f"Pass@{k} minus {reference}" for k in ks] if reference else []
    columns.append("distinct right solutions")
    if all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    once = max((len(s.runs) for s in study.trained()), default=1) == 1
    over = (
        "One seed a method: the intervals cover questions, not repeats of training."
        if once
        else "95 % intervals over questions and seeds."
    )
    note = f"On the test questions, per cent and points. {over}"
    return Table("summary", "Summary", note, columns, rows)


def _solved(s: Subject) -> str:
    top = max(s.curve)
    one, many = (f"{p[0]} % [{p[1]}, {p[2]}]" for p in map(percent, (s.curve[1], s.curve[top])))
    count = len(s.counts[0][0])
    return f"{s.name} solves {one} of {count} test questions with one sample, {many} with {top}."


def _run_table(run: RunFolder) -> Table | None:
    """A run's first validation beside its last."""
    found = [e for e in run.split("validation") if e.step is not None and e.correct]
    if len(found) < 2:
        return None
    ends = found[0], found[-1]
    measures = [_measures(e) | _entropy(run, last=e is ends[-1]) for e in ends]
    columns = ["on the validation questions", *(f"step {e.step}" for e in ends)]
    note = "95 % intervals over questions. Entropy: mean over the first and the last RL steps."
    if (share := run.base_share()) and (mixed := run.split(MIXED)):
        measures.append(_measures(mixed[-1]))
        columns.append(f"mixed, {share:g} of the base")
        note += " The mix is what the run ended with, and what the test questions were asked."
    rows: list[list[Cell]] = [
        [name, *(each.get(name) for each in measures)] for name in measures[0] | measures[1]
    ]
    return Table("summary", "Summary", note, columns, rows)


def _measures(e: Evaluation) -> dict[str, Cell]:
    curve = pass_curve([(e.correct, e.n)])
    out: dict[str, Cell] = {f"Pass@{k}, %": percent(curve[k]) for k in dict.fromkeys((1, e.n))}
    if told := seeds_diversity([e]):
        out["distinct right solutions a question"] = triple(told["distinct"])
        out["PCMD, %"] = percent(told["pcmd"]) if told["pcmd"] else None
    greedy = e.summary.get("greedy_logprob")
    if isinstance(greedy, int | float):
        out["log p(greedy answer), nats"] = f"{greedy:.2f}"
    return out


def _entropy(run: RunFolder, last: bool) -> dict[str, Cell]:
    values = [r["entropy"] for r in run.of_kind("rl") if isinstance(r.get("entropy"), int | float)]
    size = max(1, len(values) // 20)
    part: Sequence[float] = values[-size:] if last else values[:size]
    return {"token entropy, nats": f"{sum(part) / len(part):.2f}"} if part else {}
