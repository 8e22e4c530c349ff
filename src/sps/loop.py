"""The algorithm: RL phase, L2TE, IRL phase, again. Everything else is in the parts.

while not converged:
    update the policy on D with vanilla RL, keeping every rollout      phases/rl.py
    keep k of each group's n rollouts, the unlikely ones first         phases/irl.py, algo/irl.py
    pull the policy towards them with a forward KL                     phases/irl.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sps.errors import Stopped
from sps.evaluation.evaluate import JudgeFails
from sps.evaluation.scores import Scores
from sps.lifecycle.after_step import after_step, explain, judge_failed, stop_here
from sps.lifecycle.card import rewrite_card
from sps.lifecycle.measure import (
    measure_end,
    select,
    use_checkpoint,
    use_mix,
    validate_base,
    validate_lost,
)
from sps.phases.base import remember_base
from sps.phases.irl import irl_phase
from sps.phases.memory import measured
from sps.phases.rl import rl_phase
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.phases.warnings import Warnings
from sps.policy.meter import Meter
from sps.run.lock import release
from sps.types import Metrics


def train(run: Run) -> Scores | None:
    """Train to the end, evaluate the selected checkpoint, and return its test scores."""
    try:
        return _train(run)
    except Stopped as asked:
        stop_here(run, run.stop.asked or str(asked))
    except JudgeFails as error:  # in an evaluation
        judge_failed(run, f"in an evaluation {error.what}")
    except Exception as error:
        explain(run, error)
    finally:
        release(run.folder)


def _train(run: Run) -> Scores | None:
    if run.recipe.evaluation.every:
        validate_lost(run) if run.start else validate_base(run)
    remember_base(run)
    if run.settled < run.start:  # it was stopped before the last step's evaluation and checkpoint
        after_step(run, run.start)
    for phase in run.schedule.phases(done=run.start):
        rl_moved = _take(run, phase, "rl", rl_phase(run, phase), {})
        if phase.irl:
            steps = ((phase.last, metrics, False) for metrics in irl_phase(run, phase))
            _take(run, phase, "irl", steps, rl_moved)
        elif run.ranks.main:
            run.store.close_phase(phase.start, phase.last, kept=set())
        after_step(run, phase.last)  # a run resumed here has all of the phase
    return _finish(run)


def _take(
    run: Run,
    phase: Phase,
    kind: str,
    steps: Iterable[tuple[int, Metrics, bool]],
    rl_moved: Metrics,
) -> Metrics:
    """Take the steps of a phase and put them on record; returns how far it moved the policy."""
    probe = run.probe and replace(run.probe, budget=min(run.probe.budget, run.budget.tokens))
    meter = Meter(run.policy.scorer, probe, measured(run, phase, kind), run.shelf)
    warnings = Warnings(run, phase, kind, rl_moved)

    def note(record: str, step: int, **metrics: Any) -> None:
        metrics = {"phase": phase.number, **metrics}
        run.track.log(record, step, **metrics)
        for text in warnings(record, metrics):
            run.track.log("warning", step, text=text)

    for step, metrics, settled in steps:
        note(kind, step, **metrics)
        if settled and step < phase.last:
            after_step(run, step)
    moved = meter.read()
    if kind == "rl" and phase.first > phase.start:  # resumed: the meter saw the rest alone
        moved["since_step"] = phase.first - 1
    note("meter", phase.last, of=kind, **moved)
    return moved


def _finish(run: Run) -> Scores | None:
    recipe, mixes = run.recipe, bool(run.recipe.checkpoint.shares)
    if not (mixes or recipe.evaluation.final or recipe.evaluation.temperatures):
        return None
    step, share = select(run), 0.0
    if mixes:
        share = use_mix(run, step)
    else:
        use_checkpoint(run, step)
    scores = measure_end(run, step, share)
    run.ranks.broadcast(lambda: rewrite_card(run, step, share))
    mixed = {"mixed": share} if mixes else {}  # the base's share
    run.track.log("done", recipe.rl.steps, selected=step, **mixed)
    return scores
