"""Models as strangers send them: each fault is made for real, and ends as one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from made_gguf import write_gguf
from safetensors.torch import load_file, save_file

from sps.cli import main
from sps.commands.doctor import shape_of
from sps.config.load import load_recipe
from sps.errors import UserError
from sps.policy.checkpoint import save_checkpoint
from sps.policy.load import load_policy, use_adapters

BASE = next((Path(__file__).parents[3] / "src" / "sps" / "assets" / "bases").iterdir())
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the embedded policy."""
    return Path(shutil.copytree(BASE, tmp_path / "model"))


def weights(model: Path) -> Path:
    return model / "model.safetensors"


def change(model: Path, **tensors: torch.Tensor | None) -> None:
    """Put tensors in, or take those out that are None; __ stands for a dot."""
    held = load_file(weights(model))
    for name, tensor in tensors.items():
        key = name.replace("__", ".")
        held.pop(key, None)
        if tensor is not None:
            held[key] = tensor
    save_file(held, weights(model), {"format": "pt"})


def settings(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def test_a_whole_folder_loads_though_its_head_is_tied(model):
    assert "lm_head.weight" not in load_file(weights(model))
    assert load_policy(str(model)).model.num_parameters() > 0


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({DOWN: None}, rf"missing: {DOWN}\)"),
        ({"model__layers__9__gate": torch.zeros(3)}, r"without a place: model\.layers\.9\.gate\)"),
        ({DOWN: torch.zeros(96, 191)}, rf"of another shape: {DOWN}\)"),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_named(model, tensors, message):
    change(model, **{k.replace(".", "__"): v for k, v in tensors.items()})
    with pytest.raises(UserError, match=message):
        load_policy(str(model))


def test_of_many_missing_weights_some_are_named(model):
    lost = [k for k in load_file(weights(model)) if ".layers.1." in k]
    change(model, **dict.fromkeys(lost))
    with pytest.raises(UserError, match=rf"layers\.1\..* and {len(lost) - 3} more\)"):
        load_policy(str(model))


def test_weights_that_are_no_numbers_are_said_to_be(model):
    change(model, **{DOWN.replace(".", "__"): torch.full((96, 192), torch.nan)})
    with pytest.raises(UserError, match="no numbers"):
        load_policy(str(model))


@pytest.mark.parametrize("content", [b"", b"\x07" * 3000, slice(1000), slice(-1000)], ids=repr)
def test_cut_or_garbled_weights_are_one_sentence(model, content):
    whole = weights(model).read_bytes()
    weights(model).write_bytes(whole[content] if isinstance(content, slice) else content)
    with pytest.raises(UserError, match=r"cannot be loaded: SafetensorError: [^\n]+$"):
        load_policy(str(model))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("writer", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_a_pickle_is_not_run(model, tmp_path, writer):
    weights(model).unlink()
    writer({"a": Evil(tmp_path / "ran")}, model / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"which could run as code; use safetensors$"):
        load_policy(str(model))
    assert not (tmp_path / "ran").exists()


def test_a_bin_file_of_nothing_but_weights_loads(model):
    held = load_file(weights(model))
    weights(model).unlink()
    torch.save(held, model / "pytorch_model.bin")
    loaded = load_policy(str(model)).model.state_dict()
    assert torch.equal(loaded[DOWN], held[DOWN])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[" * 100_000, "nested too deeply"),
        ("config.json", "[1]", "is no JSON object but a list"),
        ("config.json", "{", "config.json is not valid JSON"),
        # transformers would load the model without its end tokens.
        ("generation_config.json", "{", "generation_config.json is not valid JSON"),
        ("tokenizer_config.json", "[]", "is no JSON object"),
        ("tokenizer.json", "[" * 100_000, "cannot be loaded: RecursionError"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}', "is no file beside it"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "absent"}}', "is no file beside it"),
        ("model.safetensors.index.json", '{"weight_map": 3}', "which file holds which weights"),
    ],
)
def test_damaged_settings_are_one_sentence(model, name, text, message):
    (model / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load_policy(str(model))


@pytest.mark.parametrize(
    "wrong", [{"hidden_size": "many"}, {"hidden_size": -4}, {"num_attention_heads": 0}]
)
def test_settings_that_cannot_be_are_one_sentence(model, wrong):
    settings(model / "config.json", **wrong)
    with pytest.raises(UserError, match=r"^model\.path: \S+ cannot be loaded: [^\n]+$"):
        load_policy(str(model))


def test_pipes_and_devices_are_not_read(model):
    weights(model).unlink()
    os.mkfifo(weights(model))
    with pytest.raises(UserError, match="is no plain file"):
        load_policy(str(model))
    weights(model).unlink()
    weights(model).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is no plain file"):
        load_policy(str(model))


def code_of_its_own(model: Path, marker: Path, where: str) -> None:
    """`auto_map` in the model's or the tokenizer's settings, and code that leaves a mark."""
    (model / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(0)\n")
    if where == "config.json":
        classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
        settings(model / where, auto_map=classes, model_type="own")
    else:
        settings(
            model / where, auto_map={"AutoTokenizer": ["own.Own", None]}, tokenizer_class="Own"
        )


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_does_not_run_whatever_the_terminal_says(
    model, tmp_path, where, monkeypatch
):
    code_of_its_own(model, tmp_path / "ran", where)
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 100))
    with pytest.raises(UserError, match=r"not run\. .* model\.trust_remote_code: true"):
        load_policy(str(model))
    assert sys.stdin.tell() == 0
    assert not (tmp_path / "ran").exists()
    shape_of(str(model))
    assert not (tmp_path / "ran").exists()


