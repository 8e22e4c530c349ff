"""Checkpoints: a plain Hugging Face folder, and beside it all that resuming needs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sps.errors import UserError
from sps.policy.load import Policy
from sps.policy.shard import put_weights, whole_weights
from sps.ranks import ALONE, Ranks


def save_checkpoint(
    folder: Path,
    policy: Policy,
    state: dict[str, Any],
    tensors: dict[str, Any],
    texts: Callable[[], Mapping[str, str]] = dict,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint; it appears under its name only when it is whole.

    `texts` makes further files by name, in place of those of the same name from transformers.
    """
    weights = whole_weights(policy, ranks)

    def write() -> None:
        draft = _draft(folder, policy, weights)
        for name, text in texts().items():
            (draft / name).write_text(text, encoding="utf-8")
        torch.save(tensors, draft / "trainer.pt")
        (draft / "trainer.json").write_text(json.dumps({**state, "version": policy.version}))
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)

    ranks.tell(write)
    return folder


def _draft(folder: Path, policy: Policy, weights: dict[str, torch.Tensor] | None) -> Path:
    """Model and tokenizer in a folder beside the one they are for."""
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    policy.model.save_pretrained(draft, state_dict=weights)
    policy.tokenizer.save_pretrained(draft)
    return draft


def load_weights(policy: Policy, folder: Path) -> None:
    """Put a checkpoint's weights into the model that is there."""
    adapters = folder / "adapter_model.safetensors"
    try:
        if adapters.exists():
            found = load_file(adapters, device=str(policy.model.device))
            named = {_adapter(name): weight for name, weight in found.items()}
            strangers = policy.model.load_state_dict(named, strict=False).unexpected_keys
            if strangers:
                raise UserError(f"{adapters}: the model has no place for {', '.join(strangers)}")
            return
        weights: dict[str, torch.Tensor] = {}
        for file in [*folder.glob("model-*-of-*.safetensors")] or [folder / "model.safetensors"]:
            weights |= load_file(file, device=str(policy.model.device))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights cannot be read ({error})") from None
    put_weights(policy.model, weights)
    policy.model.tie_weights()


def _adapter(name: str) -> str:
    """peft's name of a stored adapter weight -> the name it has in the model."""
    name = name.removeprefix("base_model.model.")
    return re.sub(r"(lora_(embedding_)?[AB])(\.weight)?$", r"\1.default\3", name)


def saved_checkpoints(folder: Path) -> dict[int, Path]:
    """The whole checkpoints in a folder, by step, oldest first."""
    found = sorted(p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))
    return {int(p.name[5:]): p for p in found if (p / "trainer.json").exists()}


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder, or None."""
    return next(reversed(saved_checkpoints(folder).values()), None)


def forget_checkpoints(folder: Path, keep: int, spare: set[int]) -> None:
    """Remove all but the newest `keep` checkpoints and those to be spared; 0 keeps all."""
    saved = saved_checkpoints(folder)
    for step in list(saved)[:-keep] if keep else []:
        if step not in spare:
            shutil.rmtree(saved[step])


def forget_drafts(folder: Path) -> None:
    """Remove what a process that was killed while it saved has left."""
    for draft in folder.glob("step-*.draft"):
        shutil.rmtree(draft)


def load_trainer(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `save_checkpoint` was given as state and tensors."""
    try:
        state = json.loads((folder / "trainer.json").read_text())
        return state, torch.load(
            folder / "trainer.pt", weights_only=True, map_location="cpu", mmap=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: this checkpoint cannot be read ({error})") from None
