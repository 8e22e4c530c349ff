"""What a run folder says its run began with: the user's own code, the questions and answers, the
weights, and where.

Folders of older versions say less: what is not known counts as the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sps.errors import UserError
from sps.run.disk import write_whole
from sps.run.folder import (
    BASE_HASH,
    CHECKPOINTS,
    DATA_HASH,
    STARTED_IN,
    TASK_HASH,
    find_checkpoints,
)

_PATHS = ("path", "data", "data_dir")  # keys of a recipe that name files and folders


def code_hash(source: Path) -> str:
    """Of a file as it is now."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def other_code(run: Path, source: Path | None) -> bool:
    """Whether a task's own file is not the one that the run began with."""
    written = run / TASK_HASH
    if source is None or not written.exists():
        return False
    return code_hash(source) not in written.read_text(encoding="utf-8")


def other_data(run: Path, data: str) -> bool:
    """Whether a digest is not that of the questions and answers that the run began with."""
    return _stored_data(run) not in ("", data)


def other_base(run: Path, weights: str) -> bool:
    """Whether a digest is not that of the weights that the run began from; empty: nobody knows."""
    try:
        began = (run / BASE_HASH).read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return bool(began and weights) and began != weights


def keep_place(run: Path, recipe: Mapping[str, Any]) -> None:
    """Keep the folder that sps is started in; that of before where something that the recipe names
    is there and not here."""
    if not [*_away(run, recipe)]:
        write_whole(run / STARTED_IN, os.fsencode(Path.cwd()))


def in_place(run: Path, path: str) -> str:
    """A path of a run's recipe, from where the run was started if it is there and not here."""
    return next((str(began / path) for _, _, began in _away(run, {"path": path})), path)


def refuse_elsewhere(run: Path, recipe: Mapping[str, Any]) -> None:
    """Relative paths start at the folder that sps is started in: where what a recipe, or a part of
    it, names is not there, but is where the run was started, the error says so."""
    for key, path, began in _away(run, recipe):
        raise UserError(
            f"{run}: {key}: {path} is not in {Path.cwd()} but in {began}, where this run was "
            "started: relative paths start at the folder that sps is started in. Go there "
            f"first (cd {began}); the run is {run.resolve()}"
        )


def _away(run: Path, recipe: Mapping[str, Any]) -> Iterator[tuple[str, str, Path]]:
    """Key and path of what a recipe names that is not here but where the run was started, which
    comes with them."""
    try:
        began = Path(os.fsdecode((run / STARTED_IN).read_bytes()))
    except OSError:
        return
    for key, path in _named(recipe):
        # Of os.path: a place that may not be looked into counts as not there.
        if not os.path.exists(path) and os.path.exists(began / path):
            yield key, path, began


def _named(tree: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """What a recipe's tree names by path, with the keys; an id on the hub may be among it."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _named(value, f"{place}{key}.")
        elif isinstance(value, list | tuple):
            for item in value:
                yield from _named(item if isinstance(item, Mapping) else {}, f"{place}{key}.")
        elif key in _PATHS and isinstance(value, str):
            yield f"{place}{key}", value


def _stored_data(run: Path) -> str:
    """From the folder itself, else from a checkpoint, which is read when a run is resumed."""
    try:
        return (run / DATA_HASH).read_text(encoding="utf-8").strip()
    except OSError:
        pass
    for kind in ("step", "stop"):
        for path in reversed(find_checkpoints(run / CHECKPOINTS, kind).values()):
            try:
                state = json.loads((path / "trainer.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(state, dict) and state.get("data"):
                return str(state["data"])
    return ""