def test_code_of_a_model_runs_when_the_recipe_says_so(model, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    code_of_its_own(model, tmp_path / "ran", "config.json")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {trust_remote_code: true}")
    assert load_recipe(recipe).model.trust_remote_code
    with pytest.raises(SystemExit):
        load_policy(str(model), trust=True)
    assert (tmp_path / "ran").exists()


def test_the_command_line_says_it_in_one_paragraph(model, tmp_path, monkeypatch, capsys):
    code_of_its_own(model, tmp_path / "ran", "config.json")
    command = ["eval", str(model), "--bench", "countdown", "--limit", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["sps", *command])
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 100))
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert (end.value.code, len(said.splitlines())) == (2, 1), said
    assert "--trust-remote-code" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("damaged", ["model", "adapters"])
def test_adapters_and_their_model_are_both_looked_at(model, tmp_path, damaged):
    policy = load_policy(str(model))
    use_adapters(policy.model, rank=2, alpha=4, targets=["q_proj"])
    adapters = tmp_path / "step-000001"
    save_checkpoint(adapters, policy, {"step": 1}, {})
    loaded = load_policy(str(adapters)).model
    assert sum("lora_" in name for name, _ in loaded.named_parameters()) == 6  # 3 layers, A and B
    if damaged == "model":
        change(model, **{DOWN.replace(".", "__"): None})
    else:
        held = load_file(adapters / "adapter_model.safetensors")
        held.pop(next(name for name in held if ".layers.1." in name))
        save_file(held, adapters / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="missing: "):
        load_policy(str(adapters))


def test_a_gguf_file_that_lacks_tensors_is_an_error(tmp_path):
    write_gguf(tmp_path / "whole.gguf")
    assert load_policy(str(tmp_path / "whole.gguf")).model.num_parameters() > 0
    write_gguf(tmp_path / "lacks.gguf", without="blk.0.ffn_up")
    with pytest.raises(UserError, match=r"missing: model\.layers\.0\.mlp\.up_proj\.weight"):
        load_policy(str(tmp_path / "lacks.gguf"))


@pytest.mark.parametrize("content", [b"", b"GGUF\x03\x00\x00\x00", b"\x07" * 999, slice(-2000)])
def test_a_damaged_gguf_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "a.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    with pytest.raises(UserError, match=r"cannot be loaded: [^\n]+$"):
        load_policy(str(path))
