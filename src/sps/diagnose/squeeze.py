"""How concentrated a policy became, from what the run recorded anyway.

Axes: N rollouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sps.diagnose.read import RunFolder

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 120


def greedy_logprobs(run: RunFolder) -> list[dict[str, Any]]:
    """Mean log-probability of greedy trajectories at each evaluation, as in the paper.

    It is a sum over tokens, so longer answers have lower values; the mean log-probability of a
    sampled token, which does not depend on length, stands beside it.
    """
    rows = []
    for e in sorted(run.evaluations, key=lambda e: (e.split, e.step or 0)):
        value = e.summary.get("greedy_logprob")
        if isinstance(value, int | float):
            sampled = e.summary.get("mean_logprob")
            row = {"name": e.name, "split": e.split, "step": e.step, "greedy_logprob": float(value)}
            rows.append(row | {"sampled_logprob": sampled})
    return rows


def phase_moves(run: RunFolder) -> list[dict[str, Any]]:
    """The probability each RL and each IRL phase moved to the token that was greedy before it, as
    the meter measured it on held-out tokens."""
    return [
        {"step": r["step"], "of": r.get("of"), "to_greedy": float(r["to_greedy"])}
        for r in run.of_kind("meter")
        if isinstance(r.get("to_greedy"), int | float)
    ]


def likelihood_quantiles(run: RunFolder) -> dict[str, Any] | None:
    """Quantiles of the mean token log-probability of rollouts, by step (in bins for a long run)."""
    table = run.rollouts(["step", "mean_logprob", "kept"])
    if not len(table):
        return None
    step_N = table["step"].to_numpy()
    value_N = table["mean_logprob"].to_numpy()
    kept_N = table["kept"].to_numpy(zero_copy_only=False).astype(bool)
    edges = _edges(int(step_N.min()), int(step_N.max()))
    bin_N = np.searchsorted(edges, step_N, side="right") - 1
    out: dict[str, Any] = {"step": [], "kept": [], "rollouts": []}
    out |= {f"q{int(100 * q):02d}": [] for q in QUANTILES}
    for b in np.unique(bin_N):
        inside = (bin_N == b) & np.isfinite(value_N)
        if not inside.any():
            continue
        out["step"].append(float(step_N[inside].mean()))
        out["rollouts"].append(int(inside.sum()))
        for q, value in zip(QUANTILES, np.quantile(value_N[inside], QUANTILES), strict=True):
            out[f"q{int(100 * q):02d}"].append(float(value))
        chosen = value_N[inside & kept_N]
        out["kept"].append(float(np.median(chosen)) if len(chosen) else None)
    return out


def _edges(first: int, last: int) -> np.ndarray:
    """Left edges of at most _BINS bins of whole steps."""
    width = max(1, -(-(last - first + 1) // _BINS))
    return np.arange(first, last + 1, width)
