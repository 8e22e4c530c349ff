"""The files of a model that somebody sent: looked at before any loader reads them.

Weights are data: safetensors, GGUF, or a `.bin` that torch reads with `weights_only`. A folder's
own code runs where the recipe says so by name, and nothing here asks on the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sps.errors import UserError

_SETTINGS = ("config.json", "generation_config.json", "adapter_config.json",
             "tokenizer_config.json", "special_tokens_map.json")  # fmt: skip
_LARGEST = 64 * 2**20  # bytes of such a file; a tokenizer's settings may have megabytes
_SHOWN = 3  # names in an error


def check_files(folder: Path) -> None:
    """Refuse what a loader would hang on, misread, or leave out without a word."""
    for path in sorted(folder.iterdir()):
        if not (path.is_file() or path.is_dir()):
            raise _bad(path, "is no plain file (a pipe, a device or a broken link); remove it")
    for name in _SETTINGS:
        if (folder / name).exists():
            _settings(folder / name)
    for index in sorted(folder.glob("*.index.json")):
        parts_of(index)
    if all((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        raise UserError(
            f"model.path: {folder} holds a model and adapters (config.json and "
            "adapter_config.json); merge them, or keep the adapters in a folder of their own"
        )


def base_of(folder: Path) -> str:
    """The model that a folder of adapters was trained on; empty for a folder of a model."""
    path = folder / "adapter_config.json"
    if not path.exists():
        return ""
    base = _settings(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise _bad(path, "does not name the adapters' model (base_model_name_or_path)")
    return base


def parts_of(index: Path) -> list[Path]:
    """The parts of weights that an index names: files beside it, never somewhere else."""
    parts = _settings(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
        raise _bad(index, "does not say which file holds which weights (weight_map)")
    names = sorted(set(parts.values()))
    for part in names:
        if Path(part).name != part or not (index.parent / part).is_file():
            raise _bad(index, f"names {part!r}, which is no file beside it")
    return [index.parent / part for part in names]


def check_loaded(where: str, info: Any) -> None:
    """Refuse weights that do not belong to the model: what is missing would be random numbers."""
    kinds = {
        "missing": info["missing_keys"],
        "without a place": info["unexpected_keys"],
        "of another shape": [key[0] for key in info["mismatched_keys"]],
    }
    said = [f"{what}: {_some(names)}" for what, names in kinds.items() if names]
    said += [str(message).strip().splitlines()[0] for message in info["error_msgs"]]
    if said:
        raise UserError(
            f"model.path: {where}: the weights are not those of its model ({'; '.join(said)}). "
            "Some would be random numbers or be left out; download or save the model again, whole"
        )


def in_one_line(error: Exception) -> str:
    """What a loader said, without its advice: the first line, unless that one only announces."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return repr(error)
    # A first line that ends in a colon says nothing without those that follow.
    said = " ".join(lines) if lines[0].endswith(":") else lines[0]
    plain = isinstance(error, OSError | ValueError | ImportError)
    return said[:500] if plain else f"{type(error).__name__}: {said[:500]}"


def _settings(path: Path) -> dict[str, Any]:
    """A JSON object from a file, of a size that settings have."""
    if path.stat().st_size > _LARGEST:
        raise _bad(path, f"has more than {_LARGEST // 2**20} MiB, which no settings have")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        said = "is nested too deeply" if isinstance(error, RecursionError) else in_one_line(error)
        raise _bad(path, f"is not valid JSON ({said})") from None
    if not isinstance(found, dict):
        raise _bad(path, f"is no JSON object but a {type(found).__name__}")
    return found


def _bad(path: Path, what: str) -> UserError:
    return UserError(f"model.path: {path} {what}")


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
