"""What a run folder says its run began with: the user's own code, the questions and answers, and
the weights.

Folders of older versions say less: what is not known counts as the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sps.run.folder import BASE_HASH, CHECKPOINTS, DATA_HASH, TASK_HASH, find_checkpoints


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
