"""Checkpoints: a plain Hugging Face folder, and beside it all that resuming needs."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, logging

from sps.errors import RunFailed, UserError
from sps.policy.load import Policy
from sps.policy.sharding import put_weight, put_weights, whole_weights
from sps.ranks import ALONE, Ranks
from sps.run.disk import digests, sync, sync_tree, unwritten, write_whole
from sps.run.folder import find_checkpoints, set_aside

_STATE = ("trainer.json", "trainer.pt")
_SUMS = "checksums.json"  # of all files but the card, which is written again at the end of a run
_CARD = "README.md"
_SETTINGS = "generation_config.json"  # of samplers that are given no others


def save_checkpoint(
    folder: Path,
    policy: Policy,
    state: dict[str, Any],
    tensors: dict[str, Any],
    texts: Callable[[], Mapping[str, str]] = dict,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint; it appears under its name only when it is whole and on the disk.

    `texts` makes further files by name, in place of those of the same name from transformers.
    """
    weights = whole_weights(policy, ranks)

    def fill(draft: Path) -> None:
        _fill(draft, policy, weights, texts())
        torch.save(tensors, draft / "trainer.pt")
        (draft / "trainer.json").write_text(json.dumps({**state, "version": policy.version}))
        names = sorted(path.name for path in draft.iterdir() if path.name != _CARD)
        write_whole(draft / _SUMS, json.dumps(digests(draft, names), indent=1))

    ranks.broadcast(lambda: _write(folder, fill))
    return folder


def save_model(folder: Path, policy: Policy, texts: Mapping[str, str]) -> None:
    """Model, tokenizer and texts alone; in place of what is there."""
    _write(folder, lambda draft: _fill(draft, policy, None, texts))


def _write(folder: Path, fill: Callable[[Path], None]) -> None:
    """A folder that appears under its name when it is whole and on the disk."""
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.draft")
    try:
        fill(draft)
        sync_tree(draft)
    except (OSError, SafetensorError, RuntimeError) as error:
        free = shutil.disk_usage(folder.parent).free / 2**20
        shutil.rmtree(draft, ignore_errors=True)  # the space is wanted
        raise RunFailed(unwritten(folder, f"{free:.0f} MiB were free; {error}")) from error
    if folder.exists():  # damaged, of a stop at this step, or of a run that ends again
        shutil.rmtree(folder)
    draft.rename(folder)
    sync(folder.parent)


def _fill(
    draft: Path,
    policy: Policy,
    weights: dict[str, torch.Tensor] | None,
    texts: Mapping[str, str],
) -> None:
    """Model, tokenizer and texts in a folder beside the one they are for."""
    shutil.rmtree(draft, ignore_errors=True)
    policy.model.save_pretrained(draft, state_dict=weights)
    policy.tokenizer.save_pretrained(draft)
    for name, text in texts.items():
        (draft / name).write_text(text, encoding="utf-8")


def damage(folder: Path, whole: bool = True) -> str:
    """What is wrong with a checkpoint: a file that is not as it was saved. Empty: nothing. Not
    `whole`: what its training would go on from, and edited settings to sample by, do not count.

    Checkpoints of older versions have no checksums; of them it is known only that they are there.
    """
    try:
        if whole:
            _check_state(json.loads((folder / "trainer.json").read_text()), folder.name)
        saved = json.loads((folder / _SUMS).read_text()) if has_sums(folder) else {}
        if not isinstance(saved, dict) or (has_sums(folder) and not saved):
            raise ValueError(f"{_SUMS} holds no checksums")
        saved = {name: was for name, was in saved.items() if whole or name not in _STATE}
        now = digests(folder, [name for name in saved if (folder / name).exists()])
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    lost = [name for name in saved if name not in now]
    kept = [name for name in now if whole or name != _SETTINGS]
    other = [name for name in kept if now[name] != saved[name]]
    said = [f"{', '.join(lost)} is missing"] * bool(lost)
    return "; ".join(said + [f"{', '.join(other)} is not as it was saved"] * bool(other))


def has_sums(folder: Path) -> bool:
    """Whether a checkpoint says how its files were saved; those of older versions do not."""
    return (folder / _SUMS).exists()


