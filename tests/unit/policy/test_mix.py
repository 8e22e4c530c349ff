"""Mixes of two models: exact arithmetic, what is kept, what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sps.commands.mix import parse_shares, run_mix
from sps.errors import UserError
from sps.policy.embedded import SHIPPED
from sps.policy.mix import mix_folders, mix_into, mixed


def model(folder, files=("model.safetensors",), dtype=torch.bfloat16, scale=1.0, **more):
    """A made folder: two weights and a mask, in one file or in several."""
    folder.mkdir()
    weights = {
        "a.weight": (torch.arange(6.0).reshape(2, 3) * scale).to(dtype),
        "b.weight": (torch.tensor([1.0, 1 / 3, -1e-3]) * scale).to(dtype),
        "mask": torch.tensor([1, 0, 1]),
        **more,
    }
    place = {name: files[i % len(files)] for i, name in enumerate(weights)}
    for file in files:
        own = {name: weight for name, weight in weights.items() if place[name] == file}
        save_file(own, folder / file)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("config.json", "tokenizer.json", "README.md", "trainer.json", "checksums.json"):
        (folder / name).write_text(json.dumps({"of": folder.name}))
    (folder / "trainer.pt").write_bytes(b"state")
    return folder


def test_mixed_is_computed_in_float32_and_kept_in_the_dtype_of_the_second():
    first, second = torch.tensor([1.0, 3.0]), torch.tensor([1.0078125, 1.0], dtype=torch.bfloat16)
    got = mixed(first, second, 0.25)
    assert got.dtype == torch.bfloat16
    # 1/4 + 3/4 x 1.0078125 = 1.005859375, which bfloat16 (steps of 1/128 there) rounds to the
    # nearest; 3/4 + 3/4 = 1.5.
    assert got.tolist() == [1.0078125, 1.5]
    assert mixed(first, second.float(), 0.25).tolist() == [1.005859375, 1.5]
    # 0.502 - 0.375 = 0.127 is nearest to 130/1024; of 1.004 in bfloat16 it would be 132/1024.
    half = mixed(torch.tensor([1.004]), torch.tensor([-0.75], dtype=torch.bfloat16), 0.5)
    assert half.tolist() == [130 / 1024]


@pytest.mark.parametrize("files", [("model.safetensors",), ("x-1.safetensors", "x-2.safetensors")])
def test_every_weight_is_the_share_of_the_first_and_the_rest_of_the_second(tmp_path, files):
    first = model(tmp_path / "first", ("p.safetensors", "q.safetensors"), torch.float32)
    second = model(tmp_path / "second", files, scale=3.0)
    out = mix_folders(first, second, 0.3, tmp_path / "new" / "out")
    assert sorted(p.name for p in out.glob("*.safetensors")) == sorted(files)
    got = {name: w for file in files for name, w in load_file(out / file).items()}
    before = {k: v for f in ("p", "q") for k, v in load_file(first / f"{f}.safetensors").items()}
    after = {k: v for file in files for k, v in load_file(second / file).items()}
    assert got.keys() == after.keys()
    for name in ("a.weight", "b.weight"):
        want = 0.3 * before[name].double() + 0.7 * after[name].double()
        assert got[name].dtype == torch.bfloat16
        torch.testing.assert_close(got[name].double(), want, rtol=2**-8, atol=0)
    assert got["mask"].tolist() == [1, 0, 1]


def test_the_second_gives_settings_and_the_card_says_from_what(tmp_path):
    first, second = model(tmp_path / "first"), model(tmp_path / "second", scale=2.0)
    out = mix_folders(first, second, 0.25, tmp_path / "out")
    assert json.loads((out / "tokenizer.json").read_text()) == {"of": "second"}
    kept = {"README.md", "config.json", "tokenizer.json", "model.safetensors"}
    assert {p.name for p in out.iterdir()} == kept
    card = (out / "README.md").read_text()
    assert "0.25 x first + 0.75 x second" in card
    assert "| first | `first` | `model.safetensors` |" in card
    assert str(tmp_path) not in card
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "out", "second"]  # no drafts


def test_a_mix_of_embedded_policies_is_a_model_that_transformers_loads(tmp_path):
    (base,) = SHIPPED.iterdir()
    trained = tmp_path / "trained"
    shutil.copytree(base, trained)
    doubled = {name: 2 * w for name, w in load_file(base / "model.safetensors").items()}
    save_file(doubled, trained / "model.safetensors", {"format": "pt"})
    said = run_mix(str(base), str(trained), "0.25,0.5", tmp_path / "out")
    assert said.splitlines() == [str(tmp_path / "out" / f"share-{s}") for s in ("0.25", "0.5")]
    was = AutoModelForCausalLM.from_pretrained(base).state_dict()
    now = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "share-0.25").state_dict()
    for name, weight in was.items():
        torch.testing.assert_close(now[name], 1.75 * weight, rtol=1e-6, atol=0)


def test_a_recipe_stands_for_what_it_starts_from(tmp_path):
    first = model(tmp_path / "first")
    second = model(tmp_path / "second", scale=2.0)
    (tmp_path / "x.yaml").write_text(f"model: {{path: {first}}}\n")
    run_mix(str(tmp_path / "x.yaml"), str(second), "0.5", tmp_path / "out")
    got = load_file(tmp_path / "out" / "share-0.5" / "model.safetensors")["a.weight"]
    assert got.flatten().tolist() == [0, 1.5, 3, 4.5, 6, 7.5]


def test_models_in_memory_are_mixed_alike():
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    want = {n: 0.25 * w + 0.75 * dict(two.named_parameters())[n] for n, w in one.named_parameters()}
    mix_into(two, one, 0.25)
    assert all(torch.equal(w, want[n]) for n, w in two.named_parameters())


@pytest.mark.parametrize("shape", [(3, 1), (1, 2)])
def test_models_in_memory_of_other_shapes_are_refused(shape):
    with pytest.raises(UserError, match="other shapes"):
        mix_into(torch.nn.Linear(3, 2), torch.nn.Linear(*shape), 0.3)


class Adapted(torch.nn.Linear):
    """A layer with LoRA's B beside its weight, as peft names it."""

    def __init__(self, b):
        super().__init__(3, 2)
        self.lora_B = torch.nn.ParameterDict({"default": torch.full((2, 1), b)})


