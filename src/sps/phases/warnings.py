"""What a step's metrics give cause to say: each is empty while all is well."""

from __future__ import annotations

import torch

from sps.errors import RunFailed
from sps.types import Metrics

# Nats a token that rounding can explain, in float32 and in less; measured: up to 1e-5 and 0.06.
_ROUNDING = (0.05, 0.3)
_CUT_OFF = 0.05  # more rollouts without an end than this share are warned of


def gap_warning(metrics: Metrics, limit: float) -> str:
    """What to say when trainer and engine disagree by more than they should, else nothing."""
    gap = metrics.get("engine_gap", 0.0)
    if not gap > limit:  # NaN is another matter: the update was skipped
        return ""
    return (
        f"the engine's log-probabilities are {gap:.3g} nats a token from the trainer's, above "
        f"rollout.gap_warn ({limit:g}): rounding weighs on this run. Compute both in one dtype "
        "(model.dtype), or set rollout.correct: 2 to weigh tokens by the ratio of the two"
    )


def check_gap(metrics: Metrics, limit: float | None, dtype: torch.dtype) -> None:
    """End the run when rounding cannot explain how far trainer and engine are apart."""
    if limit is None:
        limit = _ROUNDING[dtype != torch.float32]
    gap = metrics.get("engine_gap", 0.0)
    if not gap > limit:
        return
    raise RunFailed(
        f"the engine's log-probabilities are {gap:.3g} nats a token from the trainer's. Rounding "
        f"cannot explain more than {limit:g}: the tokens come from another policy than the one "
        "that is trained, and what it would learn from them is wrong. Likely causes: the engine "
        "did not get the last weights; it does not see the prompt, or another one; it samples at "
        "another temperature or truncates; it runs this model's layers in another way. Compare "
        "with model.dtype: float32 (native engine) to find out whether the engine is at fault. "
        "If the gap is wanted (an engine with quantised weights), set rollout.gap_stop above it, "
        "and rollout.correct: 2"
    )


def memory_warning(metrics: Metrics, passes: int) -> str:
    """What to say when memory ran out in a step, which was mended by smaller parts."""
    said = []
    if "rows_at_once" in metrics:
        said.append(f"{metrics['rows_at_once']:.0f} sequences are drawn at once now")
    if metrics.get("out_of_memory"):
        said.append(f"passes are now of {passes} tokens")
    return f"memory ran out; {', '.join(said)}" if said else ""


def cut_off_warning(metrics: Metrics, limit: int) -> str:
    """A text without its end teaches not to end; empty where such rollouts are few."""
    share = metrics.get("kept_cut_off", 0.0)
    if share <= _CUT_OFF:
        return ""
    return (
        f"{share:.0%} of the rollouts that IRL learns from were cut off at {limit} tokens and have "
        "no end, so it teaches the policy not to end; raise rollout.max_new_tokens, or lower irl.lr"
    )
