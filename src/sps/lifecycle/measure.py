"""Evaluations of a run, while it goes on and at its end; which checkpoint is reported."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from sps.errors import UserError
from sps.evaluation.evaluate import EvalJob, evaluate
from sps.evaluation.scores import Scores, best_step, for_record
from sps.lifecycle.card import describe
from sps.phases.run import Run
from sps.policy.checkpoint import damage, load_weights, save_model, saved_checkpoints
from sps.policy.mix import mix_adapters, mix_into
from sps.policy.weights import adapters_in, refuse_other_base
from sps.run.disk import sync, write_whole
from sps.run.folder import (
    CHECKPOINTS,
    END,
    EVALS,
    checkpoint_path,
    mixed_path,
    scores_path,
    stop_path,
    tempered,
)
from sps.run.track import read_records
from sps.store.evals import EvalStore
from sps.types import Problem, Sampling


def use_checkpoint(run: Run, step: int) -> None:
    """Go on with the weights that were saved after a step."""
    _use(run, checkpoint_path(run.folder, step))


def use_mix(run: Run, step: int) -> float:
    """Mix the weights that were saved after a step with the base's, go on with them, and validate
    them where the run is validated. Returns the base's share."""
    run.shelf.clear()  # the meter needs no copy of the weights any more
    if run.recipe.checkpoint.mix == "auto":
        return _least_share(run, step)
    (share,) = run.recipe.checkpoint.shares
    _mix(run, checkpoint_path(run.folder, step), share, mixed_path(run.folder))
    if run.recipe.evaluation.every:
        measure(run, f"mixed-{step:06d}", run.validation, run.recipe.evaluation.validation_n, step)
    return share


def _least_share(run: Run, step: int) -> float:
    """The least of the base's shares with which Pass@k on the validation problems, k being the
    samples of each, is not below the base's: 0 if the trained weights need none, and the largest
    share if none is enough."""
    n, out = run.recipe.evaluation.validation_n, mixed_path(run.folder)
    trial, old = (out.with_name(f"{out.name}.{kind}") for kind in ("trial", "old"))
    if 0 not in run.scores:  # they were lost, and the base was not there
        _mix(run, checkpoint_path(run.folder, step), 1.0, trial)
        validate(run, 0)
    wanted = run.scores[0].pass_at_k(n)[0]
    use_checkpoint(run, step)
    # No evaluation was due after a step that `select: paper` has chosen.
    scores = run.scores.get(step) or measure(run, f"share-0-{step:06d}", run.validation, n, step)
    share = 0.0
    for more in run.recipe.checkpoint.shares:
        if scores.pass_at_k(n)[0] >= wanted:
            break
        share = more
        _mix(run, checkpoint_path(run.folder, step), share, trial)
        scores = measure(run, f"share-{share:g}-{step:06d}", run.validation, n, step)
    if text := _without_sense(n, wanted, scores.pass_at_k(n)[0], share):
        run.track.log("warning", step, name="share-none", text=f"checkpoint.mix: auto: {text}")

    def settle() -> None:
        if out.exists():  # of a run that ended, and ends again
            out.rename(old)
        if share:
            trial.rename(out)
        sync(out.parent)
        for left in (old, trial):
            shutil.rmtree(left, ignore_errors=True)

    run.ranks.broadcast(settle)
    _put_on_record(run, f"mixed-{step:06d}", step, scores)
    return share


def _without_sense(n: int, wanted: float, kept: float, share: float) -> str:
    """What to say where the base's Pass@n could not be kept, or there was none to keep."""
    if not wanted:
        return (
            "the base solves none of the validation problems, so no share is too small: not mixed"
        )
    if kept >= wanted:
        return ""
    return (
        f"with {share:g} of the base's weights Pass@{n} on the validation problems is {kept:.1%} "
        f"and the base's {wanted:.1%}: no share keeps it"
    )


def _mix(run: Run, checkpoint: Path, share: float, out: Path) -> None:
    """Go on with such a mix, which is a folder from then on."""

    def write() -> None:
        if run.recipe.model.lora is not None:
            shutil.rmtree(out, ignore_errors=True)  # of a run that ended, and ends again
            mix_adapters(checkpoint, share, out)
            return
        model = run.recipe.model
        refuse_other_base(run.folder, model.path, model.gguf)  # it may have changed since the start
        trained = run.load(str(checkpoint))
        mix_into(trained.model, run.load(None).model, share)
        save_model(out, trained, describe(run, int(checkpoint.name[5:])))

    run.ranks.broadcast(write)
    _use(run, out)


def _use(run: Run, checkpoint: Path) -> None:
    load_weights(run.policy, checkpoint)
    run.engine.load_weights(run.policy.model)


def measure(
    run: Run,
    name: str,
    problems: list[Problem],
    n: int,
    step: int,
    temperature: float | None = None,
) -> Scores:
    """Evaluate the policy as it stands; samples and scores go to evals/."""
    how = run.recipe.evaluation
    temperature = how.temperature if temperature is None else temperature
    limit = run.recipe.rollout.max_new_tokens
    sampling = Sampling(n, limit, temperature, how.top_p, how.top_k, how.seed)
    began = time.perf_counter()
    ranks = run.ranks
    store = EvalStore(run.folder / EVALS / name, ranks)
    job = EvalJob(run.task, problems, sampling, run.verifier, store)
    with run.stop.window(ranks.size == 1):  # what is judged is kept
        scores = evaluate(run.policy, run.engine, job)
    _put_on_record(run, name, step, scores, **{"seconds/evaluate": time.perf_counter() - began})
    return scores


