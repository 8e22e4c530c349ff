"""The runs of a comparison, in worker processes.

Runs are independent, and at this size one thread each is fastest, so they go to worker processes.
Whatever has finished stays finished: a comparison that is started again takes it from disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from sps.commands.began import TaskNow
from sps.commands.points import (
    add_temperatures,
    ended_with,
    has_ended,
    lacks_base,
    opened,
    refuse_lost_end,
    share_base,
)
from sps.config.load import differences, load_recipe
from sps.config.recipe import Recipe
from sps.errors import Stopped, UserError
from sps.phases.schedule import Schedule
from sps.policy.weights import needs_base, refuse_other_base
from sps.run.began import refuse_elsewhere
from sps.run.disk import write_whole
from sps.run.folder import (
    RECIPE,
    RECORD,
    RESULT,
    checkpoint_path,
    scores_path,
    seed_path,
)
from sps.run.lock import release
from sps.run.reading import read_json
from sps.run.stop import Stop
from sps.run.track import parse_record, read_records

Summaries = dict[str, dict[str, Any]]  # method name -> summary of its scores


@dataclass(frozen=True)
class Extra:
    """Another use of a trained run: an earlier checkpoint, a mix of its weights with the base's."""

    name: str
    step: int | None = None
    mix: float | None = None  # the base's share


@dataclass(frozen=True)
class Job:
    """One run of one method, or the evaluation of the untrained policy when `train` is False."""

    method: str
    recipe: Recipe
    folder: Path
    extras: tuple[Extra, ...] = ()
    train: bool = True
    base: Path | None = None  # where the base's other temperatures are measured; its own: to do so

    @property
    def tempers_base(self) -> bool:
        """Whether it is the evaluation of the untrained policy at other temperatures."""
        return self.folder == self.base


Progress = Callable[[list[Job], dict[str, str], float], None]  # jobs, state of each folder, seconds


def plan(
    recipes: dict[str, Recipe], seeds: int, out: Path, extras: dict[str, list[Extra]], threads: int
) -> list[Job]:
    """Every method with every seed, long jobs first; then the base once, and its other temperatures
    once for all runs that measure it alike."""
    jobs = []
    for seed in range(seeds):
        for method, recipe in recipes.items():
            own = recipe.model_copy(update={"seed": recipe.seed + seed, "threads": threads})
            folder = seed_path(out, method, own.seed)
            base = _tempered_base(out, own) if own.evaluation.temperatures else None
            jobs.append(Job(method, own, folder, tuple(extras.get(method, ())), base=base))
    jobs.sort(key=lambda job: -len(job.extras))
    first = jobs[0].recipe
    bases = {
        job.base: job.recipe for job in jobs if job.base and lacks_base(job.recipe, job.folder)
    }
    return [
        *jobs,
        Job("base", first, out / "base" / "eval", train=False),
        *(Job("base", own, place, train=False, base=place) for place, own in bases.items()),
    ]


def _tempered_base(out: Path, recipe: Recipe) -> Path:
    """One folder for all recipes whose base has the same samples on the validation problems."""
    how = {"evaluation": {"validation_n", "top_p", "top_k", "seed"}}
    asked = recipe.model_dump_json(include={**MEASURED, **how})
    return out / "base" / f"temperatures-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"


def saved_steps(recipe: Recipe) -> list[int]:
    """The RL steps whose checkpoints a run leaves, as its loop saves them; the best on validation,
    which `keep` spares, is known to none before it."""
    return Schedule(recipe).saved()[-recipe.checkpoint.keep :]  # all where keep is 0


def run_jobs(
    jobs: list[Job], progress: Progress, workers: int | None = None
) -> dict[str, Summaries]:
    """Have every job done; by folder, what each found."""
    began = time.time()
    _refuse_others(jobs)
    gpus = _gpus(jobs)
    workers = min(len(jobs), workers or gpus or os.cpu_count() or 1)
    found: dict[str, Summaries] = {}
    context = get_context("spawn")
    numbers: Queue[int] = context.Queue()
    for number in range(workers if gpus else 0):
        numbers.put(number % gpus)
    begin = (_take_gpu, (numbers,)) if gpus else (None, ())
    with ProcessPoolExecutor(workers, context, *begin) as pool:
        try:
            for _ in _collect(pool, jobs, found):
                progress(jobs, _states(jobs, found), time.time() - began)
        except BaseException as error:
            if isinstance(error, Stopped):  # the workers save what they do, and end, too
                for worker in active_children():
                    worker.terminate()
            pool.shutdown(wait=isinstance(error, Stopped), cancel_futures=True)
            raise
    for job in jobs:
        if job.train and job.base:
            share_base(job.recipe, job.base, job.folder)
    return found


