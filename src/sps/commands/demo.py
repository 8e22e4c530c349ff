"""`sps demo`: GRPO, SPS and memory with SPS on Countdown, with nothing to download."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from sps.commands.compare import run_compare, take_folder
from sps.commands.jobs import Job, run_jobs
from sps.commands.terminal import console, say, status
from sps.commands.train import make_base
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.config.shipped import shipped_recipes
from sps.phases.schedule import Schedule
from sps.run.disk import write_whole
from sps.run.folder import LOCK, RECORD, RESULTS
from sps.run.lock import hold
from sps.run.reading import read_json
from sps.run.track import read_records

_RECIPES = ("demo/countdown_grpo", "demo/countdown_sps_phases", "demo/countdown_sps")
_HEATS = "0.7,0.4"  # sampling temperatures beside 1
_BUDGET = 360.0  # seconds
_SEEDS = (3, 2, 1)  # the first that fits
_SPEED = "speed.json"
_QUICK = [
    "rl.steps=30",
    "irl.every=10",
    "irl.batch=128",
    "evaluation.n=32",
    "evaluation.validation_n=8",
    "evaluation.every=10",
    "checkpoint.every=10",
    "task.validation=60",
    "task.test=60",
]
# A few steps of the real thing, one of IRL with a full batch, two validations; no test problem.
_TASTE = [
    "rl.steps=12",
    "irl.every=12",
    "irl.steps=1",
    "evaluation.every=12",
    "evaluation.validation_n=4",
    "evaluation.final=false",
    "checkpoint.every=0",
    "threads=1",
]


def run_demo(out: Path | None, seeds: int | None, quick: bool, again: bool) -> None:
    """The base, GRPO, SPS, and memory with SPS; as many seeds as fit into the time."""
    began = time.time()
    out = out or Path("runs") / ("demo-quick" if quick else "demo")
    if again and (out / RESULTS).exists():
        _clear(out)
    recipes = [shipped_recipes()[name] for name in _RECIPES]
    console.print(_purpose(quick))
    if quick:
        seeds = 1
    elif seeds is None:
        seeds = _fitting_seeds(recipes, out, began)
    run_compare(recipes, seeds, out, "", "" if quick else _HEATS, 0, _QUICK if quick else [])


@dataclass(frozen=True)
class Speed:
    """Seconds of one worker while all of them work."""

    start: float  # until it takes its first step
    step: float  # of RL
    irl_step: float
    sample: float  # of an evaluation


def _fitting_seeds(paths: list[Path], out: Path, began: float) -> int:
    """As many as the machine can do in time; a demo that goes on has as many as it began with."""
    take_folder(out, "sps demo")
    written = out / _SPEED
    if written.exists():
        return int(read_json(written)["seeds"])
    recipes = [load_recipe(path, [f"evaluation.temperatures=[{_HEATS}]"]) for path in paths]
    make_base(recipes[0])
    cores = os.cpu_count() or 1
    with status("measuring the speed of this machine"):
        speed = measure_speed(paths[-1], min(cores, _SEEDS[0] * len(recipes)))
    spent = time.time() - began
    plans = {n: spent + expected_seconds(recipes, n, speed, cores) for n in _SEEDS}
    seeds = next((n for n, seconds in plans.items() if seconds <= _BUDGET), _SEEDS[-1])
    record = {"seeds": seeds, "seconds": plans[seeds], "cores": cores, **asdict(speed)}
    write_whole(written, json.dumps(record, indent=1))
    say(
        f"{seeds} seed{'s' * (seeds > 1)} of each method, about {plans[seeds] / 60:.1f} minutes: "
        f"an RL step takes {speed.step:.2f} s on each of {cores} cores\n"
    )
    return seeds


def measure_speed(path: Path, workers: int) -> Speed:
    """Of short runs of a recipe, one a worker, at the same time."""
    recipe, began = load_recipe(path, _TASTE), time.time()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        jobs = [
            Job("speed", recipe.model_copy(update={"seed": i}), Path(place) / str(i))
            for i in range(workers)
        ]
        run_jobs(jobs, lambda *_: None, workers)
        runs = [read_records(job.folder / RECORD) for job in jobs]
    records = [record for run in runs for record in run]

    def seconds(kind: str) -> list[float]:
        found = [record for record in records if record["kind"] == kind]
        return [sum(v for k, v in r.items() if k.startswith("seconds/")) for r in found]

    samples = [r["n"] * r["questions"] for r in records if r["kind"] == "eval"]
    start = max(run[0]["time"] for run in runs) - began
    sample = sum(seconds("eval")) / sum(samples)
    return Speed(start, median(seconds("rl")), median(seconds("irl")), sample)


def expected_seconds(recipes: list[Recipe], seeds: int, speed: Speed, workers: int) -> float:
    """Until all runs and the report are done, each job on the worker that is free first."""
    busy = [0.0] * workers
    for job in [*(job_seconds(recipe, speed) for recipe in recipes)] * seeds:
        busy[busy.index(min(busy))] += job
    first, how = recipes[0], recipes[0].evaluation
    tempered = len(how.temperatures) * first.task.validation * how.validation_n
    for samples in (_test_samples(first), tempered):  # of the base
        busy[busy.index(min(busy))] += samples * speed.sample
    return 2 * speed.start + max(busy)  # the report takes about as long as a worker's start


def job_seconds(recipe: Recipe, speed: Speed) -> float:
    """Of one run, from its schedule."""
    schedule, task = Schedule(recipe), recipe.task
    irl_steps = recipe.irl.steps * sum(phase.irl for phase in schedule.phases())
    validations = len(schedule.evaluated()) + len(recipe.checkpoint.shares)
    validations += len(recipe.evaluation.temperatures)  # at the end
    samples = validations * task.validation * recipe.evaluation.validation_n
    samples += _test_samples(recipe)
    return recipe.rl.steps * speed.step + irl_steps * speed.irl_step + samples * speed.sample


def _test_samples(recipe: Recipe) -> int:
    return recipe.task.test * recipe.evaluation.n


def _clear(out: Path) -> None:
    """Remove what a folder holds, unless a job is using it."""
    hold(out, "sps demo --again")
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _purpose(quick: bool) -> str:
    """What the demo shows, before it does."""
    if not quick:
        return (
            "Countdown: reach a target from four numbers. A small policy has seen mostly\n"
            "aimless attempts; RL sharpens it. Watch Pass@1 rise and Pass@128 fall, and what\n"
            "SPS and memory do about that. Memory + SPS ends mixed with the base: 0.3 of its\n"
            "weights are the base's. At last all are sampled colder, the base too, which\n"
            "sharpens without training.\n"
        )
    small = dict(pair.split("=") for pair in _QUICK)
    return (
        f"A smoke test: {small['rl.steps']} steps, {small['task.test']} test problems, one seed. "
        "It shows that everything\nruns; the effect needs the full demo (a few minutes).\n"
    )
