"""Taking a run folder, new or to be resumed, and putting a run back as its checkpoint has it."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sps.config.load import differences, dump_recipe, load_recipe
from sps.config.recipe import Model, Recipe
from sps.errors import UserError
from sps.evaluation.scores import Scores, for_record, load_scores
from sps.phases.irl import make_irl_optimizer
from sps.phases.run import Run
from sps.policy.checkpoint import (
    forget_drafts,
    forget_stops,
    has_sums,
    load_trainer,
    sound_checkpoint,
)
from sps.policy.meter import Probe
from sps.policy.placement import put_to_sleep
from sps.policy.sharding import set_optimizer_state
from sps.policy.weights import refuse_other_base, weights_digest
from sps.run.began import keep_place, other_data
from sps.run.disk import write_whole
from sps.run.folder import (
    BASE_HASH,
    CHECKPOINTS,
    DATA_HASH,
    EVALS,
    LOCK,
    RECIPE,
    RECORD,
    ROLLOUTS,
    TASK_FILE,
    TASK_HASH,
    TEMPERED,
    find_checkpoints,
)
from sps.run.lock import hold
from sps.run.track import read_records

_OF_RUNS = (RECORD, f"{CHECKPOINTS}/*", f"{ROLLOUTS}/*.parquet", f"{EVALS}/*")
_FOLDERS = (CHECKPOINTS, ROLLOUTS, EVALS)


def claim(recipe: Recipe, folder: Path, resume: bool) -> tuple[Path | None, str]:
    """Take a folder: a new one, or one to resume, with its last sound checkpoint, and a warning
    where there was a later one."""
    try:
        hold(folder, "sps train")
        _check_kinds(folder)
        begun = any(any(folder.glob(pattern)) for pattern in _OF_RUNS)
        if (folder / RECIPE).exists():
            if begun:  # else it failed before its first step
                _same_run(recipe, folder, resume)
        elif begun and resume:
            raise UserError(
                f"{folder}: it holds a run, but its recipe.yaml is missing, so nobody knows of "
                "which recipe. Put the file back, or choose another folder with --out"
            )
        elif {path.name for path in folder.iterdir()} - {LOCK, f"{RECIPE}.draft"}:
            raise UserError(
                f"{folder}: this folder holds other files; choose an empty one with --out"
            )
        write_whole(folder / RECIPE, dump_recipe(recipe))
        keep_place(folder, recipe.model_dump())
        return _last_sound(folder) if resume else (None, "")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the run folder ({error.strerror})") from None


def _check_kinds(folder: Path) -> None:
    """A file where a folder belongs, or the reverse, is found before any work."""
    for name in (*_FOLDERS, RECORD):
        path, kind = folder / name, "folder" if name in _FOLDERS else "file"
        if path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
            raise UserError(
                f"{path}: it is no {kind}. Put the run's own back, or choose another folder with "
                "--out"
            )


def _same_run(recipe: Recipe, folder: Path, resume: bool) -> None:
    if not resume:
        raise UserError(
            f"{folder}: this folder already holds a run. Continue it with --resume, or choose "
            "another folder with --out"
        )
    before = load_recipe(folder / RECIPE)
    changed = list(differences(before.model_dump(), recipe.model_dump()))
    if changed:
        raise UserError(
            f"{folder}: cannot resume, the recipe changed: {'; '.join(changed)}. Give the old "
            "values. To train with the new ones, or longer, choose another folder with --out"
            f"{_from_here(folder)}"
        )
    record = folder / RECORD
    if not record.exists():
        raise UserError(
            f"{record}: the record of this run is missing. Put the file back; or make an empty one "
            "to go on without the records of the steps so far"
        )


def keep_code(source: Path | None, folder: Path) -> None:
    """Keep a copy of the user's own code and its hash; a run that has begun goes on with no other.

    Modules that the file imports are not looked at.
    """
    if source is None:
        return
    data, copy, written = source.read_bytes(), folder / TASK_FILE, folder / TASK_HASH
    said = f"{hashlib.sha256(data).hexdigest()}  {source.name}\n"
    if written.exists() and (folder / RECORD).exists() and written.read_text() != said:
        raise UserError(
            f"{folder}: cannot resume, {source} is not the file that the run began with; that one "
            f"is {copy}. See what changed: diff {copy} {source}. To go on, put it back: cp {copy} "
            f"{source}. To train with the new one, choose another folder with --out"
            f"{_from_here(folder)}"
        )
    write_whole(copy, data)
    write_whole(written, said)


def keep_data(data: str, folder: Path) -> None:
    """Keep the digest of all questions and answers; a run that has begun goes on with no other."""
    if not (folder / RECORD).exists():
        write_whole(folder / DATA_HASH, f"{data}\n")
    elif other_data(folder, data):
        raise _of_other_data(folder)


def keep_base(model: Model, folder: Path) -> None:
    """Keep a digest of the weights to begin from; a run that has begun goes on with no others."""
    if (folder / RECORD).exists():
        refuse_other_base(folder, model.path, model.gguf)
    elif weights := weights_digest(model.path, model.gguf):
        write_whole(folder / BASE_HASH, f"{weights}\n")
    else:  # what an attempt of before has left is of another recipe
        (folder / BASE_HASH).unlink(missing_ok=True)


def _of_other_data(folder: Path) -> UserError:
    return UserError(
        f"{folder}: cannot resume, the questions or answers are not those the run began with: the "
        "data or a benchmark changed. Put them back, or choose another folder with --out"
    )


def _from_here(folder: Path) -> str:
    """How a new run begins with the weights of this one."""
    saved = [*find_checkpoints(folder / CHECKPOINTS).values()]
    return f", with --set model.path={saved[-1]} from what this one has learnt" if saved else ""


def _last_sound(folder: Path) -> tuple[Path | None, str]:
    found, wrong = sound_checkpoint(folder / CHECKPOINTS)
    if not wrong:
        return found, _unsure(found)
    said = "; ".join(f"{path.name}: {why}" for path, why in wrong.items())
    if found is None:
        raise UserError(
            f"{folder}: every checkpoint is damaged ({said}). Put one back from a copy, or begin "
            "again in another folder with --out"
        )
    last = max((r["step"] for r in read_records(folder / RECORD)), default=0)
    again = f"steps {int(found.name[5:]) + 1} to {last} are taken again"
    text = f"damaged, and put aside: {said}. Going on from {found.name}: {again}"
    return found, f"{text}. {unsure}" if (unsure := _unsure(found)) else text


def _unsure(checkpoint: Path | None) -> str:
    if checkpoint is None or has_sums(checkpoint):
        return ""
    why = "it is of an older version, or the file was lost"
    return f"{checkpoint.name} has no checksums ({why}): damage to its files would go unnoticed"


def restore(run: Run, checkpoint: Path) -> None:
    """Put everything back as it was when the checkpoint was written, and forget what came after."""
    state, tensors = load_trainer(checkpoint)
    if state.get("data", run.data) != run.data:  # older checkpoints do not say
        raise _of_other_data(run.folder)
    if lost := {"optimizer", "irl_optimizer", "probe"} - set(tensors):
        raise UserError(
            f"{checkpoint / 'trainer.pt'}: it lacks {', '.join(sorted(lost))}. Put it back from a "
            "copy, or remove the checkpoint: --resume then goes on from the one before"
        )
    run.start = run.done = state["step"]
    run.ranks.broadcast(lambda: _check_rollouts(run, run.start))
    run.settled = state.get("settled", run.start)  # of a stop: what follows the step is yet to do
    run.sampler.cursor, run.policy.version = state["cursor"], state["version"]
    run.cursor = state["cursor"]
    model = run.policy.model
    if tensors["irl_optimizer"] is not None:
        run.irl_optimizer = make_irl_optimizer(model, run.recipe.irl, 0.0)  # a phase sets it
        set_optimizer_state(model, run.irl_optimizer, tensors["irl_optimizer"])
        put_to_sleep(run.irl_optimizer, model.device)
    # After the other sleeps: a GPU may hold the moments of one alone.
    set_optimizer_state(model, run.optimizer, tensors["optimizer"])
    # Copied, as all that is kept of trainer.pt: the disk gets no space back for a mapped file.
    prompts, completions = ([t.numpy().copy() for t in part] for part in tensors["probe"])
    run.probe = make_probe_of(run, prompts, completions)
    forget(run)
    if checkpoint.name.startswith("step-"):
        run.ranks.broadcast(lambda: _after_saving(run))


def _check_rollouts(run: Run, start: int) -> None:
    """The next IRL phase learns from all rollouts since the last one, memory from all, or from the
    base's, and difficulty-aware sampling goes by all."""
    recipe, memory = run.recipe, run.recipe.irl.memory
    everything = run.schedule.draws(start, all_phases=True)
    of_phase = recipe.irl.steps and not memory.in_phases
    needed = {
        "the next IRL phase learns from": run.schedule.draws(start) if of_phase else [],
        "memory learns from": (everything if memory.source == "run" else [0]) if memory.on else [],
        "rl.sampling goes by": everything if recipe.rl.sampling.by == "difficulty" else [],
    }
    for who, steps in needed.items():
        if lost := run.store.missing(steps):
            raise UserError(
                f"{run.store.folder}: the rollouts of {', '.join(f'step {s}' for s in lost[:3])} "
                f"are missing, and {who} them. Put the files back from a copy, or remove the "
                f"checkpoints from step {lost[0]} on and go on with --resume"
            )


