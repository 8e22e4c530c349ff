"""What a run warns of."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch
from small_runs import (
    recipe_of,
    run,
    same_weights,
    told,
    weights,
)

from sps import loop
from sps.build import open_run
from sps.errors import RunFailed
from sps.loop import train
from sps.phases import irl
from sps.policy.meter import Meter
from sps.rollout.native.engine import NativeEngine
from sps.types import Verdict
from sps.verify import InlineVerifier

pytestmark = pytest.mark.usefixtures("one_cache")


def test_learning_from_rollouts_without_an_end_is_warned_of(tmp_path):
    def warnings(folder, limit):
        run(recipe_of(rollout__max_new_tokens=limit, irl__selector={"type": "negative"}), folder)
        texts = [r["text"] for r in told(folder) if r["kind"] == "warning"]
        return [text for text in texts if "IRL learns from were cut off" in text]

    short = warnings(tmp_path / "short", 2)
    assert len(short) == 2  # phases
    assert "100% of the rollouts" in short[0]
    assert "at 2 tokens" in short[0]
    assert not warnings(tmp_path / "long", recipe_of().rollout.max_new_tokens)


def test_the_papers_irl_lr_is_warned_about_and_the_tuned_one_is_not(tmp_path):
    run(recipe_of(irl__lr=5e-10), tmp_path / "paper")
    warnings = [r for r in told(tmp_path / "paper") if r["kind"] == "warning"]
    assert [w["step"] for w in warnings] == [3, 6]
    assert all("lr 5e-10" in w["text"] and "float32" in w["text"] for w in warnings)
    assert all("the irl phase" in w["text"] for w in warnings)
    run(recipe_of(irl__lr=None), tmp_path / "tuned")
    assert not [r for r in told(tmp_path / "tuned") if r["kind"] == "warning"]


def test_memory_that_runs_out_is_on_record_and_changes_nothing(tmp_path, monkeypatch):
    """Once while drawing, once in an IRL step; the run is the one that had memory enough."""
    run(recipe_of(irl__lr=None), tmp_path / "plain")
    whole, kl, failures = NativeEngine.draw, irl.forward_kl, ["draw", "irl"]

    def draw(engine, requests, sampling):
        for number, completion in enumerate(whole(engine, requests, sampling)):
            if "draw" in failures and len(requests) == 4 and number == 5:  # not the meter's two
                failures.remove("draw")
                raise torch.OutOfMemoryError
            yield completion

    def forward_kl(*given):
        if "irl" in failures:
            failures.remove("irl")
            raise torch.OutOfMemoryError
        return kl(*given)

    monkeypatch.setattr(NativeEngine, "draw", draw)
    monkeypatch.setattr(irl, "forward_kl", forward_kl)
    metered = []

    def meter(scorer, probe, *more):
        metered.append(probe.budget)
        return Meter(scorer, probe, *more)

    monkeypatch.setattr(loop, "Meter", meter)
    run(recipe_of(irl__lr=None), tmp_path / "tight")
    assert not failures
    assert metered == [16384, 16384, 8192, 8192]  # two phases of each kind
    records = told(tmp_path / "tight")
    texts = [(r["step"], r["text"]) for r in records if r["kind"] == "warning"]
    assert [step for step, _ in texts] == [1, 3]
    assert "sequences are drawn at once now" in texts[0][1]
    assert "passes are now of 8192 tokens" in texts[1][1]
    plain = [r for r in told(tmp_path / "plain") if r["kind"] == "rl"]
    tight = [r for r in records if r["kind"] == "rl"]
    assert [r["reward"] for r in tight] == [r["reward"] for r in plain]
    assert [r["loss"] for r in tight] == pytest.approx([r["loss"] for r in plain], abs=1e-6)


def test_a_phase_in_which_no_group_disagrees_says_so(tmp_path):
    # One token is never an answer: every group is all wrong. No right one is there to be kept.
    recipe = recipe_of(rollout__max_new_tokens=1, irl__selector={"type": "positive"})
    run(recipe, tmp_path / "run")
    said = [r["text"] for r in told(tmp_path / "run") if r["kind"] == "warning"]
    texts = [text for text in said if "no answer was right" not in text]
    assert len(said) == len(texts) + 2  # after 3 steps, a phase, and after twice as many
    assert ["100% of the answers were cut off" in text for text in texts] == [True, False] * 2
    assert ["the irl phase had nothing to learn from" in text for text in texts] == [
        False,
        True,
    ] * 2
    assert not any("Raise" in text for text in texts)


class Broken(InlineVerifier):
    """A judge that crashes at every answer."""

    def submit(self, problem, text, finished):
        done = Future()
        done.set_result(Verdict("crashed", 0.0, "raised KeyError: 'five'"))
        return done


def test_a_judge_that_fails_at_every_answer_ends_the_run_after_three_steps(tmp_path):
    """6 steps are asked for; the run goes on where the judge works again."""
    recipe = recipe_of(irl__steps=0)
    with _broken(recipe, tmp_path / "run") as this:
        with pytest.raises(RunFailed, match="at every answer of 3 steps in a row") as said:
            train(this)
        assert "KeyError: 'five'" in str(said.value)
        assert f"the last good checkpoint is {tmp_path}/run/checkpoints/stop-000003" in str(
            said.value
        )
        assert "raise task.time_limit" in str(said.value)
    assert [r["step"] for r in told(tmp_path / "run") if r["kind"] == "rl"] == [1, 2, 3]
    # Resumed, a step is tried again before the run ends.
    again = pytest.raises(RunFailed, match="at every answer of 4 steps in a row")
    with _broken(recipe, tmp_path / "run", resume=True) as this, again:
        train(this)
    steps = _steps(recipe, tmp_path / "run", resume=True)
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    assert [r["reward"] for r in steps[:4]] == [0.0] * 4
    assert steps[4]["reward"] > 0


def test_steps_that_learn_from_one_draw_have_one_draws_verdicts(tmp_path):
    """2 steps learn from a draw: 6 steps are at least 3 draws."""
    gspo = {"type": "gspo", "steps_per_generation": 2}
    recipe = recipe_of(irl__steps=0, rl__steps=8, rl__algorithm=gspo)
    failed = pytest.raises(RunFailed, match="at every answer of 6 steps in a row")
    with _broken(recipe, tmp_path / "run") as this, failed:
        train(this)


def test_a_judge_that_only_fails_in_an_evaluation_ends_the_run_with_a_checkpoint(tmp_path):
    """4 problems of 16 samples are validated after every third step; it fails after the third."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    recipe = recipe_of(evaluation__every=3, evaluation__validation_n=16, checkpoint__every=100)
    with _broken(recipe, folder) as this:
        this.verifier = BrokenLater(this.task.judge, this)
        with pytest.raises(
            RunFailed, match="after step 3 in an evaluation the judge failed"
        ) as said:
            train(this)
        text = str(said.value)
        assert "at all of the first 64 answers" in text
        assert "KeyError: 'five'" in text
        assert f"the last good checkpoint is {folder}/checkpoints/stop-000003. Mend" in text
        assert "--resume tries the same judge again" in text
    assert [r["text"] for r in told(folder) if r["kind"] == "warning"][-1] == text
    drawn, this = [], open_run(recipe, folder, resume=True)
    generate = this.engine.generate

    def watched(requests, sampling):
        drawn.append(sampling.n)
        return generate(requests, sampling)

    this.engine.generate = watched
    train(this)
    assert drawn.count(16) == 1  # after step 6: what was drawn before is judged
    run(recipe, whole)
    assert [r["pass_at_k"] for r in told(folder) if r["kind"] == "eval"] == [
        r["pass_at_k"] for r in told(whole) if r["kind"] == "eval"
    ]
    assert same_weights(weights(whole), weights(folder))


def test_a_judge_that_fails_at_the_base_ends_the_run_before_it_begins(tmp_path):
    recipe = recipe_of(evaluation__every=3, evaluation__validation_n=16)
    with (
        _broken(recipe, tmp_path / "run") as this,
        pytest.raises(
            RunFailed, match=r"step 0 in an evaluation .*; no checkpoint was saved before"
        ),
    ):
        train(this)


class BrokenLater(Broken):
    """One that crashes from the third step's evaluation on."""

    def __init__(self, judge, run):
        super().__init__(judge)
        self.run = run

    def submit(self, *given):
        if self.run.done < 3:
            return InlineVerifier.submit(self, *given)
        return super().submit(*given)


def _steps(recipe, folder, resume=False):
    run(recipe, folder, resume)
    return [r for r in told(folder) if r["kind"] == "rl"]


@contextmanager
def _broken(recipe, folder, resume=False):
    this = open_run(recipe, folder, resume)
    this.verifier = Broken(this.task.judge)
    try:
        yield this
    finally:
        this.close()
