"""Methods against each other: same budget, several seeds, paired by question, one table.

Runs are independent, and at this size one thread each is fastest, so they go to worker processes.
Whatever has finished stays finished: a comparison that is started again takes it from disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import active_children, get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np

from sps.algo.passk import mean_interval, paired
from sps.commands.frontier import frontier_record
from sps.config.recipe import Recipe, differences, load_recipe
from sps.errors import Stopped, UserError
from sps.evaluate.scores import Scores, read_scores
from sps.run.disk import write_whole
from sps.run.lock import release
from sps.run.reading import read_json
from sps.run.stop import Stop
from sps.run.track import parse_record, read_records
from sps.types import Sampling

Summaries = dict[str, dict[str, Any]]  # method name -> summary of its test scores


@dataclass(frozen=True)
class Extra:
    """Another way to use a trained run: an earlier checkpoint, another temperature, a mix of its
    weights with the base's."""

    name: str
    step: int | None = None
    temperature: float | None = None
    mix: float | None = None  # the base's share


@dataclass(frozen=True)
class Job:
    """One run of one method, or the evaluation of the untrained policy when `train` is False."""

    method: str
    recipe: Recipe
    folder: Path
    extras: tuple[Extra, ...] = ()
    train: bool = True


Watch = Callable[[list[Job], dict[str, str], float], None]  # jobs, state of each folder, seconds


def plan(
    recipes: dict[str, Recipe], seeds: int, out: Path, extras: dict[str, list[Extra]], threads: int
) -> list[Job]:
    """The base once, then every method with every seed; long jobs first."""
    jobs = []
    for seed in range(seeds):
        for method, recipe in recipes.items():
            own = recipe.model_copy(update={"seed": recipe.seed + seed, "threads": threads})
            folder = out / method / f"seed-{own.seed}"
            jobs.append(Job(method, own, folder, tuple(extras.get(method, ()))))
    jobs.sort(key=lambda job: -len(job.extras))
    first = jobs[0].recipe
    return [*jobs, Job("base", first, out / "base" / "eval", train=False)]


