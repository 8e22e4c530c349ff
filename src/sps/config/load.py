"""From a YAML file, what it extends and what --set changes, to a recipe; errors name their key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sps.config.recipe import Recipe
from sps.config.rl import RL
from sps.config.shipped import find_recipe, near_names
from sps.errors import UserError
from sps.run.folder import RECIPE, RECORD
from sps.run.reading import parse_yaml, read_text

_LARGEST = 256 * 2**10  # bytes of a recipe
_DEEPEST = 100  # recipes that extend each other
_SHOWN = 20  # faults in an error
Branch = TypeVar("Branch", bound=BaseModel)
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]  # what a recipe is made from
# What keys are called elsewhere -> here.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "actor_lr"), "rl.lr"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_steps"), "rl.steps"),
    **dict.fromkeys(("beta", "kl_coef", "kl_beta"), "rl.algorithm.beta"),
    **dict.fromkeys(("epsilon", "clip_ratio", "clip_range"), "rl.algorithm.eps"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "rl.optimizer.max_grad_norm"),
    **dict.fromkeys(("batch_size", "train_batch_size"), "rollout.prompts"),
    **dict.fromkeys(("num_generations", "num_samples", "group_size", "rollout_n"), "rollout.n"),
    **dict.fromkeys(
        ("max_tokens", "max_length", "max_completion_length", "response_length"),
        "rollout.max_new_tokens",
    ),
    **dict.fromkeys(("model_name", "model_name_or_path", "pretrained"), "model.path"),
    **dict.fromkeys(("dataset", "dataset_name", "train_file"), "task.data"),
    **dict.fromkeys(("eval_steps", "eval_every"), "evaluation.every"),
    **dict.fromkeys(("save_steps", "save_every"), "checkpoint.every"),
    "report_to": "track",
}


def load_recipe(path: RecipeLike, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and what it extends, and put `a.b=c` overrides into it.

    It is given by the path of its file, by a short name, as a mapping of what a file would hold
    (paths then start at the folder one is in), or as a recipe that was read before.
    """
    source, tree = "recipe", {}
    if isinstance(path, Recipe):
        tree = path.model_dump(mode="json")
    elif isinstance(path, Mapping):
        tree = _extended(_copied(path), Path("recipe"), seen=())
    elif isinstance(path, str | os.PathLike):
        source = os.fsdecode(path)
        tree = _read_tree(find_recipe(source), seen=())
    else:
        raise UserError(
            "a recipe is given as the path of its file, a short name such as demo/countdown_sps, "
            f"or a mapping of its keys, not as a {type(path).__name__}"
        )
    if isinstance(overrides, str):
        raise UserError(f"overrides: give a list of them, also of one alone: [{overrides!r}]")
    for item in overrides:
        override(tree, item)
    return parse_recipe(tree, source, overrides)


def _copied(value: Any) -> Any:
    """The same, of plain dicts and lists at every depth."""
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list | tuple) else value


def parse_recipe(tree: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate a plain tree; errors blame `source`, or the override that gave the key."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, source, overrides)) from None


def parse_branch(kind: type[Branch], name: str, tree: Mapping[str, Any], source: str) -> Branch:
    """One branch of a recipe alone, such as `irl`; errors name its keys as they are in a recipe."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, source, (), name)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def differences(old: Mapping, new: Mapping, place: str = "") -> Iterator[str]:
    """What changed, a few words a key, from one recipe's tree to another's. Under `model` auto is
    what the machine has, and takes any; elsewhere it is a value like others."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{place}{key}.")
        elif a != b and not (b == "auto" and place == "model."):
            yield f"{place}{key} was {a!r}, is {b!r}"


def _read_tree(path: Path, seen: tuple[Path, ...], child: Path | None = None) -> dict[str, Any]:
    if path.resolve() in seen or len(seen) > _DEEPEST:
        raise UserError(f"{path}: `extends` goes in a circle, or through too many recipes")
    try:
        tree = parse_yaml(read_text(path, _LARGEST))
    except FileNotFoundError:
        if child is not None:
            raise UserError(
                f"{child}: extends: {path}: no such recipe. The path starts at the folder of "
                "the recipe that extends"
            ) from None
        raise UserError(
            f"{path}: no such recipe, neither a file nor a short name. {_hint(path)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}{_recipe_in(path)}") from None
    if not isinstance(tree, dict):
        what = "it is empty" if tree is None else f"it is a {type(tree).__name__}"
        raise UserError(f"{path}: a recipe is a mapping of keys to values, and {what}")
    return _extended(tree, path, seen)


def _recipe_in(path: Path) -> str:
    """What to write in place of a run's folder, or of one that holds a recipe."""
    if (path / RECORD).is_file():
        return f"; to go on with this run: sps train {path / RECIPE} --out {path} --resume"
    return f"; it holds {path / RECIPE}" if (path / RECIPE).is_file() else ""


