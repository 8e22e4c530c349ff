"""Two models of one shape mixed weight by weight, as an ordinary Hugging Face folder.

A share of the first (the base, say) and the rest of the second (the trained one). All of it is
computed in float32; the result has the second's dtypes, shards, tokenizer and settings. One tensor
of each folder is in memory at a time, and one file of the result.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sps import __version__
from sps.errors import UserError
from sps.policy.files import base_of, check_files, in_one_line
from sps.run.disk import digests, sync, sync_tree

_WEIGHTS = "model.safetensors"
_INDEX = f"{_WEIGHTS}.index.json"
# What belongs to the second model alone: its card, its training state, its checksums.
_OWN = {"README.md", "checksums.json", "trainer.json", "trainer.pt"}
_SHOWN = 3  # names in an error
_ADAPTERS = "adapter_model.safetensors"
_LORA = re.compile(r"lora_(embedding_)?[AB]|\.base_layer\.")
_B = re.compile(r"lora_(embedding_)?B")  # A B is what adapters add to a weight
Weights = dict[str, torch.Tensor]


def mixed(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    """share x first + (1 - share) x second in float32, in the second's dtype."""
    return (share * first.float() + (1 - share) * second.float()).to(second.dtype)


@torch.no_grad()
def mix_into(model: Any, first: Any, share: float) -> None:
    """The same with models in memory: the model becomes the mix of the first and itself. LoRA
    adapters are what was added to the first: the mix is theirs, smaller."""
    start, own = dict(first.named_parameters()), dict(model.named_parameters())
    if adapters := [name for name in own if _B.search(name)]:
        if any(name in start and bool(start[name].any()) for name in adapters):
            raise UserError("the base has adapters of its own: their mix has a higher rank")
        for name in adapters:
            own[name].copy_(mixed(torch.zeros_like(own[name]), own[name], share))
        return
    odd = [name for name, w in own.items() if name not in start or start[name].shape != w.shape]
    if odd:
        raise UserError(f"the base has no such weights, or of other shapes ({_some(odd)}): no mix")
    for name, weight in own.items():
        weight.copy_(mixed(start[name].to(weight.device), weight, share))


def mix_folders(first: Path, second: Path, share: float, out: Path) -> Path:
    """Write the mix to a folder that is not there yet; it appears when it is whole."""
    _check_pair(first, second)
    places = _places(first)
    files = sorted(set(_places(second).values()))
    card = _card(first, second, share)
    return _write(out, second, files, lambda path: _mixed_file(first, places, path, share), card)


def mix_adapters(checkpoint: Path, share: float, out: Path) -> Path:
    """The mix of LoRA adapters with the model that they are for."""
    return _write(out, checkpoint, [_ADAPTERS], lambda path: _smaller(path, share), "")


def _write(
    out: Path, second: Path, files: list[str], mixed_file: Callable[[Path], Weights], card: str
) -> Path:
    """What `mixed_file` makes of each file of the second model, and the rest of its folder."""
    draft = out.with_name(f"{out.name}.{os.getpid()}.draft")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        for path in second.iterdir():
            if path.is_file() and path.suffix != ".safetensors" and path.name not in _OWN:
                shutil.copyfile(path, draft / path.name)
        for name in files:
            save_file(mixed_file(second / name), draft / name, {"format": "pt"})
        (draft / "README.md").write_text(card, encoding="utf-8")
        sync_tree(draft)
        draft.rename(out)
        sync(out.parent)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{out}: cannot be written ({in_one_line(error)})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def _check_pair(first: Path, second: Path) -> None:
    """Refuse models that are not alike, before anything is written: by names and by shapes."""
    shapes = [_shapes(folder) for folder in (first, second)]
    for one, other, where, there in ((*shapes, first, second), (*shapes[::-1], second, first)):
        if only := sorted(one.keys() - other.keys()):
            raise UserError(
                f"{where} has weights that {there} lacks ({_some(only)}): only two models of the "
                "same architecture can be mixed, such as a model and what was trained from it"
            )
    odd = [name for name, shape in shapes[0].items() if shape != shapes[1][name]]
    if odd:
        name = odd[0]
        raise UserError(
            f"{first} and {second} have weights of other shapes ({_some(odd)}: {shapes[0][name]} "
            f"and {shapes[1][name]}): only two models of the same architecture can be mixed"
        )


def _smaller(path: Path, share: float) -> Weights:
    """Adapters whose products are smaller; peft may store frozen layers beside them."""
    made: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            weight = file.get_tensor(name)
            if not _LORA.search(name):
                raise UserError(f"{path}: {name} is no adapter's, and cannot be mixed")
            scaled = _B.search(name) is not None
            made[name] = mixed(torch.zeros_like(weight), weight, share) if scaled else weight
    return made


def _mixed_file(first: Path, places: dict[str, str], path: Path, share: float) -> Weights:
    """The mix of all tensors in one file of the second model."""
    made: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as file, ExitStack() as stack:
        names = list(file.keys())
        opened = {
            place: stack.enter_context(safe_open(first / place, "pt"))
            for place in {places[name] for name in names}
        }
        for name in names:
            a, b = opened[places[name]].get_tensor(name), file.get_tensor(name)
            if not b.is_floating_point() and not torch.equal(a, b):
                raise UserError(f"{first} and {path.parent} differ in {name}, which is no weight")
            made[name] = mixed(a, b, share) if b.is_floating_point() else b
    return made


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Of each weight; from the heads of the files alone."""
    found: dict[str, list[int]] = {}
    for name in sorted(set(_places(folder).values())):
        try:
            with safe_open(folder / name, "pt") as file:
                found |= {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{folder / name} cannot be read ({in_one_line(error)})") from None
    return found


def _places(folder: Path) -> dict[str, str]:
    """Which file of a folder holds which weight."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; give the folder of a Hugging Face model (a model of the "
            "hub is downloaded first: hf download ID --local-dir FOLDER), a run, or a recipe"
        )
    check_files(folder)
    if base := base_of(folder):
        raise UserError(
            f"{folder} holds LoRA adapters of {base}, and no weights of its own. Merge them first "
            "(peft: AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
            ".save_pretrained(MERGED)) and mix the merged model"
        )
    if (folder / _INDEX).exists():
        return json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    if not (folder / _WEIGHTS).exists():
        raise UserError(
            f"{folder} has no {_WEIGHTS}: load the model with transformers and save it again with "
            "save_pretrained, which writes that file"
        )
    try:
        with safe_open(folder / _WEIGHTS, "pt") as file:
            return dict.fromkeys(file.keys(), _WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / _WEIGHTS} cannot be read ({in_one_line(error)})") from None


def _card(first: Path, second: Path, share: float) -> str:
    """What the folder is and from what it was made; without the folders of this machine."""
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["sps", "weight-averaging"],
    }
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {share:g} x first + {1 - share:g} x second",
        "Every weight is that share of the first model's plus the rest of the second's, computed "
        "in float32 and kept in the second's dtype. Tokenizer and settings are the second's. Made "
        f"by `sps mix` of sps {__version__}; it was not trained further.",
        "| model | folder | file | SHA-256 of its pieces' |\n| --- | --- | --- | --- |\n"
        + "\n".join(_source("first", first) + _source("second", second)),
    ]
    return "\n\n".join(lines) + "\n"


def _source(which: str, folder: Path) -> list[str]:
    names = sorted(set(_places(folder).values()))
    shown = folder.resolve().name.replace("|", "_")
    found = digests(folder, names)
    return [f"| {which} | `{shown}` | `{name}` | `{found[name].split()[1]}` |" for name in names]


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
