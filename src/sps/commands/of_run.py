"""What `sps eval` takes from the run that a model comes from: how to sample, and what to ask; and
from the evaluation that it goes on with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sps.commands.began import data_digest, named_data
from sps.commands.terminal import say
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.data.messages import asked_of
from sps.errors import UserError
from sps.evaluation.claim import held
from sps.policy.weights import refuse_other_base
from sps.run.began import other_code, other_data, refuse_elsewhere
from sps.run.folder import (
    CHECKPOINTS,
    EVALS,
    RECIPE,
    RECORD,
    ROLLOUTS,
    find_checkpoints,
    mixed_path,
)
from sps.tasks import Task
from sps.tasks.table import TASKS
from sps.types import Problem

_LOG = logging.getLogger("sps")
_OF_PROMPT = (
    "template",
    "instruction",
    "cut",
    "right",
)  # keys of a task that sps eval may override


def find_run(model: str) -> Path | None:
    """The folder of the run that a name means, by itself or by one of its checkpoints."""
    folder = Path(model).expanduser()
    if folder.parent.name == CHECKPOINTS:
        folder = folder.parent.parent
    elif (folder / "config.json").exists():
        return None
    return folder if (folder / RECIPE).exists() else None


def refuse_no_checkpoint(model: str) -> None:
    """Before anything is said or made: a checkpoint of a run that is named is there."""
    run, folder = find_run(model), Path(model).expanduser()
    if run is not None and not folder.exists():
        there = ", ".join(path.name for path in checkpoints_of(run)) or "none yet"
        raise UserError(
            f"{model}: there is no such checkpoint. Give one of those in {folder.parent}: {there}"
        )


def checkpoints_of(run: Path) -> list[Path]:
    """All that a run has to be evaluated, by step, then of stops, then what it ended with."""
    saved = [
        p for kind in ("step", "stop") for p in find_checkpoints(run / CHECKPOINTS, kind).values()
    ]
    return [*saved, *(path for path in [mixed_path(run)] if path.exists())]


def refuse_damaged(model: str) -> None:
    """Weights of a checkpoint that are not as they were saved are no model that was trained."""
    from sps.policy.checkpoint import damage, has_sums

    folder = Path(model)
    if find_run(model) is not None and has_sums(folder) and (why := damage(folder, whole=False)):
        raise _damaged(folder, f"this checkpoint is damaged: {why}")


def cannot_load(model: str, error: UserError) -> UserError:
    """Why, without the key of a recipe, which nobody wrote; of a checkpoint that does not say how
    it was saved, what to do."""
    from sps.policy.checkpoint import has_sums

    said, folder = str(error).removeprefix("model.path: "), Path(model)
    if find_run(model) is None or has_sums(folder):
        return UserError(said)
    for name in (f"{folder} cannot be loaded: ", f"{folder}: ", f"{folder} "):
        said = said.removeprefix(name)
    why = f"this checkpoint cannot be loaded ({said}), and has no checksums to know more by"
    return _damaged(folder, why)


def _damaged(folder: Path, why: str) -> UserError:
    others = ", ".join(path.name for path in checkpoints_of(folder.parents[1]) if path != folder)
    return UserError(
        f"{folder}: {why}. Put it back from a copy"
        + (f", or evaluate another one of {folder.parent}: {others}" if others else "")
    )


def refuse_other_adapted(model: str) -> None:
    """Adapters of a run go with the weights that they were trained on."""
    run = find_run(model)
    if run is None:
        return
    try:
        base = load_recipe(run / RECIPE).model
    except UserError:  # nobody knows; `defaults_of` has said why
        return
    if base.lora is not None:
        refuse_elsewhere(run, {"model": base.model_dump()})
        refuse_other_base(run, base.path, base.gguf)


def begun_with(folder: Path, bench: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The seed of the evaluation that a folder holds, and its n where it has this benchmark, where
    they are not given, and says so: it goes on with them."""
    before = held(folder)
    names = ["seed", "n"] if bench in before.get("questions", {}) else ["seed"]
    found = {k: before[k] for k in names if k not in given and type(before.get(k)) is int}
    if found:
        say(f"as in {folder / 'eval.json'}: {', '.join(f'{k} {v}' for k, v in found.items())}")
    return found


