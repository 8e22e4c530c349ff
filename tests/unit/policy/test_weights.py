"""A digest of weights: another for other weights, wherever they lie, at the cost of some blocks."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.policy.embedded import SHIPPED
from sps.policy.weights import needs_base, refuse_other_base, weights_digest

MIB = 2**20


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the embedded policy."""
    base = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
    return Path(shutil.copytree(base, tmp_path / "model"))


def retrain(folder: Path, name: str = "model.safetensors", part: str = "") -> None:
    """Other weights of the same names and shapes, in a file of the same size."""
    held = load_file(folder / name)
    changed = {key: w + 1e-3 * torch.randn_like(w) for key, w in held.items() if part in key}
    save_file({**held, **changed}, folder / name, {"format": "pt"})


def flipped(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_other_weights_have_another_digest_and_the_same_ones_have_the_same(model, tmp_path):
    before = weights_digest(str(model))
    assert len(before) == 16
    assert weights_digest(str(shutil.copytree(model, tmp_path / "copy"))) == before
    (model / "README.md").write_text("words")
    for name in ("training_args.bin", "optimizer.bin", "consolidated.safetensors"):
        (model / name).write_bytes(b"not what a loader reads")
    assert weights_digest(str(model)) == before
    size = (model / "model.safetensors").stat().st_size
    retrain(model, part="layers.0.mlp.down_proj")
    assert (model / "model.safetensors").stat().st_size == size < 4 * MIB
    assert weights_digest(str(model)) != before


@pytest.mark.parametrize("at", [0, 2 * MIB, 4 * MIB - 1])
def test_a_file_of_up_to_four_mib_is_read_whole(tmp_path, at):
    (tmp_path / "model.safetensors").write_bytes(bytes(4 * MIB))
    before = weights_digest(str(tmp_path))
    flipped(tmp_path / "model.safetensors", at)
    assert weights_digest(str(tmp_path)) != before


def test_a_large_file_is_told_by_its_ends_its_size_and_blocks_between_in_no_time(tmp_path):
    file = tmp_path / "model.safetensors"
    with file.open("wb") as made:
        made.truncate(8 * 2**30)  # sparse: it takes no room
    began = time.monotonic()
    known = {weights_digest(str(tmp_path))}
    assert time.monotonic() - began < 1
    for at in (0, 8 * 2**30 - 1, (8 * 2**30 - 2**16) * 31 // 63):
        flipped(file, at)
        known.add(weights_digest(str(tmp_path)))
    with file.open("wb") as made:
        made.truncate(8 * 2**30 + 1)
    assert len(known | {weights_digest(str(tmp_path))}) == 5


def in_parts(folder: Path, kind: str) -> list[Path]:
    """Two files of weights, and the index that names them."""
    stem, suffix = kind.split(".")
    names = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    for name in names:
        (folder / name).write_bytes(b"weights")
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (folder / f"{kind}.index.json").write_text(json.dumps(index))
    return [folder / name for name in names]


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_every_part_of_a_model_counts_and_nothing_is_said_of_some_of_them(tmp_path, kind):
    _, last = in_parts(tmp_path, kind)
    before = weights_digest(str(tmp_path))
    (tmp_path / f"other.{last.suffix}").write_bytes(b"no part of it")
    assert weights_digest(str(tmp_path)) == before
    flipped(last, 3)
    assert weights_digest(str(tmp_path)) not in ("", before)
    last.unlink()
    assert weights_digest(str(tmp_path)) == ""
    (tmp_path / f"{kind}.index.json").write_text("{")
    assert weights_digest(str(tmp_path)) == ""


def test_of_several_kinds_the_one_counts_that_a_loader_reads(tmp_path):
    """As transformers looks for them."""
    in_parts(tmp_path, "pytorch_model.bin")
    known = [weights_digest(str(tmp_path))]
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    known.append(weights_digest(str(tmp_path)))
    in_parts(tmp_path, "model.safetensors")
    known.append(weights_digest(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert len({"", *known, weights_digest(str(tmp_path))}) == 5


def test_a_gguf_file_is_the_one_that_is_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"a")
    (tmp_path / "b.gguf").write_bytes(b"b")
    one = weights_digest(str(tmp_path), "a.gguf")
    assert one == weights_digest(str(tmp_path / "a.gguf")) != ""
    assert one != weights_digest(str(tmp_path), "b.gguf")
    assert weights_digest(str(tmp_path), "c.gguf") == ""


def test_of_adapters_their_model_counts_too(model, tmp_path):
    own = tmp_path / "adapters"
    own.mkdir()
    (own / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    (own / "adapter_model.safetensors").write_bytes(b"adapters")
    before = weights_digest(str(own))
    retrain(model)
    after = weights_digest(str(own))
    assert after not in ("", before)
    flipped(own / "adapter_model.safetensors", 0)
    assert weights_digest(str(own)) not in ("", before, after)
    model.rename(tmp_path / "elsewhere")
    assert weights_digest(str(own)) == ""  # of half of it nothing is said
    (tmp_path / "elsewhere").rename(model)
    assert weights_digest(str(own)) != ""
    (own / "adapter_model.safetensors").rename(own / "adapter_model.bin")
    (own / "optimizer.bin").write_bytes(b"no adapters")
    of_bin = weights_digest(str(own))
    (own / "optimizer.bin").unlink()
    assert weights_digest(str(own)) == of_bin
    (own / "adapter_model.bin").unlink()
    assert weights_digest(str(own)) == ""


@pytest.mark.parametrize("config", ["{", "{}"])
def test_of_damaged_adapters_nothing_is_said_since_the_loader_says_it_better(tmp_path, config):
    (tmp_path / "adapter_config.json").write_text(config)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"adapters")
    assert weights_digest(str(tmp_path)) == ""


def downloaded(cache: Path, model: Path, commit: str) -> Path:
    """A model of the hub as its library keeps it."""
    repo = cache / "models--owner--name"
    (repo / "refs").mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(model, repo / "snapshots" / commit))


def test_of_a_hub_id_the_files_that_were_downloaded_count(model, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert weights_digest("owner/name") == ""  # nobody knows yet
    downloaded(tmp_path / "cache", model, "a" * 40)
    before = weights_digest("owner/name")
    assert before == weights_digest(str(model))
    downloaded(tmp_path / "cache", model, "b" * 40)  # another card, say
    assert weights_digest("owner/name") == before
    retrain(downloaded(tmp_path / "cache", model, "c" * 40))
    assert weights_digest("owner/name") not in ("", before)
    _, last = in_parts(downloaded(tmp_path / "cache", model, "d" * 40), "model.safetensors")
    (last.parent / "model.safetensors").unlink()
    assert weights_digest("owner/name") != ""
    last.unlink()  # it is not downloaded yet
    assert weights_digest("owner/name") == ""


@pytest.mark.parametrize("path", [None, "nowhere", "/no/where/at/all", "a/b/c"])
def test_of_what_is_not_here_and_of_the_embedded_policy_nobody_knows(path):
    assert weights_digest(path) == ""


@pytest.mark.parametrize("kind", ["step", "stop"])
def test_the_base_is_needed_until_a_checkpoint_holds_all_weights_of_the_run(tmp_path, kind):
    def needed(**tree) -> bool:
        return needs_base(tmp_path, parse_recipe(tree, "test"))

    (tmp_path / "checkpoints" / "damaged-step-000002").mkdir(parents=True)
    assert needed()
    (tmp_path / "checkpoints" / f"{kind}-000002").mkdir()
    assert not needed()
    assert needed(model={"lora": {"rank": 4}})
    assert needed(rl={"algorithm": {"beta": 0.01}})
    assert needed(checkpoint={"mix": 0.3})


def test_a_run_is_refused_only_where_it_is_known_to_have_begun_from_others(model, tmp_path):
    refuse_other_base(tmp_path, str(model))  # of an older version
    (tmp_path / "base.sha256").write_text(f"{weights_digest(str(model))}\n")
    refuse_other_base(tmp_path, str(model))
    refuse_other_base(tmp_path, str(tmp_path / "gone"))
    retrain(model)
    with pytest.raises(UserError, match=r"model \(model\.path\) holds other weights now than when"):
        refuse_other_base(tmp_path, str(model))
