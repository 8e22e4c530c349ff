"""Trackers as listeners: trackio, wandb and tensorboard, by one key."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sps.config.recipe import Recipe
from sps.errors import UserError
from sps.run.track import Listener, Track

Numbers = dict[str, float]


def follow(track: Track, recipe: Recipe, name: str) -> None:
    """Also send a run's record where its recipe says. After its folder is claimed: some write there
    at once."""
    if recipe.track and not track.silent:
        tree = recipe.model_dump(mode="json")
        track.listeners.append(make_tracker(recipe.track, name, track.path.parent, tree))


def make_tracker(key: str, name: str, folder: Path, recipe: dict[str, Any]) -> Listener:
    """A listener that passes every number on to the tracker `key` names."""
    library = find_tracker(key)
    send, finish = TRACKERS[key][1](library, name, folder, recipe)

    def listen(record: dict[str, Any]) -> None:
        found = numbers(record)
        if found:
            send(found, record["step"])
        if record["kind"] == "done":
            finish()

    return listen


def find_tracker(key: str) -> Any:
    """The library of a tracker; an error where it is not there, which one wants before a run."""
    if key not in TRACKERS:
        raise UserError(f"track: there is no tracker {key!r}; choose one of {', '.join(TRACKERS)}")
    try:
        return importlib.import_module(TRACKERS[key][0])
    except ImportError:
        raise UserError(
            f"track: {key} is not installed; install it with pip install 'sps-rl[track]'"
        ) from None


def numbers(record: dict[str, Any]) -> Numbers:
    """The numbers of a record under '<kind>/<field>'; Pass@k as 'eval/<split>/pass@<k>'."""
    kind, out = record["kind"], {}
    place = kind
    if kind == "eval":
        place = f"eval/{str(record.get('name', '')).rstrip('0123456789').rstrip('-') or 'eval'}"
        for k, triple in (record.get("pass_at_k") or {}).items():
            out[f"{place}/pass@{k}"] = float(triple[0])
        for measure in ("distinct", "pcmd"):
            if record.get(measure):
                out[f"{place}/{measure}"] = float(record[measure][0])
    elif kind == "meter":
        place = f"meter/{record.get('of', '')}"
    for field, value in record.items():
        if field not in ("step", "time") and isinstance(value, int | float):
            out[f"{place}/{field}"] = float(value)
    return out


Ways = tuple[Callable[[Numbers, int], None], Callable[[], None]]


def _trackio(library: Any, name: str, folder: Path, recipe: dict[str, Any]) -> Ways:
    library.init(project="sps", name=name, config=recipe)
    return lambda found, step: library.log(found, step=step), library.finish


def _wandb(library: Any, name: str, folder: Path, recipe: dict[str, Any]) -> Ways:
    run = library.init(project="sps", name=name, dir=str(folder), config=recipe)
    # RL and IRL records share a step, and wandb's own count must only rise: ours goes along.
    run.define_metric("*", step_metric="step")
    return lambda found, step: run.log({**found, "step": step}), run.finish


def _tensorboard(library: Any, name: str, folder: Path, recipe: dict[str, Any]) -> Ways:
    writer = library.SummaryWriter(str(folder / "tensorboard"))

    def send(found: Numbers, step: int) -> None:
        for field, value in found.items():
            writer.add_scalar(field, value, step)
        writer.flush()

    return send, writer.close


TRACKERS: dict[str, tuple[str, Callable[[Any, str, Path, dict[str, Any]], Ways]]] = {
    "trackio": ("trackio", _trackio),
    "wandb": ("wandb", _wandb),
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
}
