"""A model at several sampling temperatures: what sharpening gives without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sps.algo.passk import paired_rows
from sps.evaluation.scores import Scores
from sps.evaluation.tables import cell, not_judged, shown_ks
from sps.run.reading import read_json

Row = dict[str, Any]  # of one temperature
Record = dict[str, list[Row]]  # by benchmark; the usual temperature first


def temperature_record(found: Mapping[float, Mapping[str, Scores]]) -> Record:
    """Scores at each temperature, less those at the first one, paired by question."""
    first, *_ = found
    return {
        name: [_row(heat, scores[name], usual) for heat, scores in found.items()]
        for name, usual in found[first].items()
    }


def _row(heat: float, scores: Scores, usual: Scores) -> Row:
    n, rows = scores.n, []
    if scores is not usual:
        rows = paired_rows([usual.counts], [scores.counts], sorted({1, n}))
    return {
        "temperature": heat,
        "questions": len(scores.ids),
        "n": n,
        "pass_at_k": {str(k): list(scores.pass_at_k(k)) for k in sorted({1, *shown_ks(n)})},
        "less": {str(row["k"]): {k: row[k] for k in ("delta", "verdict", "p")} for row in rows},
        "not_judged": not_judged(scores),
    }


def holds(file: Path, now: Record) -> bool:
    """Whether a stored record has what is now known of its first temperature."""
    try:
        before = read_json(file)
        return all(before[name][0] == rows[0] for name, rows in now.items())
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False


def temperature_table(title: str, record: Record) -> str:
    """For each benchmark a row a temperature, and what training has to beat."""
    lines = [f"# {title} at several temperatures"]
    for name, rows in record.items():
        usual, *others = rows
        first, ks = f"T = {usual['temperature']:g}", [*usual["pass_at_k"]]
        ends = sorted({"1", ks[-1]}, key=int)
        head = [f"{name}, {usual['questions']} questions", *(f"Pass@{k}" for k in ks)]
        head += [*(f"Pass@{k} - {first}" for k in ends), "not judged"]
        lines += ["", f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
        for row in rows:
            cells = [cell(row["pass_at_k"][k]) for k in ks]
            cells += [_points(row["less"][k]) if row["less"] else "" for k in ends]
            shown = " | ".join([*cells, row["not_judged"]])
            lines.append(f"| T = {row['temperature']:g} | {shown} |")
        lines += ["", f"{name}: {_advice(usual, others)}"]
    lines += ["", "Differences are in points, paired by question, with 95 % intervals for each."]
    return "\n".join(lines) + "\n"


def _advice(usual: Row, others: Sequence[Row]) -> str:
    """Of the temperatures that measurably raise Pass@1 and do not measurably lower Pass@n, the one
    with the highest Pass@1."""
    first, n = f"T = {usual['temperature']:g}", str(usual["n"])
    kept = [row for row in others if row["less"]["1"]["verdict"] == "better"]
    kept = [row for row in kept if row["less"][n]["verdict"] != "worse"]
    if not kept:
        cost = "" if n == "1" else f" without measurably less Pass@{n}"
        return f"none of these has measurably more Pass@1 than {first}{cost}."
    best = max(kept, key=lambda row: row["pass_at_k"]["1"][0])
    gained, lost = (_points(best["less"][k]) for k in ("1", n))
    cost = "" if n == "1" else f", with Pass@{n} {best['less'][n]['verdict']} ({lost})"
    return (
        f"T = {best['temperature']:g} has a Pass@1 of {100 * best['pass_at_k']['1'][0]:.1f}, "
        f"{gained} over {first}{cost}, and no training. A trained model is worth what it adds to "
        "this."
    )


def _points(found: Mapping[str, Any]) -> str:
    delta, low, high = (100 * value for value in found["delta"])
    return f"{delta:+.1f} [{low:+.1f}, {high:+.1f}]"