def make_probe_of(run: Run, prompts: list[np.ndarray], completions: list[np.ndarray]) -> Probe:
    """Held-out rollouts to measure policies on."""
    return Probe(prompts, completions, run.policy.pad_id, run.recipe.rl.micro_tokens)


def _after_saving(run: Run) -> None:
    """What a kill right after the checkpoint appeared has left undone."""
    forget_stops(run.folder / CHECKPOINTS)
    known = {(r["kind"], r["step"]) for r in read_records(run.track.path)}
    if ("checkpoint", run.start) not in known:
        run.track.log("checkpoint", run.start)


def forget(run: Run) -> None:
    """Drop what a resumed run will do again; the rest is known to it as to an unbroken one."""

    def drop() -> tuple[dict[int, Scores], list[dict[str, Any]]]:
        run.store.forget_after(run.start)
        torn = run.track.forget_after(run.start)
        forget_drafts(run.folder / CHECKPOINTS)
        for place in (ROLLOUTS, EVALS):
            for draft in (run.folder / place).rglob("*.draft"):
                if draft.is_file():
                    draft.unlink()
        if torn:
            text = f"{torn} lines of metrics.jsonl could not be read, and are left out"
            run.track.log("warning", run.start, text=text)
        return _forget_evals(run, run.recipe.rl.steps), read_records(run.track.path)

    run.scores, records = run.ranks.broadcast(drop)
    for record in records:
        run.health.saw(record["kind"], record)
    if run.health.skipped >= run.recipe.rl.max_skipped:  # it ended for that: another attempt
        run.health.skipped = 0
    run.health.worst = 0


