"""`sps eval` of a run whose checkpoint is damaged: which, what is wrong, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_runs import recipe_of, run

from sps.commands.eval_options import make_options
from sps.commands.evaluate import run_eval
from sps.errors import UserError
from sps.policy.embedded import SHIPPED

pytestmark = pytest.mark.usefixtures("one_cache")


@pytest.fixture(scope="module")
def made(one_cache, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    run(recipe_of(rl__steps=4, irl__steps=0), folder)
    return folder


@pytest.fixture
def last(made, tmp_path) -> Path:
    """The last checkpoint of a copy of the run."""
    return Path(shutil.copytree(made, tmp_path / "run")) / "checkpoints" / "step-000004"


def evaluate(model, out, bench="", **given):
    given = {"n": 1, "limit": 2, "workers": 1, **given}
    return run_eval(*make_options(str(model), given), bench, out)


def flip(path: Path) -> bytes:
    """A bit of the last weight, which any loader takes; returns the file as it was."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    return whole


def cut(path: Path) -> bytes:
    """Half of a file is lost; returns it whole."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return whole


@pytest.mark.parametrize("spoilt", [cut, flip])
@pytest.mark.parametrize("named", ["run", "checkpoint"])
def test_a_damaged_checkpoint_is_named_with_what_is_wrong_and_what_to_do(
    last, tmp_path, named, spoilt
):
    model, out = last.parents[1] if named == "run" else last, tmp_path / "eval"
    whole = spoilt(last / "model.safetensors")
    spoilt(last / "trainer.pt")  # no part of the model
    with pytest.raises(UserError) as said:
        evaluate(model, out)
    text = str(said.value)
    said = "this checkpoint is damaged: model.safetensors is not as it was saved. Put it back from"
    assert text.startswith(f"{last}: {said} a copy, or ")
    assert text.count(str(last)) == 1
    assert text.endswith(f"or evaluate another one of {last.parent}: step-000002")
    assert "model.path" not in text
    (last / "model.safetensors").write_bytes(whole)
    assert evaluate(model, out)["benchmarks"]["test"]["n"] == 1  # nothing is left to be in the way


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_so_is_one_that_lost_a_file_and_is_the_only_one(last, tmp_path, name):
    shutil.rmtree(last.with_name("step-000002"))
    (last / name).unlink()
    with pytest.raises(UserError, match=rf"{last}: .* damaged: {name} is missing\. .* a copy$"):
        evaluate(last, tmp_path / "eval")


def test_settings_to_sample_by_may_be_edited_but_not_be_lost(last, tmp_path):
    """`sps eval` samples by its options; where an answer may end is in them, too."""
    settings = last / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"temperature": 0.1}))
    assert evaluate(last, tmp_path / "eval")["benchmarks"]["test"]["n"] == 1
    settings.unlink()
    with pytest.raises(UserError, match=r"damaged: generation_config\.json is missing"):
        evaluate(last, tmp_path / "other")


def test_so_are_adapters_whose_settings_cannot_be_read(last, tmp_path):
    (last / "config.json").rename(last / "adapter_config.json")
    saved = {"adapter_config.json": sums(last)["config.json"]}
    (last / "checksums.json").write_text(json.dumps(saved))
    cut(last / "adapter_config.json")
    with pytest.raises(UserError, match=rf"^{last}: .* damaged: adapter_config\.json is not as"):
        evaluate(last, tmp_path / "eval")


def test_without_checksums_it_is_said_as_far_as_it_is_known(last, tmp_path):
    cut(last / "model.safetensors")
    mixed = shutil.copytree(last, last.with_name("mixed"))
    for folder, others in ((last, "step-000002, mixed"), (mixed, "step-000002, step-000004")):
        (folder / "checksums.json").unlink()
        with pytest.raises(UserError, match=rf"{folder}: .*Put it back.*: {others}$"):
            evaluate(folder, tmp_path / "eval")


def test_a_fault_of_another_model_is_not_put_down_to_the_checkpoint(last, tmp_path):
    """Such as of the model that adapters belong to, or of a folder that is no run's."""
    config = json.loads((last / "config.json").read_text()) | {"model_type": "none"}
    (last / "config.json").write_text(json.dumps(config))
    (last / "checksums.json").write_text(json.dumps({"trainer.json": sums(last)["trainer.json"]}))
    base = shutil.copytree(next(SHIPPED.glob("*/config.json")).parent, tmp_path / "base")
    cut(base / "model.safetensors")
    for model in (last, base):
        with pytest.raises(UserError) as said:
            evaluate(model, tmp_path / "eval", bench="countdown", template="plain")
        assert str(said.value).startswith(f"{model} cannot be loaded: ")
        assert "Put it back" not in str(said.value)


def sums(checkpoint: Path) -> dict[str, str]:
    return json.loads((checkpoint / "checksums.json").read_text())