def saved_steps(recipe: Recipe) -> list[int]:
    """The RL steps whose checkpoints a run leaves, as its loop saves them; the best on validation,
    which `keep` spares, is known to none before it."""
    every, keep, total = recipe.checkpoint.every, recipe.checkpoint.keep, recipe.rl.steps
    rounds = recipe.rl.algorithm.steps_per_generation
    phase = recipe.irl.every if recipe.irl.steps else 0  # plain RL cuts no generation short
    settled = [0]
    for step in range(1, total + 1):
        place = (step - 1) % phase + 1 if phase else step
        if step == total or place == phase or place % rounds == 0:
            settled.append(step)
    due = [s for a, s in pairwise(settled) if s == total or (every and s // every > a // every)]
    return due[-keep:]  # all where keep is 0


def compare(jobs: list[Job], out: Path, watch: Watch, workers: int | None = None) -> dict[str, Any]:
    """Run every job, collect the scores, write results.json."""
    began = time.time()
    for job in jobs:
        refuse_other(job)
    gpus = _gpus(jobs)
    workers = min(len(jobs), workers or gpus or os.cpu_count() or 1)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Summaries] = {}
    context = get_context("spawn")
    cards: Queue[int] = context.Queue()
    for number in range(workers if gpus else 0):
        cards.put(number % gpus)
    begin = (_take_card, (cards,)) if gpus else (None, ())
    with ProcessPoolExecutor(workers, context, *begin) as pool:
        try:
            _collect(pool, jobs, found, lambda: watch(jobs, _states(jobs, found), _since(began)))
        except BaseException as error:
            if isinstance(error, Stopped):  # the workers save what they do, and end, too
                for worker in active_children():
                    worker.terminate()
            pool.shutdown(wait=isinstance(error, Stopped), cancel_futures=True)
            raise
    results = summarise(jobs, found)
    results["frontier"] = frontier_record((job.method, job.folder) for job in jobs if job.train)
    results["wall_seconds"] = _since(began)
    write_whole(out / "results.json", json.dumps(results, indent=1))
    return results


def _collect(
    pool: ProcessPoolExecutor,
    jobs: list[Job],
    found: dict[str, Summaries],
    watch: Callable[[], None],
) -> None:
    """Have every job done; what each found goes to `found`."""
    pending: dict[Future[Summaries], Job] = {pool.submit(run_job, job): job for job in jobs}
    while pending:
        for future in _finished(pending):
            job = pending.pop(future)
            found.setdefault(str(job.folder), {}).update(future.result())
            if job.train:  # other uses of a run wait for it, and then for any free worker
                later = [replace(job, extras=(extra,), train=False) for extra in job.extras]
                pending |= {pool.submit(run_extra, extra): extra for extra in later}
        watch()


def _since(began: float) -> float:
    return time.time() - began


def run_job(job: Job) -> Summaries:
    """One job, in a worker process. A job that ended before is read from its folder."""
    written = job.folder / "result.json"
    if written.exists():
        refuse_other(job)
        return _written(written)
    # Imported here: the parent process never needs torch.
    from sps.build import open_run
    from sps.lifecycle.measure import measure
    from sps.loop import train
    from sps.progress.trackers import follow

    stop = Stop()
    resume = any((job.folder / name).exists() for name in ("recipe.yaml", "metrics.jsonl"))
    try:
        with stop.listening():
            with stop.window():
                run = open_run(job.recipe, job.folder, resume)
            run.stop = stop
            if job.train:
                follow(run.track, job.recipe, f"{job.method} seed {job.recipe.seed}")
                scores = train(run)
                if scores is None:
                    raise UserError(
                        f"{job.method}: evaluation.final is off, so there is nothing to compare"
                    )
                summary = {**scores.summary(), **_seconds(job.folder)}
            else:
                n = job.recipe.evaluation.n
                summary = measure(run, "test-000000", run.test, n, 0).summary()
        run.close()
        write_whole(written, json.dumps({job.method: summary}, indent=1))
    finally:
        release(job.folder)
    return {job.method: summary}


def run_extra(job: Job) -> Summaries:
    """Another use of a run that has ended: its extra's checkpoint, temperature and mix."""
    from sps.build import (
        make_engine,
        make_policy,
        make_task,
        make_verifier,
        settle_dtype,
        use_threads,
    )
    from sps.evaluate.evaluate import evaluate
    from sps.lifecycle.measure import checkpoint_path
    from sps.policy.mix import mix_into
    from sps.store.evals import EvalStore

    refuse_other(job)
    recipe, extra = settle_dtype(job.recipe, job.folder), job.extras[0]
    how, step = recipe.evaluation, recipe.rl.steps if extra.step is None else extra.step
    heat = how.temperature if extra.temperature is None else extra.temperature
    name = f"test-{step:06d}-{heat:g}" if extra.mix is None else f"mix-{extra.mix:g}-{step:06d}"
    written = job.folder / "evals" / f"{name}.json"
    if not written.exists():
        use_threads(recipe)
        task = make_task(recipe)
        policy = make_policy(recipe, str(checkpoint_path(job.folder, step)))
        if extra.mix is not None:
            mix_into(policy.model, make_policy(recipe).model, extra.mix)
        engine, verifier = make_engine(policy, recipe.rollout.max_rows), make_verifier(recipe, task)
        sampling = Sampling(
            how.n, recipe.rollout.max_new_tokens, heat, how.top_p, how.top_k, how.seed
        )
        store = EvalStore(written.with_suffix(""))
        test = task.problems("test")
        scores = evaluate(policy, engine, verifier, task, test, sampling, store)
        verifier.close()
        write_whole(written, json.dumps(scores.summary(), indent=1))
    return {extra.name: _written(written)}


# What the scores of an untrained policy depend on.
_MEASURED = {
    "model": True,
    "task": True,
    "rollout": {"engine", "max_new_tokens"},
    "evaluation": {"n", "temperature", "top_p", "top_k", "seed"},
}


def refuse_other(job: Job) -> None:
    """What a job's folder holds must be of its recipe: the result of another is not its result."""
    if not any((job.folder / name).exists() for name in ("result.json", "metrics.jsonl")):
        return
    only = None if job.train or job.extras else _MEASURED
    before, now = load_recipe(job.folder / "recipe.yaml"), job.recipe
    changed = [*differences(before.model_dump(include=only), now.model_dump(include=only))]
    if changed:
        raise UserError(
            f"{job.folder}: it holds a run of another recipe: {'; '.join(changed)}. Choose another "
            "folder with --out, or remove this one"
        )


def summarise(jobs: list[Job], found: dict[str, Summaries]) -> dict[str, Any]:
    """Every method's Pass@k with intervals over seeds and questions, and paired differences."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        for name, summary in found[str(job.folder)].items():
            runs.setdefault(name, []).append(summary)
    scores = {name: [read_scores(s) for s in summaries] for name, summaries in runs.items()}
    order = ["base", *(name for name in runs if name != "base")]
    for name in order:
        _same_questions("base", scores["base"][0], name, scores[name])
    methods = {name: _method(scores[name], runs[name]) for name in order}
    first = jobs[0].method if len(jobs) > 1 else "base"
    pairs = [("base", b) for b in order[1:]]
    pairs += [(first, b) for b in order[1:] if b != first]
    rows = [row for a, b in pairs for row in _pair(a, b, scores[a], scores[b])]
    return {"methods": methods, "paired": rows, "reference": first}


def _same_questions(a: str, known: Scores, b: str, scores: list[Scores]) -> None:
    """Questions are paired by their place."""
    for one in scores:
        if one.ids != known.ids:
            odd = ", ".join(sorted({*known.ids} ^ {*one.ids})[:3]) or "none, but in another order"
            raise UserError(
                f"{a} and {b} were evaluated on different questions ({len(known.ids)} and "
                f"{len(one.ids)}; not in both: {odd}); give their recipes the same task"
            )


def _method(scores: list[Scores], summaries: list[dict[str, Any]]) -> dict[str, Any]:
    ks = scores[0].report_ks()
    curve = {str(k): list(mean_interval(_stack(scores, k))) for k in ks}
    greedy = [s.greedy_logprob for s in scores if s.greedy_logprob is not None]
    details: dict[str, int] = {}
    for s in scores:
        for kind, count in s.details.items():
            details[kind] = details.get(kind, 0) + count
    return {
        "pass_at_k": curve,
        "avg": curve["1"],
        "seeds": len(scores),
        "n": scores[0].n,
        "questions": len(scores[0].ids),
        # Right samples of each question, a line a seed: what any interval can be made of again.
        "correct": [" ".join(map(str, s.correct_Q.tolist())) for s in scores],
        "rl_seconds": float(np.mean([s.get("rl_seconds", 0.0) for s in summaries])),
        "irl_seconds": float(np.mean([s.get("irl_seconds", 0.0) for s in summaries])),
        "greedy_logprob": float(np.mean(greedy)) if greedy else None,
        "token_logprob": float(np.mean([s.mean_logprob for s in scores])),
        "details": details,
    }


def _pair(a: str, b: str, a_scores: list[Scores], b_scores: list[Scores]) -> list[dict[str, Any]]:
    top = a_scores[0].n
    rows = []
    for k in sorted({1, min(8, top), min(32, top), top}):
        result = paired(_stack(a_scores, k), _stack(b_scores, k))
        delta, verdict = list(result.delta), result.verdict
        rows.append({"a": a, "b": b, "k": k, "delta": delta, "verdict": verdict, "p": result.p})
    return rows


def _written(path: Path) -> Any:
    """Scores that an earlier comparison left."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove it, and its scores are made again"
        ) from None