def _collect(
    pool: ProcessPoolExecutor, jobs: list[Job], found: dict[str, Summaries]
) -> Iterator[None]:
    """Have every job done; what each found goes to `found`. Yields every second."""
    pending: dict[Future[Summaries], Job] = {pool.submit(run_job, job): job for job in jobs}
    while pending:
        for future in _finished(pending):
            job = pending.pop(future)
            found.setdefault(str(job.folder), {}).update(future.result())
            if job.train:  # other uses of a run wait for it, and then for any free worker
                later = [replace(job, extras=(extra,), train=False) for extra in job.extras]
                pending |= {pool.submit(run_extra, extra): extra for extra in later}
        yield


def run_job(job: Job) -> Summaries:
    """One job, in a worker process. A job that ended before is read from its folder; of a run, the
    temperatures that were not asked for before are added."""
    refuse_other(job)
    if job.tempers_base:
        if lacks_base(job.recipe, job.folder):
            _run(job)
        return {}
    if not _ended(job):
        _run(job)
    if job.train:
        add_temperatures(job.recipe, job.folder)
    return _written(job.folder / RESULT)


def _run(job: Job) -> None:
    # Imported here: the parent process never needs torch.
    from sps.build import open_run
    from sps.lifecycle.measure import measure, temper_base
    from sps.loop import train
    from sps.progress.trackers import follow

    stop = Stop()
    resume = any((job.folder / name).exists() for name in (RECIPE, RECORD))
    # One that was begun may have other temperatures, and a base that measures it alike more.
    recipe = load_recipe(job.folder / RECIPE) if _begun(job) else job.recipe
    try:
        with stop.listening():
            with stop.window():
                run = open_run(recipe, job.folder, resume)
            run.stop, run.base_apart = stop, job.base is not None
            if job.tempers_base:
                temper_base(run, job.recipe.evaluation.temperatures)
            elif job.train:
                follow(run.track, job.recipe, f"{job.method} seed {job.recipe.seed}")
                # Where evaluation.final is off, no test problem is touched: the last validation.
                scores = train(run) or run.scores[job.recipe.rl.steps]
                _keep(job, {**scores.summary(), **_seconds(job.folder)})
            else:
                n = job.recipe.evaluation.n
                _keep(job, measure(run, "test-000000", run.test, n, 0).summary())
        run.close()
    finally:
        release(job.folder)


def _keep(job: Job, summary: dict[str, Any]) -> None:
    """A job that has ended says so with its scores."""
    write_whole(job.folder / RESULT, json.dumps({job.method: summary}, indent=1))


def run_extra(job: Job) -> Summaries:
    """Another use of a run that has ended: its extra's checkpoint, or mix of the selected one."""
    refuse_other(job)
    extra, how, heat = job.extras[0], job.recipe.evaluation, job.recipe.evaluation.temperature
    step = ended_with(job.folder, job.recipe.rl.steps)[0] if extra.step is None else extra.step
    name = f"test-{step:06d}-{heat:g}" if extra.mix is None else f"mix-{extra.mix:g}-{step:06d}"
    written = scores_path(job.folder, name)
    if not written.exists():
        weights = checkpoint_path(job.folder, step)
        with opened(job.recipe, job.folder, weights, extra.mix or 0.0) as ask:
            scores = ask(name, "test", how.n, heat)
        write_whole(written, json.dumps(scores.summary(), indent=1))
    return {extra.name: _written(written)}


# What the scores of an untrained policy depend on.
MEASURED: dict[str, Any] = {
    "model": True,
    "task": True,
    "rollout": {"engine", "max_new_tokens"},
    "evaluation": {"n", "temperature", "top_p", "top_k", "seed"},
}


