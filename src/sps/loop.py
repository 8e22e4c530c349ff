"""The algorithm: RL phase, L2TE, IRL phase, again. Everything else is in the parts.

while not converged:
    update the policy on D with vanilla RL, keeping every rollout      phases/rl.py
    keep k of each group's n rollouts, the unlikely ones first         phases/irl.py, algo/irl.py
    pull the policy towards them with a forward KL                     phases/irl.py
"""

from __future__ import annotations

from sps.errors import Stopped
from sps.evaluate.scores import Scores
from sps.lifecycle.after_step import after_step, explain, note, select, stop_here
from sps.lifecycle.card import rewrite_card
from sps.lifecycle.measure import measure, use_checkpoint, validate
from sps.phases.irl import irl_every, irl_phase, own_lr, phase_start
from sps.phases.rl import rl_phase
from sps.phases.run import Run
from sps.phases.schedule import Phase, schedule
from sps.phases.warnings import check_gap, cut_off_warning, gap_warning, memory_warning
from sps.policy.meter import Meter, stood_still, went_too_far
from sps.run.lock import release
from sps.types import Metrics


def train(run: Run) -> Scores | None:
    """Train to the end, evaluate the selected checkpoint, and return its test scores."""
    try:
        return _train(run)
    except Stopped as asked:
        stop_here(run, run.stop.asked or str(asked))
    except Exception as error:
        explain(run, error)
    finally:
        release(run.folder)


def _train(run: Run) -> Scores | None:
    recipe = run.recipe
    if recipe.evaluation.every and not run.start and not run.scores:
        validate(run, 0)  # what there is to lose
    if run.settled < run.start:  # stopped before that
        after_step(run, run.start)
    for phase in schedule(recipe.rl.steps, irl_every(run), recipe.irl.steps, run.start):
        moved = _reinforce(run, phase)
        if phase.irl:
            _inverse(run, phase, moved)
        after_step(run, phase.last)  # last: a run resumed here has all of the phase
    return _finish(run)


def _reinforce(run: Run, phase: Phase) -> Metrics:
    """The RL phase; returns how far it moved the policy, as the meter read it."""
    meter = Meter(run.policy.scorer, run.probe)
    far, learnt = "", False  # `far` is said once a phase
    for step, metrics, settled in rl_phase(run, phase):
        note(run, "rl", step, phase=phase.number, **metrics)
        learnt |= metrics["used"] > 0
        check_gap(metrics, run.recipe.rollout.gap_stop, run.policy.model.compute_dtype)
        if not far and (far := gap_warning(metrics, run.recipe.rollout.gap_warn)):
            run.track.log("warning", step, text=far)
        if text := memory_warning(metrics, run.budget.tokens):
            run.track.log("warning", step, text=text)
        if settled and step < phase.last:
            after_step(run, step)
    first = phase_start(run, phase)
    # Resumed in mid-phase: the meter knows the policy since then alone, and says so.
    since: Metrics = {"since_step": phase.first - 1} if phase.first > first else {}
    moved = _read_meter(run, phase, "rl", meter, learnt, since)
    if not phase.irl and run.ranks.main:
        run.store.close_phase(first, phase.last, kept=set())
    return moved


def _inverse(run: Run, phase: Phase, before: Metrics) -> None:
    meter, learnt = Meter(run.policy.scorer, run.probe), False
    for metrics in irl_phase(run, phase):
        note(run, "irl", phase.last, phase=phase.number, **metrics)
        learnt |= metrics.get("kept", 0) > 0
        cut = cut_off_warning(metrics, run.recipe.rollout.max_new_tokens)
        for text in filter(None, (cut, memory_warning(metrics, run.budget.tokens))):
            run.track.log("warning", phase.last, text=text)
    moved = _read_meter(run, phase, "irl", meter, learnt, {})
    if text := went_too_far(moved, before, own_lr(run, phase)):
        run.track.log("warning", phase.last, text=text)


def _read_meter(
    run: Run, phase: Phase, kind: str, meter: Meter, learnt: bool, since: Metrics
) -> Metrics:
    moved = meter.read() | since
    run.track.log("meter", phase.last, phase=phase.number, of=kind, **moved)
    dtype = str(next(run.policy.model.parameters()).dtype).removeprefix("torch.")
    lr = own_lr(run, phase) if kind == "irl" else run.recipe.rl.lr
    text = stood_still(kind, moved, lr, dtype, run.recipe.meter.still, learnt)
    # A part of a phase says little of it; of updates that were skipped there is a warning.
    if text and not since and not run.health.worst:
        run.track.log("warning", phase.last, text=text)
    return moved


def _finish(run: Run) -> Scores | None:
    recipe = run.recipe
    if not recipe.evaluation.final:
        return None
    step = select(run)
    use_checkpoint(run, step)
    scores = measure(run, "test", run.test, recipe.evaluation.n, step)
    run.ranks.broadcast(lambda: rewrite_card(run, step))
    run.track.log("done", recipe.rl.steps, selected=step)
    return scores
