"""Runs that train adapters."""

from __future__ import annotations

import pytest
import torch
from small_runs import (
    Killed,
    adapters,
    first_weights,
    kill_at,
    killed_and_resumed,
    recipe_of,
    run,
    same_weights,
)

from sps.build import open_run
from sps.errors import UserError
from sps.policy.load import load_policy
from sps.run.folder import checkpoint_path

pytestmark = pytest.mark.usefixtures("one_cache")


def test_lora_trains_adapters_alone_and_resumes_to_the_same_bits(tmp_path):
    pytest.importorskip("peft")
    recipe = recipe_of(model__lora={"rank": 4, "alpha": 8})
    before = first_weights(recipe, tmp_path)
    run(recipe, tmp_path / "whole")
    stored_names = set(adapters(tmp_path / "whole"))
    # 1 layer of 7 linear maps, two matrices each; nothing else is stored.
    assert len(stored_names) == 14
    assert all("lora_" in name for name in stored_names)
    assert any(bool(v.any()) for n, v in adapters(tmp_path / "whole").items() if "lora_B" in n)
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    again = adapters(tmp_path / "run")
    assert all(torch.equal(again[n], v) for n, v in adapters(tmp_path / "whole").items())
    loaded = load_policy(str(checkpoint_path(tmp_path / "whole", 6)))  # as anyone would load it
    own = dict(loaded.model.named_parameters())
    base = {n: p for n, p in before.items() if "lora_" not in n}
    assert len(base) == len(before) - 14
    assert all(torch.equal(own[n], p) for n, p in base.items())


def test_adapters_of_a_run_are_trained_on_by_another_and_never_silently_replaced(tmp_path):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    lora = {"rank": 4, "alpha": 8}
    run(recipe_of(model__lora=lora, rl__steps=3), tmp_path / "first")
    start = checkpoint_path(tmp_path / "first", 3)
    for other in (None, {"rank": 8, "alpha": 8}):
        with pytest.raises(UserError, match=r"model.lora: \{rank: 4, alpha: 8\}"):
            open_run(recipe_of(model__path=str(start), model__lora=other), tmp_path / "refused")
    recipe = recipe_of(model__path=str(start), model__lora=lora)
    this = open_run(recipe, tmp_path / "look")
    held = adapters(tmp_path / "first", 3)
    own = {n: p for n, p in this.policy.model.named_parameters() if p.requires_grad}
    assert len(own) == len(held) > 0
    assert sorted(p.norm().item() for p in own.values()) == pytest.approx(
        sorted(p.norm().item() for p in held.values())
    )
    run(recipe, tmp_path / "whole")
    assert any(not torch.equal(held[n], p) for n, p in adapters(tmp_path / "whole").items())
    with pytest.raises(Killed):
        run(recipe, tmp_path / "cut", listeners=[kill_at("rl", 5)])
    run(recipe, tmp_path / "cut", resume=True)
    assert same_weights(adapters(tmp_path / "cut"), adapters(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["q_prj"], r"targets: \['q_prj'\]: the model has none of that name; .* q_proj, k_proj"),
        (["q_proj", "v_prj"], r"targets: \['v_prj'\]: the model has none of that name"),
        (["input_layernorm"], r"targets: \['input_layernorm'\]: Target module .* not supported"),
        ("q_prj", "targets: q_prj: .*not found in the base model.*; write all-linear"),
        ("*_proj", r"targets: \*_proj: it is no regular expression"),
    ],
)
def test_layers_that_take_no_adapters_are_named_before_anything_is_trained(tmp_path, targets, said):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    with pytest.raises(UserError, match=said):
        open_run(recipe_of(model__lora={"rank": 4, "targets": targets}), tmp_path / "run")
