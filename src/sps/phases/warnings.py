"""Warnings about the metrics of a phase: a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from sps.errors import RunFailed
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.types import FAILED, Metrics

# Nats a token that rounding can explain, in float32 and in less; measured: up to 1e-5 and 0.06.
_ROUNDING = (0.05, 0.3)
_FAILED = 0.05  # more verdicts of a judge that failed than this share are warned of
_CUT_OFF = 0.05  # more rollouts without an end than this share are warned of
_MOST = 0.5  # more answers than this share that are cut off, or not judged, explain a still phase
_TOO_FAR = 0.7  # docs/results_small.md
_NOTHING = {
    "rl": "no rollout had an advantage, which takes a group whose rewards differ: with both right "
    "and wrong answers, or parts of a point. Train on problems that are solved occasionally, or "
    "raise rollout.n",
    "irl": "the selector kept no rollout, or memory has none. Choose another irl.selector.type, or "
    "train on problems that are solved occasionally",
}


class Warnings:
    """Those of one RL or IRL phase. Called with each of its records in turn, it yields texts."""

    def __init__(self, run: Run, phase: Phase, kind: str, rl_moved: Metrics):
        self.run, self.rollout, self.kind, self.rl_moved = run, run.recipe.rollout, kind, rl_moved
        self.lr = phase.irl_lr if kind == "irl" else run.recipe.rl.lr
        self.learnt = False  # whether there was a rollout to learn from
        self.far = ""  # what was said of the engine's gap, once a phase
        self.failed = ""  # and of a judge that fails
        self.verdicts: list[Metrics] = []  # of each step

    def __call__(self, kind: str, record: dict[str, Any]) -> Iterator[str]:
        """What to say of a record; a gap that nothing explains ends the run."""
        self.learnt |= record.get("used", 0) > 0 or record.get("kept", 0) > 0
        if kind == "rl":
            self.verdicts.append({k: v for k, v in record.items() if k.startswith("verdict/")})
        yield from self.run.health.saw(kind, record)
        for rule in RULES[kind]:
            if text := rule(self, record):
                yield text

    def gap(self, metrics: Metrics) -> str:
        """Of the engine's log-probabilities."""
        check_gap(metrics, self.rollout.gap_stop, self.run.policy.model.compute_dtype)
        if self.far:
            return ""
        self.far = gap_warning(metrics, self.rollout.gap_warn)
        return self.far

    def judge(self, metrics: Metrics) -> str:
        """Of verdicts that are the judge's failures."""
        if self.failed:
            return ""
        self.failed = judge_warning(metrics, self.run.judge_failed)
        return self.failed

    def still(self, moved: Metrics) -> str | None:
        """Of a phase that did nothing."""
        # Part of a phase says little; skipped updates have a warning of their own.
        if "since_step" in moved or self.run.health.worst:
            return None
        dtype, still = self.run.policy.weight_dtype, self.run.recipe.meter.still
        why = truncated_warning(self._share("truncated"), self.rollout.max_new_tokens)
        if self._share(*FAILED) > _MOST:
            why = "the judge failed at most answers. Mend it first"
        return stood_still(self.kind, moved, self.lr, dtype, still, self.learnt, why)

    def _share(self, *kinds: str) -> float:
        """Of the phase's verdicts so far, by its steps."""
        total = sum(own.get(f"verdict/{kind}", 0.0) for own in self.verdicts for kind in kinds)
        return total / max(1, len(self.verdicts))


# Kind of a record -> its rules, in order.
RULES: dict[str, tuple[Callable[[Warnings, Metrics], str | None], ...]] = {
    "rl": (
        Warnings.judge,
        Warnings.gap,
        lambda seen, metrics: memory_warning(metrics, seen.run.budget.tokens),
    ),
    "irl": (
        lambda seen, metrics: cut_off_warning(metrics, seen.rollout.max_new_tokens),
        lambda seen, metrics: memory_warning(metrics, seen.run.budget.tokens),
    ),
    "meter": (
        Warnings.still,
        lambda seen, moved: went_too_far(moved, seen.rl_moved, seen.lr),
    ),
}


