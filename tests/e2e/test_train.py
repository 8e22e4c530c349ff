"""Whole runs at the smallest scale: what every algorithm learns, stores and says."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import (
    ALGORITHMS,
    BASE,
    first_weights,
    recipe_of,
    run,
    same_weights,
    stored,
    told,
    weights,
)

from sps.build import open_run
from sps.config.load import load_recipe
from sps.errors import RunFailed, UserError
from sps.loop import train
from sps.phases import rl
from sps.phases.schedule import Phase
from sps.policy.checkpoint import latest_checkpoint
from sps.types import Verdict
from sps.verify.pool import VerifierPool

pytestmark = pytest.mark.usefixtures("one_cache")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns_something_finite_and_stores_it(name, tmp_path):
    recipe = recipe_of(rl__algorithm=ALGORITHMS[name])
    this, _ = run(recipe, tmp_path / "run")
    records = told(tmp_path / "run")
    steps = [r for r in records if r["kind"] == "rl"]
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(r["loss"]) for r in steps)
    assert any(r["grad_norm"] > 0 for r in steps)
    assert all(torch.isfinite(p).all() for p in this.policy.model.parameters())
    assert not same_weights(weights(tmp_path / "run"), first_weights(recipe, tmp_path))
    rows = stored(tmp_path / "run")
    # 6 steps of 4 groups of 4; DAPO draws more groups, and stores those too.
    assert len(rows) == (4 * sum(r["groups"] for r in steps) if name == "dapo" else 96)
    assert {r["verdict"] for r in rows} >= {"correct", "wrong"}
    # Two IRL phases, each with one record of what was kept and one a step, and a meter after each.
    assert [r["step"] for r in records if r["kind"] == "irl"] == [3, 3, 3, 6, 6, 6]
    meters = [(r["of"], r["step"]) for r in records if r["kind"] == "meter"]
    assert meters == [("rl", 3), ("irl", 3), ("rl", 6), ("irl", 6)]
    moved = [r["to_greedy"] for r in records if r["kind"] == "meter"]
    assert all(0 < abs(x) < 1 for x in moved)
    if name == "grpo_kl":
        # At the first step the policy is the reference, later it is not.
        assert steps[0]["kl_ref"] == pytest.approx(0, abs=1e-9)
        assert steps[-1]["kl_ref"] > 1e-6
    if name == "gspo":
        # The second step of a generation is off its sampling policy, the first is not.
        assert steps[0]["ratio"] == 1
        assert steps[1]["ratio"] != 1
    if name == "dapo":
        # Answers of 6 tokens of at most 8, punished from 6 on: the longest cost 1. Groups that only
        # fill a batch up are not.
        kinds = {(r["step"], r["group"], r["verdict"] == "correct") for r in rows}
        rows = [r for r in rows if {(r["step"], r["group"], kind) for kind in (0, 1)} <= kinds]
        assert {r["reward"] for r in rows if r["length"] == 8} <= {-1.0}
        punished = {r["length"]: r["reward"] for r in rows if r["verdict"] == "correct"}
        assert punished
        for length, reward in punished.items():
            assert reward == pytest.approx(1 - max(0, length - 5) / 3, abs=1e-6)


@pytest.mark.parametrize(("name", "gain"), [("grpo", 0.2), ("dapo", 0.2), ("gspo", 0.12)])
def test_reward_rises(name, gain, tmp_path):
    """192 samples a step: a mean has an error of 0.035, one of four steps 0.018. So 0.12 are three
    of the difference's; with eight seeds GSPO gains 0.13 to 0.32."""
    rollout = {"prompts": 24, "n": 8, "max_new_tokens": 8}
    recipe = recipe_of(
        rl__algorithm=ALGORITHMS[name], rl__steps=16, rl__lr=5e-3, irl__steps=0, rollout=rollout
    )
    run(recipe, tmp_path / "run")
    reward = [r["reward"] for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert np.mean(reward[-4:]) > reward[0] + gain


def test_stored_logprobs_are_those_of_the_sampling_policy(tmp_path):
    recipe = recipe_of(irl__steps=0)
    run(recipe, tmp_path / "run")
    this = open_run(recipe, tmp_path / "first")
    model = this.policy.model
    rows = [r for r in stored(tmp_path / "run") if r["step"] == 1]
    assert len(rows) == 16
    for r in rows:
        ids = torch.tensor(r["prompt_ids"] + r["ids"])
        logp = model(input_ids=ids[None]).logits[0].log_softmax(-1).detach()
        at = torch.arange(len(r["prompt_ids"]) - 1, len(ids) - 1)
        want = logp[at, ids[at + 1]]
        assert r["logprobs"] == pytest.approx(want.tolist(), abs=1e-4)
        assert r["sum_logprob"] == pytest.approx(float(want.sum()), abs=1e-3)


def test_the_same_run_twice_gives_the_same_weights_and_records(tmp_path):
    for name in ("a", "b"):
        run(recipe_of(), tmp_path / name)
    assert same_weights(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert stored(tmp_path / "a") == stored(tmp_path / "b")
    assert told(tmp_path / "a") == told(tmp_path / "b")
    run(recipe_of(seed=2), tmp_path / "c")
    assert not same_weights(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_an_entropy_bonus_keeps_the_policy_less_certain(tmp_path):
    def last_entropy(folder, bonus):
        run(recipe_of(rl__entropy=bonus, irl__steps=0, rl__lr=3e-3), folder)
        steps = [r for r in told(folder) if r["kind"] == "rl"]
        assert all(np.isfinite(r["loss"]) for r in steps)
        return steps[-1]["entropy"], steps[-1]["used"]

    (without, some), (with_bonus, every) = (
        last_entropy(tmp_path / str(bonus), bonus) for bonus in (0.0, 1.0)
    )
    assert with_bonus > without + 0.1
    assert some < 1 == every  # a group that agrees has an entropy, too


# A draw is 16 completions of 2 s each. A verdict takes 0.25 s in `submit` and 1 s of waiting.
# DAPO finds that all groups agree and draws 1 + 2 times; GSPO draws for two steps at once.
@pytest.mark.parametrize(
    ("algorithm", "generate", "verify"),
    [
        ({"type": "grpo"}, 32, 20),
        ({"type": "dapo", "max_resample_times": 2}, 96, 60),
        ({"type": "gspo", "steps_per_generation": 2}, 32, 20),
    ],
)
def test_generating_and_verifying_are_timed_apart(
    algorithm, generate, verify, tmp_path, monkeypatch
):
    this = open_run(recipe_of(rl__algorithm=algorithm), tmp_path / "run")
    now = [0.0]

    def passes(seconds):
        now[0] += seconds

    class Late(Future):
        waited = False

        def result(self, timeout=None):
            passes(0 if self.waited else 1)
            self.waited = True
            return Verdict("wrong", 0.0)

    def drawn(requests, sampling, real=this.engine.generate):
        for completion in real(requests, sampling):
            passes(2)
            yield completion

    monkeypatch.setattr(rl, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(this.engine, "generate", drawn)
    monkeypatch.setattr(this.verifier, "submit", lambda *_: passes(0.25) or Late())
    for _, metrics, _ in rl.rl_phase(this, Phase(1, 1, 1, 2)):
        assert metrics["seconds/generate"] == pytest.approx(generate)
        assert metrics["seconds/verify"] == pytest.approx(verify)
        assert "seconds/draw" not in metrics


DYING = """
import os
from sps.tasks.countdown import Countdown

def make_judge():
    judged = []
    def judge(problem, text, finished):
        judged.append(text)
        if len(judged) == 21:  # one to start, 16 of the first step, and then the fourth
            os._exit(9)
        return Countdown().judge(problem, text, finished)
    return judge
"""


def test_a_verifier_that_fails_ends_the_run_and_nothing_is_learnt_from_it(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    recipe = recipe_of(checkpoint__every=1, irl__steps=0)
    this = open_run(recipe, tmp_path / "run")
    this.verifier = VerifierPool("dying:make_judge", workers=1)
    ready = this.verifier.submit(this.train[0], "", True)
    ready.result(timeout=60)
    monkeypatch.setattr(this.verifier, "_start", lambda: os.close(-1))  # no worker ever again
    with pytest.raises(RunFailed, match="the verifier pool failed: OSError"):
        train(this)
    assert latest_checkpoint(tmp_path / "run" / "checkpoints").name == "step-000001"
    assert {row["step"] for row in stored(tmp_path / "run")} == {1}
    run(recipe, tmp_path / "run", resume=True)
    run(recipe, tmp_path / "whole")
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_dapo_draws_again_for_groups_that_agree(tmp_path):
    recipe = recipe_of(rl__algorithm={"type": "dapo", "max_resample_times": 3}, irl__steps=0)
    run(recipe, tmp_path / "run")
    steps = [r for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert max(r["groups"] for r in steps) > 4
    assert max(r["groups"] for r in steps) <= 16  # 4 prompts, drawn at most 1 + 3 times
    rows = stored(tmp_path / "run")
    assert len(rows) == 4 * sum(r["groups"] for r in steps)  # the dull ones are stored too
    run(recipe_of(irl__steps=0), tmp_path / "grpo")
    grpo = [r for r in told(tmp_path / "grpo") if r["kind"] == "rl"]
    assert {r["groups"] for r in grpo} == {4}
    # What resampling is for: more of the batch carries a gradient.
    assert np.mean([r["useful"] for r in steps]) > np.mean([r["useful"] for r in grpo])


def test_groups_that_agree_cost_no_backward_pass(tmp_path):
    run(recipe_of(irl__steps=0), tmp_path / "run")
    steps = [r for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert all(r["used"] == r["useful"] for r in steps)
    assert min(r["used"] for r in steps) < 1


def test_the_run_folder_holds_the_resolved_recipe(tmp_path):
    recipe = recipe_of()
    open_run(recipe, tmp_path / "run")
    settled = recipe.model.model_copy(update={"dtype": "float32"})  # what auto is on a CPU
    written = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert written == recipe.model_copy(update={"model": settled})


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path):
    with pytest.raises(UserError, match=r"model.path: there is no folder"):
        open_run(recipe_of(model__path="./nowhere"), tmp_path / "run")
    open_run(recipe_of(), tmp_path / "run")


def test_a_folder_in_use_is_refused(tmp_path):
    open_run(recipe_of(), tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        open_run(recipe_of(), tmp_path / "run")
    with pytest.raises(
        UserError, match=r"rl.steps was 6, is 7. Give the old values.* or longer.*--out"
    ):
        open_run(recipe_of(rl__steps=7), tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        open_run(recipe_of(), tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run folder"):
        open_run(recipe_of(), tmp_path / "file")


def test_the_embedded_policy_is_made_once_and_named_by_what_made_it(tmp_path):
    first = Path(open_run(recipe_of(), tmp_path / "a").policy.source)
    written = (first / "model.safetensors").stat().st_mtime_ns
    second = Path(open_run(recipe_of(rl__steps=9), tmp_path / "b").policy.source)
    assert second == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    other = recipe_of(model__base={**BASE, "steps": 3})
    assert Path(open_run(other, tmp_path / "c").policy.source) != first


def test_activation_checkpointing_gives_the_same_weights(tmp_path):
    run(recipe_of(), tmp_path / "plain")
    run(recipe_of(model__checkpointing=True), tmp_path / "again")
    plain, again = weights(tmp_path / "plain"), weights(tmp_path / "again")
    for name, value in plain.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-5)
