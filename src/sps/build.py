"""From a recipe to a working run, by the rows of TASKS and ENGINES that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sps.algo.irl import selector_of
from sps.algo.table import algorithm_of
from sps.config.load import load_recipe
from sps.config.recipe import Recipe, Rollouts
from sps.config.tasks import check_embedded
from sps.data.sampler import Sampler
from sps.data.splits import digest, sources_of
from sps.errors import UserError, row_of
from sps.lifecycle.card import is_hub_id
from sps.lifecycle.resume import (
    claim,
    forget,
    keep_base,
    keep_code,
    keep_data,
    make_probe_of,
    restore,
)
from sps.phases.memory import make_memory
from sps.phases.problems import make_difficulty
from sps.phases.run import Run
from sps.policy import embedded
from sps.policy.checkpoint import load_weights
from sps.policy.files import base_of
from sps.policy.load import (
    Policy,
    best_threads,
    load_policy,
    pick_device,
    pick_dtype,
    prepare_training,
    use_adapters,
)
from sps.policy.meter import Probe
from sps.policy.placement import round_frozen, share_frozen
from sps.policy.sharding import receive, shard
from sps.policy.update import Budget, make_optimizer
from sps.policy.weights import needs_base
from sps.ranks import ALONE, Ranks
from sps.rollout import RolloutEngine
from sps.rollout.table import ENGINES
from sps.run.began import refuse_elsewhere
from sps.run.folder import RECIPE, RECORD, ROLLOUTS
from sps.run.health import Health
from sps.run.track import Listener, Track, read_records
from sps.store.rollouts import RolloutStore
from sps.tasks import Task
from sps.tasks.table import TASKS
from sps.types import Problem, Request, Sampling
from sps.verify import open_verifier

BaseProgress = Callable[[int, int, float], None]


def open_run(
    recipe: Recipe,
    folder: Path,
    resume: bool = False,
    listeners: list[Listener] | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """Everything a run needs, new or resumed; bad input fails here, before any work."""
    algorithm_of(recipe.rl.algorithm), selector_of(recipe.irl.selector.type)  # their rows are there
    use_threads(recipe)
    if resume:
        unread = None if needs_base(folder, recipe) else {"model"}
        refuse_elsewhere(folder, recipe.model_dump(exclude=unread))
    check_mix(recipe)
    recipe = settle_dtype(recipe, folder)
    checkpoint, damaged = ranks.broadcast(lambda: claim(recipe, folder, resume))
    if not (folder / RECIPE).exists():
        raise UserError(f"{folder}: rank {ranks.rank} does not see it; use storage all nodes share")
    task = make_task(recipe)
    ranks.broadcast(lambda: keep_code(task.source, folder))
    splits = {split: task.problems(split) for split in ("train", "validation", "test")}
    data = digest(splits, whole=task.source is not None)
    ranks.broadcast(lambda: keep_data(data, folder))
    ranks.broadcast(lambda: keep_base(recipe.model, folder))
    adapted = recipe.model.lora is not None  # a checkpoint then holds the adapters alone
    policy = make_policy(recipe, str(checkpoint) if checkpoint and not adapted else None, ranks)
    use_threads(recipe, policy.model)
    if checkpoint and adapted:
        load_weights(policy, checkpoint)
    track = Track(folder / RECORD, listeners, silent=not ranks.main)
    run = _make_run(recipe, folder, track, policy, task, splits, data, ranks)
    task.warn = lambda text: track.log("warning", run.done, text=text)
    ranks.broadcast(lambda: keep_base(recipe.model, folder))  # those of a hub id are here only now
    if checkpoint:
        restore(run, checkpoint)
    else:
        if resume:  # killed before its first checkpoint
            forget(run)
        ranks.broadcast(lambda: _report_data(task, track))
        run.probe = make_probe(run, splits["validation"])
    run.memory, run.difficulty = make_memory(run), make_difficulty(run)
    ranks.broadcast(track.path.touch)  # from now on the folder holds a run
    if damaged:
        track.log("warning", run.start, text=damaged)
    return run


def use_threads(recipe: Recipe, model: Any = None) -> None:
    """As many CPU threads as the recipe says, else as suit the model."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    elif model is not None:
        torch.set_num_threads(best_threads(model))


def make_task(recipe: Recipe) -> Task:
    """The task a recipe names, with its data."""
    where = "TASKS (sps/tasks/table.py)"
    return row_of(TASKS, recipe.task.type, "task.type", where).make(recipe.task)


def settle_dtype(recipe: Recipe, folder: Path) -> Recipe:
    """With the dtype 'auto' stands for: what a run began with, whatever machine it goes on."""
    dtype, written = recipe.model.dtype, folder / RECIPE
    if dtype == "auto" and written.exists():
        dtype = load_recipe(written).model.dtype
    model = recipe.model.model_copy(update={"dtype": pick_dtype(dtype, _device(recipe))})
    return recipe.model_copy(update={"model": model})


def _device(recipe: Recipe) -> str:
    return pick_device(recipe.model.place, "model.device")


def make_policy(recipe: Recipe, path: str | None = None, ranks: Ranks = ALONE) -> Policy:
    """The policy at `path`, or the one the recipe starts from."""
    model, device = recipe.model, _device(recipe)
    if path is None and model.path is None:
        check_embedded(recipe.task)
        path = str(ranks.broadcast(lambda: ensure_base(recipe)))
    gguf = model.gguf if path is None else None
    # What will be sharded may not fit whole into one GPU.
    place = "cpu" if ranks.sharded else device
    dtype = pick_dtype(model.dtype, device)
    # One rank reads the weights and sends the others their shards.
    empty = ranks.sharded and not ranks.main
    where = path or str(model.path)
    policy = load_policy(where, gguf, dtype, place, model.trust_remote_code, empty)
    compiled = device == "cuda" if model.compile is None else model.compile
    use_adapters(policy.model, **model.lora.model_dump() if model.lora else {})
    prepare_training(policy.model, model.checkpointing, compiled)
    return policy


