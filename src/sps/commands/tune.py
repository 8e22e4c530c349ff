"""`sps tune`: the same number of settings for every method, chosen on validation problems alone."""

from __future__ import annotations

import itertools
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from sps.algo.frontier import areas
from sps.commands.compare import have_done
from sps.commands.jobs import Job, Summaries
from sps.commands.methods import base_differs, by_name, parse_values
from sps.commands.terminal import console, say
from sps.config.load import load_recipe, override
from sps.config.recipe import Recipe
from sps.config.shipped import find_recipe
from sps.diagnose.frontier import validation_paths
from sps.diagnose.read import read_run
from sps.errors import UserError
from sps.reporting.style import spelled
from sps.run.disk import write_whole
from sps.run.folder import seed_path
from sps.run.lock import release

TUNED = "tune.json"


@dataclass(frozen=True)
class Trial:
    """One setting of one method."""

    method: str
    settings: list[str]  # key=value
    jobs: list[Job]  # one a seed

    @property
    def name(self) -> str:
        """Among all trials."""
        return self.jobs[0].method


def run_tune(paths: list[Path], over: list[str], trials: int, seeds: int, out: Path) -> None:
    """Run the trials and choose a winner for each method: tune.json, and a recipe a winner."""
    recipes = by_name([load_recipe(path) for path in paths])
    files = dict(zip(recipes, paths, strict=True))
    drawn = draw_settings([parse_values(item, "--over") for item in over], trials)
    made = [
        make_trial(method, files[method], number, settings, seeds, out)
        for method in recipes
        for number, settings in drawn.items()
    ]
    _validated_alike(next(iter(recipes.values())), made)
    found = have_done([job for trial in made for job in trial.jobs], out, "sps tune")
    result = choose(made, found)
    for trial in made:
        if trial.name == (one := result["methods"][trial.method])["winner"]:
            one["recipe"] = str(_write_winner(trial, files[trial.method], out))
    write_whole(out / TUNED, json.dumps(result, indent=1))
    release(out)
    _show(result)
    winners = " ".join(one["recipe"] for one in result["methods"].values())
    say(f"\n{out / TUNED}\nthe test problems, once: sps compare {winners}")


def draw_settings(over: list[tuple[str, list[str]]], trials: int) -> dict[int, list[str]]:
    """So many of all combinations, by number: always the same, and more of them add to fewer."""
    keys = [key for key, _ in over]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"--over {twice}: it is there twice; give it once, with all its values")
    every = [*itertools.product(*([f"{key}={value}" for value in own] for key, own in over))]
    if trials > len(every):
        raise UserError(
            f"--trials {trials}: --over has {len(every)} combinations; ask for at most so many, or "
            "give it more values"
        )
    order = random.Random(0).sample(range(len(every)), len(every))
    return {i + 1: [*every[i]] for i in sorted(order[:trials])}


def make_trial(
    method: str, path: Path, number: int, settings: list[str], seeds: int, out: Path
) -> Trial:
    """Runs that are never evaluated on test problems."""
    try:
        recipe = load_recipe(path, [*settings, "evaluation.final=false", "threads=1"])
    except UserError as error:
        said = str(error).replace("--set ", "--over ")
        raise UserError(f"{path}: {said}; every recipe must take every key of --over") from None
    jobs = []
    for seed in range(recipe.seed, recipe.seed + seeds):
        folder = seed_path(out / method, f"trial-{number}", seed)
        jobs.append(Job(f"{method} {number}", recipe.model_copy(update={"seed": seed}), folder))
    return Trial(method, settings, jobs)


def choose(trials: list[Trial], found: dict[str, Summaries]) -> dict[str, Any]:
    """The area of every trial over one range of Pass@1, and the largest of each method."""
    paths = validation_paths({t.name: [read_run(job.folder) for job in t.jobs] for t in trials})
    if paths is None or any(t.name not in paths.correct for t in trials):
        why = "; ".join(paths.left_out) if paths else "there are no validation scores"
        raise UserError(f"nothing can be chosen: {why}; remove the folder and tune again")
    correct: dict[str, dict[str, Any]] = {}
    for t in trials:
        correct.setdefault(t.method, {})[t.name] = paths.correct[t.name]
    span, area = areas(paths.base_Q, correct, paths.n)
    methods: dict[str, Any] = {}
    for t in trials:
        ends = [found[str(job.folder)][t.name] for job in t.jobs]
        row: dict[str, Any] = {"settings": t.settings, "area": list(area[t.method][t.name])}
        row["seconds"] = sum(end["rl_seconds"] + end["irl_seconds"] for end in ends)
        methods.setdefault(t.method, {"winner": "", "trials": {}})["trials"][t.name] = row
    for one in methods.values():
        one["winner"] = max(one["trials"], key=lambda name: one["trials"][name]["area"][0])
    how = {"split": "validation", "questions": len(paths.questions), "seeds": len(trials[0].jobs)}
    return {**how, "k": paths.n, "range": list(span), "methods": methods}


def _validated_alike(first: Recipe, trials: list[Trial]) -> None:
    how = first.evaluation
    if not how.every or how.validation_n < 2:
        raise UserError(
            f"{first.name}: tuning chooses by Pass@1 and Pass@k on validation problems; set "
            "evaluation.every above 0 and evaluation.validation_n above 1"
        )
    wanted = first.model_copy(update={"evaluation": how.model_copy(update={"final": False})})
    for trial in trials:
        recipe = trial.jobs[0].recipe
        odd = [
            k for k in ("task", "seed", "evaluation") if getattr(recipe, k) != getattr(wanted, k)
        ]
        if odd or recipe.name != trial.method:
            raise UserError(
                f"{trial.method} with {' '.join(trial.settings)}: not the {(odd or ['name'])[0]} "
                f"that {first.name} has; leave it out of --over, and give it to all recipes alike"
            )
    if differs := base_differs([trial.jobs[0].recipe for trial in trials]):
        key, told = differs
        raise UserError(
            f"{key} differs ({told}), and the base, which every trial begins from, is validated "
            "once: leave it out of --over, and give it to all recipes alike"
        )


def _write_winner(winner: Trial, path: Path, out: Path) -> Path:
    """A recipe that extends the method's with the settings that won."""
    tree: dict[str, Any] = {"extends": os.path.relpath(find_recipe(path).resolve(), out.resolve())}
    for item in winner.settings:
        override(tree, item)
    written = out / f"{winner.method}.yaml"
    note = f"# The best of its method's trials on the validation problems ({TUNED}).\n"
    write_whole(written, note + yaml.safe_dump(tree, sort_keys=False))
    return written


def _show(result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("trial", "settings", f"mean Pass@{result['k']}", "95 % interval", "seconds", ""):
        table.add_column(head)
    for one in result["methods"].values():
        for name, row in one["trials"].items():
            mean, low, high = (f"{100 * x:.1f}" for x in row["area"])
            chosen = "best" if name == one["winner"] else ""
            cells = (" ".join(row["settings"]), mean, f"[{low}, {high}]", f"{row['seconds']:.0f}")
            table.add_row(spelled(name), *cells, chosen)
    console.print(table)
    low, high = (100 * x for x in result["range"])
    say(
        f"\nmeans from Pass@1 {low:.1f} to {high:.1f}, on {result['questions']} validation "
        f"questions, in per cent; {result['seeds']} seeds a setting"
    )
    if low >= high:
        say(
            "nothing was told apart: of some method no setting raised Pass@1 above the base's; "
            "train for more steps, or give --over other values"
        )