def test_adapters_in_memory_are_made_smaller():
    base, trained = Adapted(0.0), Adapted(2.0)
    own = trained.weight.detach().clone()
    mix_into(trained, base, 0.25)
    assert trained.lora_B["default"].flatten().tolist() == [1.5, 1.5]
    assert torch.equal(trained.weight, own)  # the frozen weight, which is the base's
    with pytest.raises(UserError, match="adapters of its own"):
        mix_into(trained, Adapted(1.0), 0.25)


def refused(tmp_path, first, second, message):
    with pytest.raises(UserError, match=message):
        run_mix(str(first), str(second), "0.5", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_that_are_not_alike_are_refused(tmp_path):
    first, second = model(tmp_path / "first"), model(tmp_path / "second")
    more = model(tmp_path / "more", **{"c.weight": torch.ones(2)})
    other = model(tmp_path / "other", **{"b.weight": torch.ones(4)})
    masked = model(tmp_path / "masked", mask=torch.tensor([1, 1, 1]))
    refused(tmp_path, first, more, r"more has weights that .*first lacks \(c.weight\).*same arch")
    refused(tmp_path, more, first, r"more has weights that .*first lacks \(c.weight\)")
    refused(tmp_path, first, other, r"other shapes \(b.weight: \[3\] and \[4\]\)")
    refused(tmp_path, first, tmp_path / "none", r"there is no folder .*none; .*hf download")
    with pytest.raises(UserError, match="differ in mask, which is no weight"):
        mix_folders(first, masked, 0.5, tmp_path / "out")
    assert not [*tmp_path.glob("out*")]
    (first / "model.safetensors").write_bytes(b"nothing")
    refused(tmp_path, first, second, r"first/model.safetensors cannot be read")
    (first / "model.safetensors").unlink()
    refused(tmp_path, second, first, r"first has no model.safetensors: .*save_pretrained")


def test_adapters_are_refused_with_what_to_do(tmp_path):
    first, adapters = model(tmp_path / "first"), tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text('{"base_model_name_or_path": "o/base"}')
    refused(tmp_path, first, adapters, r"LoRA adapters of o/base.*[Mm]erge")


def test_a_folder_that_exists_is_not_written_over(tmp_path):
    first, second = model(tmp_path / "first"), model(tmp_path / "second")
    run_mix(str(first), str(second), "0.5", tmp_path / "out")
    with pytest.raises(UserError, match=r"share-0.5: it exists; .*--out"):
        run_mix(str(first), str(second), "0.3,0.5", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["share-0.5"]


def test_shares_by_hand():
    assert parse_shares("0.3, 0.5,0.3", "--share") == [0.3, 0.5]
    assert parse_shares("", "--mix") == []


@pytest.mark.parametrize(("text", "message"), [
    ("0", "--mix 0: a share lies between 0 and 1"),
    ("1", "between 0 and 1"),
    ("nan", "between 0 and 1"),
    ("half", "--mix: 'half' is not a number"),
])  # fmt: skip
def test_shares_that_are_none_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        parse_shares(text, "--mix")