def _stack(scores: list[Scores], k: int) -> np.ndarray:
    return np.stack([s.per_question(k) for s in scores])


def _seconds(folder: Path) -> dict[str, float]:
    """Time in RL and in IRL, from the run's own record."""
    totals = {"rl": 0.0, "irl": 0.0}
    for record in read_records(folder / "metrics.jsonl"):
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


def _take_card(cards: Queue[int]) -> None:
    """A worker sees one GPU alone, before it has looked at any."""
    number = cards.get()
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
            best = found[name][job.method]["pass_at_k"]
            top = max(best, key=int)
            states[name] = f"done: Pass@1 {best['1'][0]:.1%}, Pass@{top} {best[top][0]:.1%}"
            continue
        record = _last_record(job.folder / "metrics.jsonl")
        if record is None:
            states[name] = "running" if (job.folder / "recipe.yaml").exists() else "waiting"
        elif record["step"] >= job.recipe.rl.steps or record["kind"] == "eval" or not job.train:
            states[name] = "evaluating"
        else:
            reward = f", reward {record['reward']:.3f}" if "reward" in record else ""
            states[name] = f"step {record['step']}/{job.recipe.rl.steps}{reward}"
    return states


def _last_record(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = (record for line in reversed(lines) if (record := parse_record(line)) is not None)
    return next(found, None)