def load_whole(recipe: Recipe, path: str | None) -> Policy:
    """A checkpoint of a run, or the model that it begins from, in the host's memory."""
    model = recipe.model
    where = path or model.path or str(ensure_base(recipe))
    return load_policy(where, None if path else model.gguf, trust=model.trust_remote_code)


def check_mix(recipe: Recipe) -> None:
    """Before any work: what a run is mixed with at its end is there, and can be mixed."""
    where = recipe.model.path
    if not recipe.checkpoint.mix or where is None:
        return
    if base_of(Path(where)):
        raise UserError(
            f"checkpoint.mix: {where} (model.path) holds LoRA adapters, and their mix with those "
            "that go on from them has a higher rank. Leave it out, or merge the adapters first"
        )
    if not Path(where).exists() and not is_hub_id(where):
        raise UserError(
            f"checkpoint.mix: the run ends with a mix with its base, and {where} (model.path) is "
            "not there. Put it back, or give the path from the folder that the run began in"
        )


def make_engine(
    policy: Policy, max_rows: int, rollout: Rollouts | None = None, ranks: Ranks = ALONE
) -> RolloutEngine:
    """What the recipe's rollouts ask for, else the native engine."""
    name = rollout.engine if rollout else "native"
    row = row_of(ENGINES, name, "rollout.engine", "ENGINES (sps/rollout/table.py)")
    settings = getattr(rollout, name, None)
    if ranks.deepspeed and not row.deepspeed:
        raise UserError(f"rollout.engine: {name} goes with launch/ddp.yaml and launch/fsdp2.yaml")
    return row.make(policy, max_rows, ranks, settings)


def ensure_base(
    recipe: Recipe, progress: BaseProgress = lambda step, of, loss: None, again: bool = False
) -> Path:
    """The folder of the embedded policy: shipped, cached, or made now."""
    check_embedded(recipe.task)
    task: Any = make_task(recipe)
    base, keys = recipe.model.base, TASKS[recipe.task.type].embedded
    shape = recipe.task.model_dump(include=set(keys))
    name = embedded.base_hash(base.model_dump(), shape)
    found = embedded.find_base(name)
    if found and not again:
        return found
    tokenizer = embedded.make_tokenizer(task.vocabulary())
    texts = ((p.question, text) for p, text in task.attempts(base.seed, base.solved))
    training = base.model_dump(exclude={"solved"})
    return embedded.make_base(
        embedded.cache_folder() / name, tokenizer, texts, progress, **training
    )


def make_probe(run: Run, problems: list) -> Probe:
    """Rollouts of the first policy on held-out problems, to measure later policies on."""
    settings, rollout = run.recipe.meter, run.recipe.rollout
    sampling = Sampling(settings.samples, rollout.max_new_tokens, rollout.temperature, seed=31337)
    requests = [
        Request(i, run.prompt_ids(p), tuple(range(settings.samples)))
        for i, p in enumerate(problems[: settings.problems])
    ]
    own = [*run.engine.generate(requests, sampling)]  # on every rank; the first one's count
    drawn = sorted(run.ranks.broadcast(lambda: own), key=lambda c: (c.index, c.sample))
    prompts = [np.array(requests[c.index].prompt_ids) for c in drawn]
    return make_probe_of(run, prompts, [c.ids for c in drawn])


def _report_data(task: Task, track: Track) -> None:
    """Put on record, once a run, what was left out of the data and what leaks from it."""
    said = {key for record in read_records(track.path) for key in record}
    for found in task.findings():
        if found.key not in said:
            track.log(found.kind, 0, text=found.text, **{found.key: found.rows})


def _make_run(
    recipe: Recipe,
    folder: Path,
    track: Track,
    policy: Policy,
    task: Task,
    splits: dict[str, list[Problem]],
    data: str,
    ranks: Ranks,
) -> Run:
    settings = recipe.rl.optimizer
    reference = None
    if recipe.rl.algorithm.beta > 0:
        reference = make_policy(recipe, ranks=ranks).scorer.requires_grad_(False)
        round_frozen(reference.model)
        if ranks.deepspeed:  # which has one model to divide
            receive(reference, ranks)
            reference.to(ranks.accelerator.device)
        else:
            shard(reference, ranks)
    # Before the weights are sharded: an engine starts from whole ones.
    engine = make_engine(policy, recipe.rollout.max_rows, recipe.rollout, ranks)
    policy.scorer = shard(policy.scorer, ranks)
    if ranks.sharded:
        engine.load_weights(policy.model)
    elif reference is not None:  # after the engine, which may have taken frozen weights in
        share_frozen(policy.model, reference.model)
    run = Run(
        recipe=recipe,
        policy=policy,
        reference=reference,
        engine=engine,
        verifier=open_verifier(task),
        task=task,
        sampler=Sampler(
            len(splits["train"]), recipe.seed, source_N=sources_of(recipe.task, splits["train"])
        ),
        store=RolloutStore(folder / ROLLOUTS),
        optimizer=make_optimizer(
            policy.model,
            recipe.rl.lr,
            settings.betas,
            settings.eps,
            settings.weight_decay,
            settings.bits,
        ),
        budget=Budget(recipe.rl.micro_tokens, engine.shrink),
        folder=folder,
        load=lambda path: load_whole(recipe, path),
        track=track,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        data=data,
        ranks=ranks,
    )
    draw = recipe.rl.algorithm.steps_per_generation
    run.health = Health(run.schedule.phase_steps, recipe.rollout.prompts * recipe.rollout.n, draw)
    return run
