"""After a step: evaluate, save, remove old checkpoints, stop if asked; how a run ends early."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

from sps.errors import RunFailed, Stopped
from sps.evaluation.scores import best_step
from sps.lifecycle.card import describe
from sps.lifecycle.measure import validate
from sps.phases.run import Run
from sps.policy.checkpoint import (
    forget_checkpoints,
    forget_stops,
    latest_checkpoint,
    save_checkpoint,
    saved_checkpoints,
)
from sps.policy.sharding import finite_weights
from sps.run.disk import sync, sync_tree
from sps.run.folder import (
    CHECKPOINTS,
    EVALS,
    RECORD,
    ROLLOUTS,
    checkpoint_path,
    find_checkpoints,
    stop_path,
)
from sps.types import Metrics

_MEND = (
    "Mend the judge, or raise task.time_limit where time was up, and train in another folder "
    "(--out), from this checkpoint if the run has learnt something before (model.path); --resume "
    "tries the same judge again"
)
_DIVERGED = (
    "Start a new run from it (model.path) with a lower rl.lr or irl.lr; --resume tries the same "
    "again"
)


def after_step(run: Run, step: int) -> None:
    """The weights have all of a step, so the run may be cut here."""
    run.done, run.cursor = step, run.sampler.cursor
    if run.health.worst:
        _check_up(run)
    if run.health.judge_is_at_fault and step > run.start:  # resumed: it may go better now
        why = f"the judge has failed at every answer of {run.health.failing} steps in a row"
        judge_failed(run, why, f"Its first failure in the last step: {run.judge_failed}")
    if run.schedule.evaluates(step, run.settled) and step not in run.scores:
        validate(run, step)
    if run.schedule.saves(step, run.settled):
        _save(run, step)
    run.settled = step
    if asked := [why for why in run.ranks.gather([run.stop.asked]) if why]:
        raise Stopped(asked[0])


def _save(run: Run, step: int) -> None:
    began = time.perf_counter()
    _write(run, checkpoint_path(run.folder, step), {})
    run.track.log("checkpoint", step, **{"seconds/save": time.perf_counter() - began})
    run.ranks.broadcast(lambda: _forget_others(run, step, run.recipe.checkpoint.keep))


def _write(run: Run, path: Path, more: Metrics) -> None:
    """A checkpoint, after all that a run resumed there will look for; never one that is broken."""
    if not finite_weights(run.policy.model):
        _give_up(run, "a weight is not finite (NaN or infinite)")
    run.ranks.broadcast(lambda: _sync(run.folder))
    state = {"step": run.done, "cursor": run.cursor, "data": run.data, **more}
    trainer, ranks = run.trainer_state(), run.ranks
    save_checkpoint(path, run.policy, state, trainer, lambda: describe(run, run.done), ranks)


def _sync(folder: Path) -> None:
    for name in (ROLLOUTS, EVALS):
        sync_tree(folder / name)
    sync(folder / RECORD)


def _forget_others(run: Run, step: int, keep: int) -> None:
    """The one that would be selected now is spared."""
    folder = run.folder / CHECKPOINTS
    best = best_step(run.scores, saved_checkpoints(folder), step)
    forget_checkpoints(folder, keep, {best, step})
    forget_stops(folder)


def stop_here(run: Run, why: str) -> NoReturn:
    """Keep what is done since the last checkpoint, and say how to go on."""
    _keep(run)
    run.track.log("stopped", run.done, text=why)
    raise Stopped(f"stopped after step {run.done} ({why}); everything is kept: go on with --resume")


def _keep(run: Run) -> None:
    """A checkpoint of its own name, which the next one replaces: it is no candidate of selection,
    so that a run that was stopped ends as one that was not."""
    saved = run.ranks.broadcast(lambda: checkpoint_path(run.folder, run.done).exists())
    if run.done > run.start and not saved:
        path = stop_path(run.folder, run.done)
        _write(run, path, {"settled": run.settled})


def _check_up(run: Run) -> None:
    """Updates were skipped: end where weights are lost, or where it does not end."""
    if not finite_weights(run.policy.model):
        _give_up(run, "a weight is not finite (NaN or infinite)")
    # Not the last ones alone: an IRL phase whose updates are fine may have followed since.
    skipped, run.health.worst = run.health.worst, run.health.skipped
    if skipped < run.recipe.rl.max_skipped:
        return
    _keep(run)
    why = "loss, gradient or log-probabilities were not finite"
    _give_up(run, f"{skipped} updates in a row were skipped: {why}")


def judge_failed(run: Run, why: str, first: str = "") -> NoReturn:
    """Every answer has counted as wrong for some time: what follows would be worth nothing."""
    _keep(run)
    _give_up(run, why, f"{first}. {_MEND}" if first else _MEND)


def explain(run: Run, error: Exception) -> NoReturn:
    """An engine cannot draw from weights that are NaN: that is then the reason to give."""
    if isinstance(error, RuntimeError) and not run.ranks.sharded:
        try:
            sound = finite_weights(run.policy.model)
        except RuntimeError:  # a device that has failed
            raise error from None
        if not sound:
            _give_up(run, "a weight is not finite (NaN or infinite)")
    raise error


def _give_up(run: Run, why: str, how: str = _DIVERGED) -> NoReturn:
    kept = latest_checkpoint(run.folder / CHECKPOINTS)
    stops = list(find_checkpoints(run.folder / CHECKPOINTS, "stop").values())
    last = stops[-1] if stops else kept
    where = f"the last good checkpoint is {last}" if last else "no checkpoint was saved before"
    text = f"after step {run.done} {why}; {where}. {how}"
    run.track.log("warning", run.done, text=text)
    raise RunFailed(text)
