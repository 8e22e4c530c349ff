"""Which weights a name on the command line means. Without torch: a regrade needs none."""

from __future__ import annotations

from pathlib import Path

from sps.errors import UserError
from sps.run.folder import (
    CHECKPOINTS,
    RECIPE,
    RECORD,
    checkpoint_path,
    find_checkpoints,
    mixed_path,
)
from sps.run.track import read_records


def resolve_model(model: str, mixed: bool = True) -> str:
    """Where a model's weights are: a run's folder stands for its selected or last checkpoint, or
    for the mix of it with the base that it ended with."""
    folder = Path(model).expanduser()
    if not (folder / RECIPE).exists() or (folder / "config.json").exists():
        return str(folder) if folder.exists() else model
    if mixed and mixed_path(folder).exists():
        return str(mixed_path(folder))
    saved = find_checkpoints(folder / CHECKPOINTS).values()
    kinds = ("config.json", "adapter_config.json")
    found = [p for p in saved if any((p / kind).exists() for kind in kinds)]
    if not found:
        raise UserError(f"{model}: this run has no checkpoint yet; let it reach one first")
    records = read_records(folder / RECORD)
    selected = [r["selected"] for r in records if isinstance(r.get("selected"), int)]
    chosen = checkpoint_path(folder, selected[-1]) if selected else found[-1]
    return str(chosen if chosen in found else found[-1])