def refuse_other(job: Job) -> None:
    """What a job's folder holds must be of its recipe: the result of another is not its result."""
    if not _begun(job):
        return
    only = None if job.train or job.extras else MEASURED
    before, now = load_recipe(job.folder / RECIPE), job.recipe
    # Only where the base's are measured, too: not of sps tune.
    more = job.base is not None and {*before.evaluation.temperatures} <= {
        *now.evaluation.temperatures
    }
    free = {"evaluation": {"temperatures"}} if more else None  # they are added
    old, new = (recipe.model_dump(include=only, exclude=free) for recipe in (before, now))
    changed = [*differences(old, new)]
    heats = ",".join(f"{heat:g}" for heat in before.evaluation.temperatures)
    if heats and [text.split()[0] for text in changed] == ["evaluation.temperatures"]:
        raise UserError(
            f"{job.folder}: its run has other evaluation.temperatures. Give these again: {heats} "
            f"(sps compare: --temperatures {heats}, and more if you like); or choose another "
            "folder with --out"
        )
    if changed:
        raise UserError(
            f"{job.folder}: it holds a run of another recipe: {'; '.join(changed)}. Choose another "
            "folder with --out, or remove this one"
        )
    unread = None if not _ended(job) and needs_base(job.folder, now) else {"model"}
    refuse_elsewhere(job.folder, now.model_dump(exclude=unread))
    refuse_other_base(job.folder, now.model.path, now.model.gguf)


def _refuse_others(jobs: list[Job]) -> None:
    """Before any work. Tasks are read where there are runs of before, each task once."""
    known: dict[str, TaskNow] = {}
    for job in jobs:
        refuse_other(job)
        if job.train and _ended(job):
            refuse_lost_end(job.recipe, job.folder)
        if _begun(job):
            config = job.recipe.task
            name = config.model_dump_json()
            if name not in known:
                known[name] = TaskNow(config)
            known[name].refuse_other(job.folder)


def _ended(job: Job) -> bool:
    """Its result is enough, unless more is asked of what a run ended with."""
    return (job.folder / RESULT).exists() and (job.base is None or has_ended(job.folder))


def _begun(job: Job) -> bool:
    return any((job.folder / name).exists() for name in (RESULT, RECORD))


def _written(path: Path) -> Any:
    """Scores that an earlier comparison left."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove it, and its scores are made again"
        ) from None


def _seconds(folder: Path) -> dict[str, float]:
    """Time in RL and in IRL, from the run's own record."""
    totals = {"rl": 0.0, "irl": 0.0}
    for record in read_records(folder / RECORD):
        if record["kind"] in totals:
            parts = (v for name, v in record.items() if name.startswith("seconds/"))
            totals[record["kind"]] += sum(parts)
    return {"rl_seconds": totals["rl"], "irl_seconds": totals["irl"]}


def _gpus(jobs: list[Job]) -> int:
    """GPUs for the jobs, one a worker; 0 where they run on the CPU."""
    if all(job.recipe.model.place == "cpu" for job in jobs):
        return 0
    import torch

    return torch.cuda.device_count()


def _take_gpu(numbers: Queue[int]) -> None:
    """A worker sees one GPU alone, before it has looked at any."""
    number = numbers.get()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[number] if seen else str(number)


def _finished(pending: Iterable[Future[Summaries]]) -> set[Future[Summaries]]:
    """Jobs that ended within the next second."""
    return wait(pending, timeout=1.0, return_when=FIRST_COMPLETED).done


def _states(jobs: list[Job], found: dict[str, Summaries]) -> dict[str, str]:
    """A few words on each job, from the end of its record."""
    states = {}
    for job in jobs:
        name = str(job.folder)
        if name in found:
            states[name] = _done(found[name].get(job.method))
            continue
        record = _last_record(job.folder / RECORD)
        if record is None:
            states[name] = "running" if (job.folder / RECIPE).exists() else "waiting"
        elif record["step"] >= job.recipe.rl.steps or record["kind"] == "eval" or not job.train:
            states[name] = "evaluating"
        else:
            reward = f", reward {record['reward']:.3f}" if "reward" in record else ""
            states[name] = f"step {record['step']}/{job.recipe.rl.steps}{reward}"
    return states


def _done(summary: dict[str, Any] | None) -> str:
    if summary is None:  # the base at other temperatures
        return "done"
    best = summary["pass_at_k"]
    top = max(best, key=int)
    return f"done: Pass@1 {best['1'][0]:.1%}, Pass@{top} {best[top][0]:.1%}"


def _last_record(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = (record for line in reversed(lines) if (record := parse_record(line)) is not None)
    return next(found, None)
