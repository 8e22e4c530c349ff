"""Which weights a name stands for now, and whether a run began from them. Without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from sps.config.recipe import Recipe
from sps.errors import UserError
from sps.policy.files import base_of, parts_of
from sps.run.began import other_base
from sps.run.folder import CHECKPOINTS, find_checkpoints

_BLOCK = 2**16  # bytes
_BLOCKS = 64  # of each file, evenly spaced; a file of up to 4 MiB is read whole
# A loader reads the first of these that is there, or the parts that it names.
_WHOLE = ("model.safetensors", "model.safetensors.index.json",
          "pytorch_model.bin", "pytorch_model.bin.index.json")  # fmt: skip
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


def weights_digest(path: str | None, gguf: str | None = None) -> str:
    """Of a model's files of weights, by a few blocks of each: training changes weights everywhere.

    Empty where nobody knows: they are not all here, as of a hub id that is not downloaded yet, or
    in part, or the folder is damaged. The embedded policy, which has no path, is known by the
    recipe that makes it.
    """
    try:
        files = _files(path, gguf) if path else []
        found = hashlib.sha256()
        for file in files:
            found.update(f"{file.name} {file.stat().st_size}\n".encode())
            for block in _blocks(file):
                found.update(block)
    except (OSError, UserError):  # the loader says it better
        return ""
    return found.hexdigest()[:16] if files else ""


def needs_base(run: Path, recipe: Recipe) -> bool:
    """Whether a run that goes on reads `model.path` again: a checkpoint holds all weights, but no
    base to mix with, to stay close to, or to put adapters on."""
    saved = any(find_checkpoints(run / CHECKPOINTS, kind) for kind in ("step", "stop"))
    kept = recipe.model.lora is None and recipe.rl.algorithm.beta == 0
    return not (saved and kept and not recipe.checkpoint.mix)


def refuse_other_base(run: Path, path: str | None, gguf: str | None = None) -> None:
    """A run goes on, and counts, with the base that it began from: `model.path` of its recipe."""
    if other_base(run, weights_digest(path, gguf)):
        raise UserError(
            f"{run}: {path} (model.path) holds other weights now than when this run began. Put "
            "them back as they were, or begin a new run in another folder with --out"
        )


def adapters_in(path: str | None) -> Path | None:
    """The folder of the LoRA adapters that a name stands for; None where it is a whole model's."""
    folder = _folder(path) if path else None
    return folder if folder and base_of(folder) else None


def _files(path: str, gguf: str | None) -> list[Path]:
    """The files of weights that a loader would read, those of the adapters' model among them."""
    if gguf or path.endswith(".gguf"):
        return [Path(path, gguf or "")]
    folder = _folder(path)
    if folder is None:
        return []
    base = base_of(folder)
    if not base:
        return _in_folder(folder, _WHOLE)
    below = _folder(base)
    own, of_base = _in_folder(folder, _ADAPTERS), _in_folder(below, _WHOLE) if below else []
    return own + of_base if own and of_base else []


def _folder(path: str) -> Path | None:
    """A model's folder, for a hub id the one that it was downloaded to, by the version that is
    loaded where the hub cannot be asked."""
    if Path(path).exists():
        return Path(path)
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json"):
        try:
            found = try_to_load_from_cache(path, name)
        except ValueError:  # it can be no hub id
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def _in_folder(folder: Path, names: tuple[str, ...]) -> list[Path]:
    for path in (folder / name for name in names):
        if path.is_file():
            return parts_of(path) if path.suffix == ".json" else [path]
    return []


def _blocks(path: Path) -> Iterator[bytes]:
    """The first and the last one are among them."""
    last = max(0, path.stat().st_size - _BLOCK)
    with path.open("rb") as file:
        for i in range(_BLOCKS):
            file.seek(last * i // (_BLOCKS - 1))
            yield file.read(_BLOCK)
