"""`diagnose`: every analysis of one run, as plain JSON-able numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sps.algo.passk import BUCKETS, paired_rows
from sps.diagnose.cost import cost_by_stage
from sps.diagnose.questions import buckets, gained_and_lost, pass_curve, seeds_diversity
from sps.diagnose.read import Evaluation, RunFolder, read_run
from sps.diagnose.squeeze import greedy_logprobs, likelihood_quantiles, phase_moves


def diagnose(run_folder: Path) -> dict[str, Any]:
    """All of it; what cannot be had is said under 'missing' and never raised."""
    return diagnose_run(read_run(Path(run_folder)))


def diagnose_run(run: RunFolder) -> dict[str, Any]:
    """The same for a folder that was read already."""
    parts: dict[str, Callable[[], Any]] = {
        "greedy": lambda: greedy_logprobs(run),
        "likelihood": lambda: likelihood_quantiles(run),
        "phases": lambda: phase_moves(run),
        "evaluations": lambda: [_evaluation(e) for e in run.evaluations],
        "questions": lambda: _questions(run),
        "cost": lambda: cost_by_stage(run.records) if run.records else None,
    }
    out: dict[str, Any] = {"folder": str(run.folder), "name": run.name, "recipe": run.recipe}
    for name, part in parts.items():
        try:
            out[name] = part()
        except Exception as error:  # one damaged part must not hide the others; it is said below
            run.note(
                f"{name}: could not be worked out ({type(error).__name__}: {str(error)[:160]})"
            )
            out[name] = None
    out["warnings"] = [
        {"step": r["step"], "text": str(r.get("text", ""))} for r in run.of_kind("warning")
    ]
    return out | {"missing": run.missing}


def _evaluation(e: Evaluation) -> dict[str, Any]:
    return {
        "name": e.name,
        "split": e.split,
        "step": e.step,
        "n": e.n,
        "questions": len(e.correct),
        "pass_at_k": pass_curve([(e.correct, e.n)]),
        "buckets": dict(zip(BUCKETS, buckets(e.correct, e.n), strict=True)),
        "kinds": e.summary.get("kinds", {}),
        "mean_length": e.summary.get("mean_length"),
        **seeds_diversity([e]),
    }


def _questions(run: RunFolder) -> list[dict[str, Any]]:
    """For each split with two evaluations what changed from the first, the base's where it was
    evaluated, to the last."""
    out = []
    for split in sorted({e.split for e in run.evaluations}):
        stages = run.split(split)
        first, last = stages[0], stages[-1]
        if first is not last:
            row: dict[str, Any] = {"split": split, "before": first.name, "after": last.name}
            row |= gained_and_lost(first.correct, first.n, last.correct, last.n)
            ks = [*pass_curve([(last.correct, last.n)])]
            row["paired"] = paired_rows([(first.correct, first.n)], [(last.correct, last.n)], ks)
            out.append(row | {"steps": [e.step for e in stages]})
    return out