def defaults_of(model: str, given: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """The options that a run's recipe decides where they are not given, and says so. Of its own
    test problems, how many samples too."""
    run = None if given.get("endpoint") else find_run(model)
    if run is None:
        return {}
    try:
        recipe = load_recipe(run / RECIPE)
    except UserError as error:
        _LOG.warning("%s; options that are not given have their usual defaults", error)
        return {}
    how, task = recipe.evaluation, recipe.task
    found = {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k}
    found |= {"seed": how.seed, "max_new_tokens": recipe.rollout.max_new_tokens}
    found |= {"n": how.n} if own else {}
    found |= {
        k: getattr(task, k) for k in ("template", "cut", "right") if k in type(task).model_fields
    }
    found = {key: value for key, value in found.items() if given.get(key) is None}
    if found:
        shown = ", ".join(f"{key} {value}" for key, value in found.items())
        say(f"as in {run / RECIPE}: {shown}")
    return found


def own_task(model: str, asked: Mapping[str, Any]) -> Task:
    """The task of the run a model comes from, whose test problems are what the run held out."""
    run = find_run(model)
    if run is None:
        raise UserError(
            f"give a model and --bench, for example: sps eval {model} --bench gsm8k. Without "
            f"--bench a run is asked its own test problems, and {model} is neither a run's folder "
            "nor a checkpoint in one"
        )
    recipe = load_recipe(run / RECIPE)
    fields = type(recipe.task).model_fields
    changed = {k: asked[k] for k in _OF_PROMPT if k in fields and asked.get(k) is not None}
    task = _make(run, recipe, changed)
    if other_code(run, task.source):
        _LOG.warning("%s is not the file that %s was trained with", task.source, run)
    if other_data(run, data_digest(task)):
        _LOG.warning(
            "%s: %s changed since it was trained, and its test problems are drawn anew: it may "
            "have been trained on some of these, or other answers count as right; their score is "
            "no test. Put the data back as it was, or name questions it has not seen with --bench",
            *(run, named_data(recipe.task)),
        )
    else:
        say(f"{run}: its own test problems, which it was not trained on")
    return task


def refuse_inside(folder: Path) -> None:
    """An evaluation does not go where a run keeps its own: it would write over that."""
    for run in (folder, *folder.parents):
        inside = folder.relative_to(run).parts[:1]
        if (run / RECORD).exists() and inside in ((), (EVALS,), (ROLLOUTS,), (CHECKPOINTS,)):
            raise UserError(
                f"--out {folder}: the run {run} keeps its own files there; choose another folder, "
                f"such as {run / 'eval'}"
            )


def warn_of_trained(model: str, name: str, problems: Sequence[Problem]) -> None:
    """Say how many questions of the same task the run was trained on: their score is no test.

    Other benchmarks are looked for when a run starts (`task.overlap`).
    """
    run, kind = find_run(model), name.partition(":")[0]
    if run is None or kind not in TASKS:
        return
    try:
        recipe = load_recipe(run / RECIPE)
        if recipe.task.type != kind:
            return
        own = _make(run, recipe, {})
        trained = {asked_of(p).strip() for p in own.problems("train")}
    except UserError as error:
        _LOG.warning("%s: cannot tell which questions were trained on (%s)", name, error)
        return
    if other_data(run, data_digest(own)):
        _LOG.warning(
            "%s: cannot tell which questions were trained on: %s changed since %s was trained. Put "
            "the data back as it was to know",
            *(name, named_data(recipe.task), run),
        )
        return
    seen = sum(asked_of(p).strip() in trained for p in problems)
    if seen:
        _LOG.warning(
            "%s: %s was trained on %d of these %d questions; `sps eval %s` without --bench asks "
            "only what it held out",
            *(name, run, seen, len(problems), model),
        )


def _make(run: Path, recipe: Recipe, changed: dict[str, Any]) -> Task:
    refuse_elsewhere(run, {"task": recipe.task.model_dump()})
    return TASKS[recipe.task.type].make(recipe.task.model_copy(update=changed))