def _extended(tree: dict[str, Any], path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A tree on top of the one it extends, if any; its path says from which folder."""
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    base = _read_tree(find_recipe(str(parent), path.parent), (*seen, path.resolve()), path)
    return _merge(base, tree)


def _hint(path: Path) -> str:
    near = " or ".join(near_names(path))
    return (f"Did you mean {near}? " if near else "") + "`sps recipes` lists those that are shipped"


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Top wins; mappings merge, unless `type` changes: another type's keys would not fit."""
    changed = "type" in top and "type" in base and top["type"] != base["type"]
    out = {} if changed else dict(base)
    for key, value in top.items():
        old = out.get(key)
        out[key] = (
            _merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
        )
    return out


def override(tree: dict[str, Any], item: str) -> None:
    """Put `a.b=c` into a recipe's tree."""
    key, sep, value = item.partition("=")
    if not sep or not key.strip():
        raise UserError(f"--set {item}: write it as key.path=value, such as --set rl.lr=1e-6")
    try:
        parsed = parse_yaml(value)
    except ValueError as error:
        raise UserError(f"--set {item}: the value {error}") from None
    *path, last = key.strip().split(".")
    node = tree
    for part in path:
        child = node.setdefault(part, {})
        if child is None:  # given without a value
            child = node[part] = {}
        if not isinstance(child, dict):
            raise UserError(f"--set {item}: {part} is a value, not a group of keys")
        node = child
    if last == "type" and node.get("type", parsed) != parsed:
        node.clear()
    if isinstance(parsed, dict) and isinstance(node.get(last), dict):
        parsed = _merge(node[last], parsed)
    node[last] = parsed


def _explain(error: ValidationError, source: str, overrides: Sequence[str], *branch: str) -> str:
    """One line a fault: file or option, key, what is wrong, and the nearest right name."""
    lines: dict[str, list[str]] = {}
    faults = error.errors()
    for fault in faults[:_SHOWN]:
        place = [*branch, *(str(part) for part in fault["loc"])]
        said = _said(fault, place)
        lines.setdefault(_blamed(_name(place), said, overrides) or source, []).append(said)
    text = "; ".join(f"{where}: {'; '.join(said)}" for where, said in lines.items())
    return text + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")


def _said(fault: Mapping[str, Any], place: list[str]) -> str:
    got = fault.get("input")
    mapping = fault["type"] in ("model_type", "model_attributes_type")  # one is needed
    if fault["type"] == "extra_forbidden":
        return _unknown_key(place)
    if fault["type"] == "union_tag_invalid":
        asked = fault["ctx"]
        return f"{_name(place)}: no type {asked['tag']!r}; choose {asked['expected_tags']}"
    if got is None:
        what = "a mapping of its keys" if mapping else "one"
        return f"{_name(place)}: the key has no value; leave it out, or give it {what}"
    if mapping and isinstance(got, str) and "type" in _keys_at(place):
        return f"{_name(place)}: write {_nested(_name(place).split('.'), got)}"
    if mapping:
        known = ", ".join(_keys_at(place))
        return (
            f"{_name(place)}: give it a mapping of its keys, not {_brief(got)}; known keys: {known}"
        )
    if fault["type"] in ("tuple_type", "list_type"):
        return f"{_name(place)}: give it a list, such as [{_brief(got)}]"
    message = fault["msg"].removeprefix("Value error, ")
    shown = f" (got {_brief(got)})" if isinstance(got, str | int | float | bool) else ""
    return f"{_name(place) or 'recipe'}: {message}{shown}"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _nested(keys: Sequence[str], kind: str) -> str:
    """`a: {b: {type: kind}}` for the keys a and b."""
    return ": {".join([*keys, f"type: {kind}"]) + "}" * len(keys)


def _blamed(name: str, said: str, overrides: Sequence[str]) -> str | None:
    """The --set that gave a key, its mapping, or what the fault of a mapping names; the last."""
    for item in reversed(overrides):
        key = item.partition("=")[0].strip()
        below = key.startswith(f"{name}.") and key.removeprefix(f"{name}.") in said
        if f"{name}.".startswith(f"{key}.") or below:
            return f"--set {item}"
    return None


def _name(place: Sequence[str]) -> str:
    """A key as people write it: without the tag of a task or an algorithm."""
    for union in (["task"], ["rl", "algorithm"]):
        if list(place[: len(union)]) == union:
            return ".".join([*union, *place[len(union) + 1 :]])
    return ".".join(place)


def _unknown_key(place: list[str]) -> str:
    known = _keys_at(place[:-1])
    if types := _types_with(place):
        name = _name(place)
        more = f" and {len(types) - 3} more" if len(types) > 3 else ""
        return (
            f"{name}: no such key; type {', '.join(types[:3])}{more} has it, {place[-2]} has not: "
            f"set {name.rpartition('.')[0]}.type"
        )
    near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    other = SYNONYMS.get(place[-1])
    if other and not difflib.get_close_matches(place[-1], known, cutoff=0.8):  # no mistyped one
        last = other.rpartition(".")[2]
        near = [last if last in known else other]  # irl.learning_rate is irl.lr
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"{_name(place)}: no such key; {hint}"


def _types_with(place: list[str]) -> list[str]:
    """The types of a task or an algorithm that have a key, by its very name, which theirs lacks."""
    unions = {"task": _members(Recipe, "task"), "rl.algorithm": _members(RL, "algorithm")}
    kinds = unions.get(".".join(place[:-2]), [])
    return sorted(k.model_fields["type"].default for k in kinds if place[-1] in k.model_fields)


def _keys_at(place: Sequence[str]) -> list[str]:
    """Field names at a place in the tree; a union's tag in the place picks its member."""
    nodes: list[type[BaseModel]] = [Recipe]
    for part in place:
        below = [m for node in nodes if part in node.model_fields for m in _members(node, part)]
        tagged = [n for n in nodes if "type" in n.model_fields]
        nodes = below or [n for n in tagged if n.model_fields["type"].default == part] or nodes
    return sorted({name for node in nodes for name in node.model_fields})


def _members(node: type[BaseModel], name: str) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    stack = [node.model_fields[name].annotation]
    while stack:
        kind = stack.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        else:
            stack.extend(getattr(kind, "__args__", ()))
    return found