def _forget_evals(run: Run, steps: int) -> dict[int, Scores]:
    """Validation scores up to the checkpoint are read back; later evaluations are dropped."""
    scores: dict[int, Scores] = {}
    known = {r["name"]: r["step"] for r in read_records(run.track.path) if r["kind"] == "eval"}
    folder = run.folder / EVALS
    for path in sorted(folder.glob("*.json")):
        name, step = path.stem, _step(path.stem, steps)
        of_base = name.startswith(TEMPERED) and step == 0
        if of_base or (name == f"validation-{step:06d}" and step <= run.start):
            found = load_scores(path)
            if name not in known:  # its line was lost
                run.track.log("eval", step, name=name, **for_record(found.summary()))
            if not of_base:
                scores[step] = found
        elif name not in known:
            path.unlink()
    for path in folder.glob("*/"):
        # Without scores, and its samples are of a policy that is no more.
        if not path.with_name(f"{path.name}.json").exists() and _step(path.name, steps) > run.start:
            shutil.rmtree(path)
    return scores


def _step(evaluation: str, steps: int) -> int:
    """The step that an evaluation is of: in its name, as in mix-0.3-000100, or else the last."""
    found = re.search(r"-(\d{6,})(?=-|$)", evaluation)
    return int(found[1]) if found else steps