def judge_warning(metrics: Metrics, first: str) -> str:
    """What to say when a judge fails at more than a few answers, else nothing."""
    share = sum(metrics.get(f"verdict/{kind}", 0.0) for kind in FAILED)
    if share <= _FAILED:
        return ""
    return (
        f"the judge failed at {share:.0%} of the answers of this step, and each counts as wrong. "
        f"The first: {first or 'no detail'}. The column `detail` of the rollouts has all; mend "
        "the judge, or raise task.time_limit where time was up"
    )


def gap_warning(metrics: Metrics, limit: float) -> str:
    """What to say when trainer and engine disagree by more than they should, else nothing."""
    gap = metrics.get("engine_gap", 0.0)
    if not gap > limit:  # also for NaN: that update was skipped
        return ""
    return (
        f"the engine's log-probabilities are {gap:.3g} nats a token from the trainer's, above "
        f"rollout.gap_warn ({limit:g}): rounding affects this run. Compute both in one dtype "
        "(model.dtype), or set rollout.correct: 2 for truncated importance sampling"
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
        "another temperature or truncates; it computes this model's layers differently. Compare "
        "with model.dtype: float32 (native engine) to find out whether the engine is at fault. "
        "If the gap is wanted (an engine with quantised weights), set rollout.gap_stop above it, "
        "and rollout.correct: 2"
    )


def memory_warning(metrics: Metrics, passes: int) -> str:
    """What to say when GPU memory ran out in a step, which was then done in smaller parts."""
    said = []
    if "rows_at_once" in metrics:
        said.append(f"{metrics['rows_at_once']:.0f} sequences are drawn at once now")
    if metrics.get("out_of_memory"):
        said.append(f"passes are now of {passes} tokens")
    return f"memory ran out; {', '.join(said)}" if said else ""


def cut_off_warning(metrics: Metrics, limit: int) -> str:
    """Rollouts that were cut off teach the policy not to end; empty where they are few."""
    share = metrics.get("kept_cut_off", 0.0)
    if share <= _CUT_OFF:
        return ""
    return (
        f"{share:.0%} of the rollouts that IRL learns from were cut off at {limit} tokens and have "
        "no end, so it teaches the policy not to end; raise rollout.max_new_tokens, or lower irl.lr"
    )


def truncated_warning(share: float, limit: int) -> str:
    """Why there is nothing to learn where most answers have no end; empty where they have one."""
    if share <= _MOST:
        return ""
    return (
        f"{share:.0%} of the answers were cut off at rollout.max_new_tokens ({limit}) before their "
        "end. Set it higher"
    )


def stood_still(
    phase: str,
    metrics: Metrics,
    lr: float,
    dtype: str,
    still: float,
    learnt: bool = True,
    why: str = "",
) -> str | None:
    """A warning when a phase did not move the policy, with what to do about it.

    `learnt` says that there was a rollout to learn from: if not, no learning rate helps. `why` is
    then said instead of what usually explains it.
    """
    if not metrics["relative_update"] < still:  # also for NaN: health.py sees to it
        return None
    if not learnt:
        return f"the {phase} phase had nothing to learn from: {why or _NOTHING[phase]}"
    return (
        f"the {phase} phase moved the policy by {metrics['relative_update']:.1e} of its size "
        f"({metrics['weights_changed']:.1%} of its {dtype} weights changed, KL "
        f"{metrics.get('kl', 0.0):.1e} a token): at lr {lr:g} it does nothing. Raise {phase}.lr"
    )


def went_too_far(irl: Metrics, rl: Metrics, lr: float) -> str | None:
    """A warning when an IRL phase moved the weights like the RL phase before it; `rl` is empty
    where none came before."""
    whole = rl.get("relative_update", 0.0)
    if not whole or "since_step" in rl or irl["relative_update"] < _TOO_FAR * whole:
        return None
    ratio = irl["relative_update"] / whole
    return (
        f"the irl phase moved the weights {ratio:.2f} times as far as the rl phase before it; from "
        f"{_TOO_FAR} on it was measured to undo what RL teaches. Lower irl.lr, now {lr:.1e}, or "
        "irl.reach where that sets it"
    )
