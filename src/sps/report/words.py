"""The result in a few sentences, computed from the numbers and no bolder than they are."""

from __future__ import annotations

from typing import Any

from sps.diagnose.read import RunFolder
from sps.report.blocks import points
from sps.report.figures_frontier import frontier_verdicts
from sps.report.figures_squeeze import Diagnoses
from sps.report.study import Study, Subject


def headline(study: Study, diagnoses: Diagnoses) -> list[str]:
    """At most eight sentences, the most important first."""
    said = _comparison(study) if study.comparison else _single(study, diagnoses)
    if not said:
        said = ["There are no scores yet; what the run has recorded so far is below."]
    said = [*frontier_verdicts(study), *said][:7]
    if study.trained() and max(len(s.runs) for s in study.trained()) == 1 and study.comparison:
        said.append("One seed a method: the intervals cover questions, not repeats of training.")
    return said


def _comparison(study: Study) -> list[str]:
    top = study.top_k()
    if top is None or top == 1:
        return []
    pairs = {(p["a"], p["b"], p["k"]): p for p in study.paired}
    by_name = {s.name: s for s in study.scored()}
    base = next((s for s in by_name.values() if s.name.lower() == "base"), None)
    others = [s for s in by_name.values() if s is not base]
    said = []
    if base is not None and others:
        for s in (s for s in others if s.runs):
            one, many = pairs.get((base.name, s.name, 1)), pairs.get((base.name, s.name, top))
            if one and many:
                said.append(_against_base(s, base, one, many, top))
    references = [p["a"] for p in study.paired if base is None or p["a"] != base.name]
    for reference in dict.fromkeys(references):
        for s in sorted(others, key=lambda s: not s.runs):  # trained methods, then other uses
            one, many = pairs.get((reference, s.name, 1)), pairs.get((reference, s.name, top))
            if one and many:
                said.append(_against(reference, s.name, one, many, top))
    return said


def _against_base(s: Subject, base: Subject, one: dict, many: dict, top: int) -> str:
    moved = {"better": "raised", "worse": "lowered", "tied": "moved"}[one["verdict"]]
    first = f"{s.name} {moved} Pass@1 from {points(base.curve[1][0])} to {points(s.curve[1][0])} %"
    first += " (within noise)" if one["verdict"] == "tied" else ""
    size = points(abs(many["delta"][0]))
    interval = f"[{points(many['delta'][1])}, {points(many['delta'][2])}]"
    if many["verdict"] == "worse":
        second = f"and lost {size} points of Pass@{top} {interval}"
    elif many["verdict"] == "better":
        second = f"and gained {size} points of Pass@{top} {interval}"
    else:
        change = f"{100 * many['delta'][0]:+.1f} points {interval}"
        second = f"and kept Pass@{top} as far as can be told ({change})"
    return f"{first} {second}."


def _against(reference: str, name: str, one: dict, many: dict, top: int) -> str:
    def part(p: dict[str, Any], k: int) -> str:
        mean, low, high = (points(v) for v in p["delta"])
        if p["verdict"] == "tied":
            return f"ties on Pass@{k} ({100 * p['delta'][0]:+.1f} points [{low}, {high}])"
        word = "is ahead" if p["verdict"] == "better" else "is behind"
        return f"{word} on Pass@{k} by {mean.lstrip('-')} points [{low}, {high}]"

    return f"Against {reference}, {name} {part(many, top)} and {part(one, 1)}."


def _single(study: Study, diagnoses: Diagnoses) -> list[str]:
    said = []
    for s in study.subjects:
        if s.curve:
            top = max(s.curve)
            count = len(s.counts[0][0])
            one, many = s.curve[1], s.curve[top]
            said.append(
                f"{s.name} solves {points(one[0])} % [{points(one[1])}, {points(one[2])}] of "
                f"{count} test questions at the first try and {points(many[0])} % "
                f"[{points(many[1])}, {points(many[2])}] within {top}."
            )
        said += _over_training(diagnoses.get(s.name) or {})
        said += [text for run in s.runs for text in _entropy(run)]
    return said


def _over_training(found: dict[str, Any]) -> list[str]:
    said = []
    for row in (r for r in found.get("questions") or [] if r.get("paired")):
        ends = [row["paired"][0], row["paired"][-1]]
        parts = []
        for p in ends if ends[0]["k"] != ends[1]["k"] else ends[:1]:
            before, after = row["curves"][0][str(p["k"])][0], row["curves"][-1][str(p["k"])][0]
            noise = ", within noise" if p["verdict"] == "tied" else ""
            parts.append(f"Pass@{p['k']} went from {points(before)} to {points(after)} %{noise}")
        said.append(f"From {row['before']} to {row['after']}, {' and '.join(parts)}.")
    greedy = [g for g in found.get("greedy") or [] if g["split"] == "validation"]
    if len(greedy) > 1:
        first, last = greedy[0]["greedy_logprob"], greedy[-1]["greedy_logprob"]
        word = "grew likelier" if last > first else "grew less likely"
        said.append(f"Greedy answers {word}: log p from {first:.2f} to {last:.2f}.")
    return said


def _entropy(run: RunFolder) -> list[str]:
    values = [r["entropy"] for r in run.of_kind("rl") if isinstance(r.get("entropy"), int | float)]
    if len(values) < 20:
        return []
    size = max(1, len(values) // 20)
    first, last = (sum(v) / len(v) for v in (values[:size], values[-size:]))
    word = "fell" if last < first else "rose"
    return [f"Token entropy {word} from {first:.2f} to {last:.2f} nats."]
