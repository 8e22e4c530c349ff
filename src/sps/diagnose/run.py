"""`diagnose`: every analysis of one run, as plain JSON-able numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sps.algo.passk import paired_rows
from sps.diagnose.cost import cost_by_stage
from sps.diagnose.diversity import diversity
from sps.diagnose.questions import (
    BUCKETS,
    accuracy_buckets,
    gained_and_lost,
    pass_curve,
    upper_bound,
)
from sps.diagnose.read import Evaluation, RunFolder, read_run
from sps.diagnose.simulate import simulate
from sps.diagnose.squeeze import collision, greedy_logprobs, likelihood_quantiles, phase_moves

_SAMPLES = 60_000  # rows of an evaluation that are read for diversity


def diagnose(
    run_folder: Path, large: bool = False, checkpoints: bool = True, embeddings: bool = False
) -> dict[str, Any]:
    """All of it; what cannot be had is said under 'missing' and never raised.

    `checkpoints` loads the models (small ones, or all with `large`) to see where mass moved;
    `embeddings` adds the similarity of answers under the base policy.
    """
    return diagnose_run(read_run(Path(run_folder)), large, checkpoints, embeddings)


def diagnose_run(
    run: RunFolder, large: bool = False, checkpoints: bool = True, embeddings: bool = False
) -> dict[str, Any]:
    """The same for a folder that was read already."""
    parts: dict[str, Callable[[], Any]] = {
        "greedy": lambda: greedy_logprobs(run),
        "likelihood": lambda: likelihood_quantiles(run),
        "collision": lambda: collision(run),
        "phases": lambda: phase_moves(run),
        "checkpoints": lambda: _mass(run, large) if checkpoints else [],
        "evaluations": lambda: [_evaluation(e) for e in run.evaluations],
        "questions": lambda: _questions(run),
        "diversity": lambda: _diversity(run, embeddings),
        "cost": lambda: cost_by_stage(run.records) if run.records else None,
        "simulation": simulate,
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
        "pass_at_k": pass_curve(e.correct, e.n) if e.correct else {},
        "buckets": accuracy_buckets(e.correct, e.n),
        "kinds": e.summary.get("kinds", {}),
        "mean_length": e.summary.get("mean_length"),
    }


def _questions(run: RunFolder) -> list[dict[str, Any]]:
    """For each split the first evaluation (the base's, when it is there) and the last."""
    out = []
    for split in sorted({e.split for e in run.evaluations}):
        stages = run.split(split)
        first, last = stages[0], stages[-1]
        row: dict[str, Any] = {
            "split": split,
            "before": first.name,
            "after": last.name,
            "bucket_names": list(BUCKETS),
            "buckets_before": accuracy_buckets(first.correct, first.n),
            "buckets_after": accuracy_buckets(last.correct, last.n),
            "steps": [e.step for e in stages],
            "curves": [pass_curve(e.correct, e.n) for e in stages if e.correct],
            "upper_bound": upper_bound([(e.correct, e.n) for e in stages]),
        }
        if first is not last:
            row |= gained_and_lost(first.correct, first.n, last.correct, last.n)
            ks = [int(k) for k in pass_curve(last.correct, last.n)] if last.correct else []
            row["paired"] = paired_rows([(first.correct, first.n)], [(last.correct, last.n)], ks)
        out.append(row)
    return out


def _diversity(run: RunFolder, embeddings: bool) -> list[dict[str, Any]]:
    """Of the first and the last evaluation of each split, and of all on the test set."""
    chosen = {}
    for split in sorted({e.split for e in run.evaluations}):
        stages = run.split(split)
        of_test = split == "test" or split.startswith("test at ")
        chosen |= {e.name: e for e in (stages if of_test else (stages[0], stages[-1]))}
    similarity = _embedder(run) if embeddings else None
    out = []
    for e in chosen.values():
        rows = run.samples(e.name, ["problem_id", "text", "verdict"]).slice(0, _SAMPLES).to_pylist()
        found = diversity(rows)
        if found:
            extra = {"cosine": similarity(rows)} if similarity else {}
            out.append({"name": e.name, "split": e.split, "step": e.step, **found, **extra})
    return out


def _embedder(run: RunFolder) -> Callable[[list[dict[str, Any]]], float | None] | None:
    from sps.diagnose.embedding import cosine_similarity
    from sps.diagnose.mass import base_folder
    from sps.policy.load import load_policy

    for _, folder in base_folder(run):
        policy = load_policy(str(folder))
        return lambda rows: cosine_similarity(policy, rows)
    run.note("the base policy is not on this machine: no embedding similarity")
    return None


def _mass(run: RunFolder, large: bool) -> list[dict[str, Any]]:
    from sps.diagnose.mass import (
        checkpoint_squeeze,
    )  # torch and transformers take seconds to import

    return checkpoint_squeeze(run, large)
