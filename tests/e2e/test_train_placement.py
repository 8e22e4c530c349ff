"""Runs whose sleeping optimizers are on the host, and runs with moments of 8 bits."""

from __future__ import annotations

import pytest
import torch
from small_runs import kill_at, killed_and_resumed, learnt, recipe_of, run, same_weights, weights

from sps.build import open_run
from sps.lifecycle import resume
from sps.policy import placement
from sps.policy.checkpoint import load_trainer
from sps.rollout.native.copied import CopiedEngine
from sps.rollout.native.engine import NativeEngine
from sps.run.folder import checkpoint_path

pytestmark = pytest.mark.usefixtures("one_cache")


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_optimizers_that_sleep_on_the_host_change_no_bit_and_resume(tmp_path, monkeypatch, state):
    recipe = recipe_of(irl__optimizer_state=state)
    run(recipe, tmp_path / "plain")
    moves = []
    move = placement._move
    monkeypatch.setattr(placement, "has_host", lambda device: True)
    monkeypatch.setattr(placement, "_move", lambda *given: moves.append(move(*given)))
    run(recipe, tmp_path / "asleep")
    # Two IRL phases: RL's to the host and back; one that is kept, the other way round.
    assert len(moves) == (4 if state == "fresh" else 8)
    assert learnt(tmp_path / "asleep") == learnt(tmp_path / "plain")
    assert same_weights(weights(tmp_path / "asleep"), weights(tmp_path / "plain"))
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "plain"))
    # Never the moments of both on the device: resuming takes no more memory than the run did.
    order = []
    monkeypatch.setattr(resume, "put_to_sleep", lambda *_: order.append("to sleep"))
    monkeypatch.setattr(resume, "set_optimizer_state", lambda *_: order.append("moments"))
    open_run(recipe, tmp_path / "run", resume=True)
    assert order == (["moments", "to sleep", "moments"] if state == "kept" else ["moments"])


def test_an_engine_gives_way_to_an_update_that_is_out_of_memory(tmp_path, monkeypatch):
    shrunk = []
    monkeypatch.setattr(NativeEngine, "shrink", lambda self: shrunk.append(self))
    this = open_run(recipe_of(), tmp_path)
    assert not shrunk
    this.budget.make_way()
    assert shrunk == [this.engine]
    CopiedEngine(this.engine, this.policy.model).shrink()
    assert shrunk == [this.engine] * 2


def test_moments_of_8_bits_train_resume_to_the_same_bits_and_are_saved_small(tmp_path):
    pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    # Layers of 64 x 64: torchao rounds no tensor of fewer than 4096 numbers.
    base = {"hidden": 64, "ff": 64, "layers": 1, "heads": 2, "steps": 200, "batch": 32, "lr": 1e-2}
    eight = {"model__base": base, "rl__optimizer": {"bits": 8}, "irl__optimizer": {"bits": 8}}
    recipe = recipe_of(**eight, irl__optimizer_state="kept")
    run(recipe, tmp_path / "whole")
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    saved = load_trainer(checkpoint_path(tmp_path / "run", 6))[1]
    for name in ("optimizer", "irl_optimizer"):
        moments = {key: of["exp_avg"] for key, of in saved[name].items()}
        small = [type(m).__name__ for m in moments.values() if m.numel() >= 4096]
        assert set(small) == {"OptimState8bit"}
        assert len(small) > 4
    run(recipe_of(model__base=base, irl__optimizer_state="kept"), tmp_path / "plain")
    assert not same_weights(weights(tmp_path / "plain"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_a_reference_in_bf16_changes_no_bit_of_a_run(tmp_path, monkeypatch, lora):
    if lora:
        pytest.importorskip("peft", reason="the extra sps[lora] is not installed")
    grpo = {"type": "grpo", "beta": 0.05}
    recipe = recipe_of(model__dtype="bfloat16", model__lora=lora, rl__algorithm=grpo, rl__steps=4)
    this = open_run(recipe, tmp_path / "look")
    assert torch.bfloat16 in {w.dtype for w in this.reference.model.parameters()}
    run(recipe, tmp_path / "rounded")
    for place in ("build.round_frozen", "policy.load.round_frozen"):
        monkeypatch.setattr(f"sps.{place}", lambda model: None)
    monkeypatch.setattr("sps.build.share_frozen", lambda *models: None)
    run(recipe, tmp_path / "plain")
    assert learnt(tmp_path / "rounded") == learnt(tmp_path / "plain")
    assert any(record.get("kl_ref") for record in learnt(tmp_path / "plain"))