def _check_state(state: Any, name: str) -> None:
    """What a run goes on from: counts, and the step that the checkpoint is named after."""
    of = state if isinstance(state, dict) else {}
    counts = [of.get(key) for key in ("step", "cursor", "version")]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("trainer.json does not say where the run was")
    if state["step"] != int(name[5:]):
        raise ValueError(f"trainer.json is of step {state['step']}")


def load_weights(policy: Policy, folder: Path) -> None:
    """Put a checkpoint's weights into the model that is there: all of them, or it is an error."""
    adapters = folder / "adapter_model.safetensors"
    try:
        if adapters.exists():
            _load_adapters(policy.model, adapters)
            return
        weights = _stored(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights cannot be read ({error})") from None
    put_weights(policy.model, weights, str(folder))
    policy.model.tie_weights()


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    """Weights by the names they have in a model. Files may have others (experts), which is why
    transformers reads them; what it would make up for a name that is missing is an error."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, about = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    finally:
        logging.set_verbosity(before)
    odd = {kind: sorted(map(str, names)) for kind, names in about.items() if names}
    if odd:
        said = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in odd.items())
        raise UserError(f"{folder}: its weights are not those of its model ({said})")
    return dict(model.named_parameters())


def _load_adapters(model: Any, path: Path) -> None:
    named = {_adapter(name): weight for name, weight in load_file(path).items()}
    own = dict(model.named_parameters())  # of a layer that is adapted peft may store its own weight
    if strangers := sorted(named.keys() - model.state_dict().keys()):
        raise UserError(f"{path}: the model has no place for {', '.join(strangers)}")
    if lost := sorted(n for n, weight in own.items() if weight.requires_grad and n not in named):
        raise UserError(f"{path}: it has no weights for {', '.join(lost)}")
    for name, weight in own.items():  # in one order on all ranks: each is a collective
        if name in named:
            put_weight(weight, named[name], f"{path}: {name}")


def _adapter(name: str) -> str:
    """peft's name of a stored adapter weight -> the name it has in the model."""
    name = name.removeprefix("base_model.model.")
    return re.sub(r"(lora_(embedding_)?[AB])(\.weight)?$", r"\1.default\3", name)


def saved_checkpoints(folder: Path) -> dict[int, Path]:
    """The whole checkpoints in a folder, by step, oldest first."""
    found = find_checkpoints(folder)
    return {step: p for step, p in found.items() if (p / "trainer.json").exists()}


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder, or None."""
    return next(reversed(saved_checkpoints(folder).values()), None)


def sound_checkpoint(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is as it was saved, also of a stop, and what is wrong with those
    that are newer; these are put aside as `damaged-...`."""
    named = [p for kind in ("step", "stop") for p in find_checkpoints(folder, kind).values()]
    wrong: dict[Path, str] = {}
    # At equal steps that of the stop comes last: the other was saved after it.
    for path in sorted(named, key=lambda p: (-int(p.name[5:]), p.name)):
        if not (why := damage(path)):
            break
        wrong[path] = why
    else:
        path = None
    for bad in wrong if path else ():
        aside = set_aside(bad)
        shutil.rmtree(aside, ignore_errors=True)
        bad.rename(aside)
    return path, wrong


def forget_checkpoints(folder: Path, keep: int, spare: set[int]) -> None:
    """Remove all but the newest `keep` checkpoints and those to be spared; 0 keeps all."""
    saved = saved_checkpoints(folder)
    for step in list(saved)[:-keep] if keep else []:
        if step not in spare:
            shutil.rmtree(saved[step])


def forget_drafts(folder: Path) -> None:
    """Remove what a process that was killed while it saved has left."""
    for draft in [*folder.glob("st[eo]p-*.draft"), *folder.glob("mixed.*")]:
        if draft.is_dir():
            shutil.rmtree(draft)


def forget_stops(folder: Path) -> None:
    """Remove the checkpoints of stops: a run that went on has one of its own."""
    for path in folder.glob("stop-*"):
        if path.is_dir():
            shutil.rmtree(path)


def load_trainer(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `save_checkpoint` was given as state and tensors."""
    try:
        state = json.loads((folder / "trainer.json").read_text())
        path = folder / "trainer.pt"
        return state, torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"{folder}: this checkpoint cannot be read ({said}). Put it back from a copy, or "
            "remove it: --resume then goes on from the one before"
        ) from None
