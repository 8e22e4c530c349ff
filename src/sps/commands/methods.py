"""The methods of a comparison: recipes, values of a sweep, and cheap variants of the first."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from sps.commands.jobs import MEASURED, Extra, saved_steps
from sps.commands.mix import parse_shares
from sps.config.load import RecipeLike, load_recipe
from sps.config.recipe import BaseTraining, Recipe
from sps.errors import UserError

# Keys of a task that leave its test questions as they are.
_ELSE = {"subset", "overlap", "template", "instruction", "system", "examples", "cut"}
_ELSE |= {"time_limit", "workers"}
# Keys that decide what the base samples on them, and its scores. Not all of `model`: adapters begin
# as nothing, and how it is trained or where it is held is no matter to an untrained one.
_OF_BASE = [
    *("model.path", "model.gguf", "model.dtype"),
    *(f"model.base.{key}" for key in BaseTraining.model_fields),
    *(f"{group}.{key}" for group in ("rollout", "evaluation") for key in sorted(MEASURED[group])),
    *("task.template", "task.instruction", "task.system", "task.examples"),
    *("task.cut", "task.right", "task.path", "task.module"),
]


def sweep_recipe(path: RecipeLike, overrides: list[str], sweep: str) -> list[Recipe]:
    """A recipe once for each value of one key: `irl.keep=1,2` makes `sps keep=1`, `sps keep=2`."""
    key, values = parse_values(sweep, "--sweep")
    made = []
    for value in values:
        recipe = load_recipe(path, [*overrides, f"{key}={value}"])
        name = f"{recipe.name} {key.rpartition('.')[2]}={value}".replace("/", "_")  # of a folder
        made.append(recipe.model_copy(update={"name": name}))
    return made


def parse_values(item: str, option: str) -> tuple[str, list[str]]:
    """A key and the values to try."""
    key, _, listed = (part.strip() for part in item.partition("="))
    values = [value.strip() for value in listed.split(",")]
    if not key or not all(values):
        raise UserError(f"{option} {item}: write it as key.path=value,value: irl.keep=1,2,3")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice:
        raise UserError(f"{option} {item}: {twice} is there twice; give each value once")
    return key, values


def parse_temperatures(text: str, own: float | None = None) -> list[float]:
    """Sampling temperatures beside the usual one, `own` if it is known, each once."""
    found = [_number(word, "--temperatures", "0.7,0.4") for word in text.split(",") if text]
    odd = next((heat for heat in found if not 0 < heat < math.inf), None)
    if odd is not None:
        other = "" if own is None or odd else "; greedy answers are --temperature 0"
        raise UserError(f"--temperatures: {odd:g} is not above 0; write for example 0.7,0.4{other}")
    named = [f"{heat:g}" for heat in found]  # as files are
    if twice := next((heat for heat in named if named.count(heat) > 1), None):
        raise UserError(f"--temperatures: {twice} is there twice; give each once")
    if own is not None and f"{own:g}" in named:
        raise UserError(
            f"--temperatures: {own:g} is --temperature already, given or by default; leave it out, "
            "or give another --temperature, such as 1"
        )
    return found


def by_name(recipes: list[Recipe]) -> dict[str, Recipe]:
    """The methods of a comparison; names, sample sizes and the base must not get mixed up."""
    named = {recipe.name: recipe for recipe in recipes}
    if len(named) < len(recipes):
        names = [recipe.name for recipe in recipes]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"two of the recipes have the `name: {twice}`, and the table could not tell them "
            "apart; give one of them another name"
        )
    if "base" in named:
        raise UserError(
            "a recipe has `name: base`, which is the untrained policy's; give it another"
        )
    unscored = next((recipe.name for recipe in recipes if not recipe.evaluation.final), None)
    if unscored is not None:
        raise UserError(
            f"{unscored}: evaluation.final is off, so there is nothing to compare; leave it out"
        )
    tests = [_test_set(recipe) for recipe in recipes]
    odd = next((i for i, test in enumerate(tests) if test != tests[0]), None)
    if odd is not None:
        keys = [k for k in tests[0] | tests[odd] if tests[0].get(k) != tests[odd].get(k)]
        raise UserError(
            f"{recipes[0].name} and {recipes[odd].name} have other test questions (task."
            f"{', task.'.join(keys)}); compare methods on one task"
        )
    _check_base(recipes)
    _check_temperatures(recipes)
    return named


def _check_temperatures(recipes: list[Recipe]) -> None:
    """A path that goes on through other temperatures is no match for one that does not."""
    heats = [sorted(recipe.evaluation.temperatures) for recipe in recipes]
    odd = next((i for i, own in enumerate(heats) if own != heats[0]), None)
    if odd is not None:
        told = ", ".join(f"{heats[i]} of {recipes[i].name}" for i in (0, odd))
        raise UserError(
            f"evaluation.temperatures differs ({told}), and a method whose temperature is free is "
            "no match for one whose is not: give all recipes the same list, or [] "
            "(sps compare: with --temperatures, or --set)"
        )


def _check_base(recipes: list[Recipe]) -> None:
    """It is evaluated once, by one of the recipes: every method is compared with that."""
    if differs := base_differs(recipes):
        key, told = differs
        raise UserError(
            f"{key} differs ({told}), and the base, which every method is compared with, is "
            f"evaluated once: give all the same with --set {key}=..., or make a comparison of "
            "each, with an --out of its own"
        )


def base_differs(recipes: list[Recipe]) -> tuple[str, str] | None:
    """A key by which recipes have different bases, and its values in words."""
    for key in _OF_BASE:
        if key.startswith("model.base.") and all(recipe.model.path for recipe in recipes):
            continue
        found: dict[str, str] = {}
        for recipe in recipes:
            value = _value(recipe, key)
            path = value and key.endswith(".path")  # ./a and a are one
            alike = os.path.relpath(Path(value).expanduser()) if path else value
            found.setdefault(repr(alike), f"{value!s:.80} of {recipe.name}")
        found.pop(repr("auto"), None)  # what it stands for is known where the run is
        if len(found) > 1:
            return key, ", ".join(found.values())
    return None


def _value(recipe: Recipe, key: str) -> Any:
    """None where this type of task has no such key."""
    node: Any = recipe
    for part in key.split("."):
        node = getattr(node, part, None)
    return node


def _test_set(recipe: Recipe) -> dict[str, Any]:
    """The keys of a task that decide which test questions it has."""
    task = recipe.task.model_dump()
    if task.get("benchmarks"):
        return {key: task.get(key) for key in ("type", "benchmarks", "data_dir", "limit")}
    return {key: value for key, value in task.items() if key not in _ELSE}


def make_extras(
    first: str, recipes: dict[str, Recipe], early: str, mix: str = ""
) -> dict[str, list[Extra]]:
    """Cheap controls of the first method: early stops, mixes with the base."""
    recipe = recipes[first]
    steps = dict.fromkeys(_number(x, "--early") for x in early.split(",") if x)
    rounds = recipe.rl.algorithm.steps_per_generation
    if steps and rounds > 1 and recipe.irl.steps and not recipe.irl.every:
        raise UserError(
            f"--early: {first} draws for {rounds} steps at once, so where its checkpoints are "
            "depends on where its phases end; set irl.every"
        )
    saved = saved_steps(recipe)
    for step in steps:
        if step not in saved:
            raise UserError(
                f"--early {step:g}: {first} leaves no checkpoint of that step; the nearest is of "
                f"{min(saved, key=lambda s: abs(s - step))} (its rl.steps is {recipe.rl.steps}, "
                f"its checkpoint.every is {recipe.checkpoint.every}, checkpoint.keep "
                f"{recipe.checkpoint.keep}, rl.algorithm.steps_per_generation {rounds})"
            )
    made = [Extra(f"{first} @{step}", step=step) for step in map(int, steps)]
    shares = parse_shares(mix, "--mix")
    return {first: made + [Extra(f"{first} mix={share:g}", mix=share) for share in shares]}


def _number(text: str, option: str, example: str = "100,200") -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{option}: {text!r} is not a number; write for example {example}"
        ) from None
