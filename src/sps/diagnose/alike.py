"""Whether runs can be compared: do they come from one base, and are their questions the same?"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sps.diagnose.read import RunFolder
from sps.run.folder import BASE_HASH, DATA_HASH

# What the base's scores depend on, beside its weights, n and the temperature.
_OF_BASE = [
    ("rollout", "max_new_tokens"),
    *(("evaluation", key) for key in ("top_p", "top_k")),
    *(("task", key) for key in ("type", "template", "instruction", "system", "examples", "cut")),
    ("task", "right"),
]
_FILES = ("data", "sources", "path", "module")  # of a task, where rows come from
_NUMBERED = re.compile(r".*-\d{6}")  # an id that says where a row stands in a file


def other_base(run: RunFolder, first: RunFolder) -> str:
    """How the base of a run is another than that of the first; empty where it is not, or nobody
    knows."""
    weights, known = run.kept(BASE_HASH), first.kept(BASE_HASH)
    if (weights and known and weights != known) or (not (weights and known) and _else(run, first)):
        return f"begins from other weights than {first.folder}"
    for path in _OF_BASE:
        if (own := run.setting(*path)) != (of_first := first.setting(*path)):
            key = ".".join(path)
            return f"begins from another base than {first.folder}: {key} {own}, not {of_first}"
    return ""


def _else(run: RunFolder, first: RunFolder) -> bool:
    """By the recipes alone, as far as both say."""
    a, b = (r.recipe.get("model") for r in (run, first))
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return False
    if (a.get("path") is None) != (b.get("path") is None) or a.get("path") is not None:
        return a.get("path") != b.get("path")
    made: list[dict[str, Any]] = [m if isinstance(m := x.get("base"), dict) else {} for x in (a, b)]
    return any(made[0][key] != made[1][key] for key in made[0].keys() & made[1].keys())


def other_questions(run: RunFolder, first: RunFolder, ids: Collection[str]) -> str:
    """Why questions of these ids are not the first run's; empty where they may be. Ids that a file
    gives stand for its questions, numbers of rows only while the data are the same."""
    data, known = run.kept(DATA_HASH), first.kept(DATA_HASH)
    numbered = any(map(_NUMBERED.fullmatch, ids))
    if not numbered or not data or not known or data == known:
        return ""
    tasks = [r.setting("task") or {} for r in (run, first)]
    if tasks[0] != tasks[1] and all(tasks[0].get(k) == tasks[1].get(k) for k in _FILES):
        return ""  # more or fewer training questions of the same rows
    return (
        f"its data are others than those of {first.folder}, and questions are told apart by the "
        "numbers of their rows: give every row an id"
    )
