"""Points that a comparison asks for beside what its runs measure themselves: what their weights are
at other sampling temperatures, earlier or mixed; and the base's temperatures, once for all runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sps.config.load import dump_recipe, load_recipe
from sps.config.recipe import Recipe, Rollouts
from sps.errors import UserError
from sps.evaluation.scores import Scores, for_record, load_scores
from sps.run.began import refuse_elsewhere
from sps.run.disk import write_whole
from sps.run.folder import (
    EVALS,
    RECIPE,
    RECORD,
    checkpoint_path,
    mixed_path,
    scores_path,
    tempered,
)
from sps.run.lock import hold, release
from sps.run.track import Track, read_records
from sps.types import Sampling

Ask = Callable[[str, str, int, float], Scores]  # name, split, samples a problem, temperature


def has_ended(run: Path) -> bool:
    """Whether its record says so: a run that is resumed after its end has none until it ends
    again, and nobody knows which weights, mixed or not, it ends with."""
    return any(record["kind"] == "done" for record in read_records(run / RECORD))


def ended_with(run: Path, last: int) -> tuple[int, float]:
    """The step whose checkpoint a run selected, and the base's share that it was mixed with."""
    ends = [record for record in read_records(run / RECORD) if record["kind"] == "done"]
    return (ends[-1]["selected"], ends[-1].get("mixed", 0.0)) if ends else (last, 0.0)


def lacks_base(recipe: Recipe, run: Path) -> bool:
    """Whether a run does not have the base at all temperatures of a recipe."""
    return any(not path.exists() for path in _base_paths(recipe, run))


def share_base(recipe: Recipe, base: Path, run: Path) -> None:
    """Give a run what was measured of the base once for several: the scores, and their record."""
    known = {record.get("name") for record in read_records(run / RECORD)}
    for source, path in zip(_base_paths(recipe, base), _base_paths(recipe, run), strict=True):
        if path.exists():
            continue
        summary = load_scores(source).summary()  # damaged ones are named, and not shared
        if path.stem not in known:  # before the scores, which without it would not be kept
            Track(run / RECORD).log("eval", 0, name=path.stem, **for_record(summary))
        write_whole(path, source.read_bytes())


def _base_paths(recipe: Recipe, run: Path) -> list[Path]:
    return [scores_path(run, tempered(heat, 0)) for heat in recipe.evaluation.temperatures]


def refuse_lost_end(recipe: Recipe, run: Path) -> None:
    """Before any work: the weights that a run ended with are there, if it is asked for more."""
    if _lacking(recipe, run) and not (weights := _end(recipe, run)).is_dir():
        raise _lost(run, weights, "it is not there")


def add_temperatures(recipe: Recipe, run: Path) -> None:
    """Validate what a run ended with at the temperatures that it lacks. Its recipe has them from
    then on."""
    if heats := _lacking(recipe, run):
        try:
            hold(run, "sps compare")
            _temper_end(recipe, run, heats)
        finally:
            release(run)
    before = load_recipe(run / RECIPE)
    own, asked = before.evaluation.temperatures, recipe.evaluation.temperatures
    if more := tuple(heat for heat in asked if heat not in own):
        how = before.evaluation.model_copy(update={"temperatures": own + more})
        write_whole(run / RECIPE, dump_recipe(before.model_copy(update={"evaluation": how})))


def _temper_end(recipe: Recipe, run: Path, heats: list[float]) -> None:
    from sps.lifecycle.measure import forget_other_end

    step, share = ended_with(run, recipe.rl.steps)
    with opened(recipe, run, _end(recipe, run), rollout=recipe.rollout) as ask:
        for heat in heats:
            name = tempered(heat, step)
            forget_other_end(run, name, step, share)
            summary = ask(name, "validation", recipe.evaluation.validation_n, heat).summary()
            write_whole(scores_path(run, name), json.dumps(summary))
            Track(run / RECORD).log("eval", step, name=name, **for_record(summary))


@contextmanager
def opened(
    recipe: Recipe, run: Path, weights: Path, mix: float = 0.0, rollout: Rollouts | None = None
) -> Iterator[Ask]:
    """Saved weights of a run, mixed with a share of the base, to be evaluated; by the engine that
    its rollouts ask for, or the native one."""
    from sps.build import make_engine, make_policy, make_task, settle_dtype, use_threads
    from sps.evaluation.evaluate import EvalJob, evaluate
    from sps.policy.checkpoint import damage
    from sps.policy.mix import mix_into
    from sps.store.evals import EvalStore
    from sps.verify import open_verifier

    recipe, how = settle_dtype(recipe, run), recipe.evaluation
    if why := damage(weights, whole=False) if weights.is_dir() else "it is not there":
        raise _lost(run, weights, why)
    if mix or recipe.model.lora is not None:
        refuse_elsewhere(run, {"model": recipe.model.model_dump()})
    use_threads(recipe)
    task, policy = make_task(recipe), make_policy(recipe, str(weights))
    if mix:
        mix_into(policy.model, make_policy(recipe).model, mix)
    engine, verifier = make_engine(policy, recipe.rollout.max_rows, rollout), open_verifier(task)

    def ask(name: str, split: str, n: int, heat: float) -> Scores:
        limit = recipe.rollout.max_new_tokens
        sampling = Sampling(n, limit, heat, how.top_p, how.top_k, how.seed)
        store = EvalStore(run / EVALS / name)
        return evaluate(
            policy, engine, EvalJob(task, task.problems(split), sampling, verifier, store)
        )

    try:
        yield ask
    finally:
        verifier.close()
        engine.close()


def _end(recipe: Recipe, run: Path) -> Path:
    """The weights that a run ended with."""
    step, share = ended_with(run, recipe.rl.steps)
    return mixed_path(run) if share else checkpoint_path(run, step)


def _lacking(recipe: Recipe, run: Path) -> list[float]:
    """The temperatures that a run that has ended was not validated at."""
    step, _ = ended_with(run, recipe.rl.steps)
    heats = recipe.evaluation.temperatures
    return [heat for heat in heats if not scores_path(run, tempered(heat, step)).exists()]


def _lost(run: Path, weights: Path, why: str) -> UserError:
    return UserError(
        f"{run}: it has ended, and {weights}, which it is asked to be evaluated with, cannot be "
        f"used: {why}. Put it back from a copy; or leave out what is asked for since "
        "(--temperatures, --early, --mix); or remove this folder, and the run is trained anew"
    )