def measure_end(run: Run, step: int, share: float) -> Scores | None:
    """What the run ends with, a step's weights with a share of the base's: on the validation
    problems at other temperatures, and on the test problems."""
    how = run.recipe.evaluation
    for heat in how.temperatures:
        name = tempered(heat, step)
        run.ranks.broadcast(lambda name=name: forget_other_end(run.folder, name, step, share))
        measure(run, name, run.validation, how.validation_n, step, heat)
    if not how.final:
        return None
    run.ranks.broadcast(lambda: forget_other_end(run.folder, "test", step, share))
    return measure(run, "test", run.test, how.n, step)


def forget_other_end(run: Path, name: str, step: int, share: float) -> None:
    """Samples that another end has left, as of a checkpoint that was damaged since, go."""
    folder = run / EVALS / name
    written, now = folder / END, f"step {step}, {share:g} of the base\n"
    folder.mkdir(parents=True, exist_ok=True)
    if written.exists() and written.read_text(encoding="utf-8") != now:
        for samples in folder.glob("*.parquet"):
            samples.unlink()
    write_whole(written, now)


def _put_on_record(run: Run, name: str, step: int, scores: Scores, **more: float) -> None:
    summary = scores.summary()
    if run.ranks.main:
        write_whole(scores_path(run.folder, name), json.dumps(summary))
    run.track.log("eval", step, name=name, **for_record(summary), **more)


def validate(run: Run, step: int) -> None:
    """Scores on the validation problems, kept by step; of step 0 they are the base's."""
    n = run.recipe.evaluation.validation_n
    run.scores[step] = measure(run, f"validation-{step:06d}", run.validation, n, step)


def validate_base(run: Run) -> None:
    """Before the first step, at every temperature; what is on record is not measured again."""
    if 0 not in run.scores:
        validate(run, 0)
    if not run.base_apart:
        temper_base(run, run.recipe.evaluation.temperatures)


def temper_base(run: Run, heats: Sequence[float]) -> None:
    """The base at those of these temperatures that it has not been validated at."""
    for heat in _without_base(run, heats):
        name = tempered(heat, 0)
        measure(run, name, run.validation, run.recipe.evaluation.validation_n, 0, heat)


def _without_base(run: Run, heats: Sequence[float]) -> list[float]:
    def lacking() -> list[float]:
        return [h for h in heats if not scores_path(run.folder, tempered(h, 0)).exists()]

    return run.ranks.broadcast(lacking)


def validate_lost(run: Run) -> None:
    """What a resumed run has lost of its validations is made again, with the base's weights and
    those of checkpoints; what cannot be is said."""
    due = [step for step in run.schedule.evaluated() if step <= run.settled]
    lost = [step for step in due if step not in run.scores]
    heats = () if run.base_apart else run.recipe.evaluation.temperatures
    lost_heats = _without_base(run, heats)
    for step in sorted({*lost, *([0] if lost_heats else [])}):
        if not (why := _go_back(run, step)):
            validate_base(run) if step == 0 else validate(run, step)
            continue
        names = [f"validation-{step:06d}"] if step in lost else []
        names += [tempered(heat, 0) for heat in lost_heats if step == 0]
        text = (
            f"lost, and cannot be made again ({why}): "
            f"{', '.join(f'evals/{name}.json' for name in names)}. The run's path and "
            "evaluation.select go without, unless it is put back from a copy"
        )
        if all(record.get("text") != text for record in read_records(run.track.path)):
            run.track.log("warning", run.start, text=text)
    if lost or lost_heats:
        _use(run, _checkpoint_of(run))


def _go_back(run: Run, step: int) -> str:
    """Go on with the weights that a run had after an earlier step; or why they cannot be had."""
    if step == 0:
        trial = mixed_path(run.folder).with_name("mixed.trial")
        # A run that went on from adapters: without its own it is the model below them.
        adapters = run.ranks.broadcast(lambda: adapters_in(run.recipe.model.path))
        try:
            if adapters:
                _use(run, adapters)
                return ""
            _mix(run, _checkpoint_of(run), 1.0, trial)
        except UserError as error:
            return f"the base cannot be read ({error})"
        run.ranks.broadcast(lambda: shutil.rmtree(trial))
        return ""
    path = _checkpoint_of(run) if step == run.start else checkpoint_path(run.folder, step)
    there = run.ranks.broadcast(path.is_dir)
    why = run.ranks.broadcast(lambda: damage(path, whole=False)) if there else "it is not there"
    if not why:
        _use(run, path)
    return f"{path.name}: {why}" if why else ""


def _checkpoint_of(run: Run) -> Path:
    """The one that a run was resumed from."""
    saved, stopped = checkpoint_path(run.folder, run.start), stop_path(run.folder, run.start)
    return saved if run.ranks.broadcast(saved.exists) else stopped


def select(run: Run) -> int:
    """The step whose checkpoint is reported: the last, or the best by Avg@n among those saved."""
    recipe, how = run.recipe, run.recipe.evaluation
    if how.select == "last" or (how.select == "paper" and not how.final):  # no test is looked at
        return recipe.rl.steps
    scores = run.scores
    saved = run.ranks.broadcast(lambda: _sound(run))
    if how.select == "paper" and len(saved) > 1:  # on the test set, as the paper did
        scores = {}
        for step in sorted(saved):
            use_checkpoint(run, step)
            name = f"select-{step:06d}"
            scores[step] = measure(run, name, run.test, how.n, step)
    return best_step(scores, saved, recipe.rl.steps)


def _sound(run: Run) -> dict[int, Path]:
    """The saved checkpoints that may be selected; others are said."""
    found = {}
    for step, path in saved_checkpoints(run.folder / CHECKPOINTS).items():
        if why := damage(path):
            text = f"{path.name} is damaged, and not selected: {why}"
            run.track.log("warning", step, text=text)
        else:
            found[step] = path
    return found
