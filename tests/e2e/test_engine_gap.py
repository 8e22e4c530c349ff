"""An engine that computes other probabilities than the trainer: recorded, corrected, refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_runs import (
    ALGORITHMS,
    recipe_of,
    run,
    told,
)

from sps.build import open_run
from sps.errors import RunFailed
from sps.loop import train
from sps.policy.checkpoint import saved_checkpoints
from sps.rollout.native.engine import NativeEngine

pytestmark = pytest.mark.usefixtures("one_cache")


class Shifted(NativeEngine):
    """An engine that thinks its tokens less likely than the trainer does."""

    by = 0.0

    def generate(self, requests, sampling):
        for c in super().generate(requests, sampling):
            yield replace(c, logprobs=c.logprobs - np.float32(self.by))


def run_shifted(recipe, folder, by):
    """The `rl` records and the warnings of a run with such an engine."""
    this = open_run(recipe, folder)
    this.engine = Shifted(this.policy.model, this.policy.eos_ids, this.policy.pad_id)
    this.engine.by = by
    train(this)
    records = told(folder)
    return [r for r in records if r["kind"] == "rl"], [r for r in records if "text" in r]


def test_the_gap_to_the_engine_is_recorded_at_every_step(tmp_path):
    recipe = recipe_of(rl__algorithm=ALGORITHMS["gspo"], rl__steps=4, irl__steps=0)
    run(recipe, tmp_path / "run")
    rl = [r for r in told(tmp_path / "run") if r["kind"] == "rl" and r["used"]]
    assert len(rl) > 2
    assert all(r["engine_gap"] <= r["engine_gap_rms"] < 1e-5 for r in rl)


def test_a_wide_gap_is_warned_of_once_a_phase(tmp_path):
    """Six steps in two phases, each token off by 0.3: KL(engine || trainer) is e^0.3 - 0.3 - 1."""
    recipe = recipe_of(irl__lr=None, rollout__gap_stop=0.4)
    rl, warned = run_shifted(recipe, tmp_path / "run", by=0.3)
    far = [r for r in rl if r["used"]]
    assert [r["engine_gap"] for r in far] == pytest.approx([0.3] * len(far), abs=1e-5)
    assert [r["engine_kl"] for r in far] == pytest.approx([0.04986] * len(far), abs=1e-5)
    assert [r["text"].count("rollout.correct: 2") for r in warned] == [1, 1]


@pytest.mark.parametrize(("dtype", "by"), [("float32", 0.06), ("bfloat16", 0.4)])
def test_a_gap_that_rounding_cannot_explain_ends_the_run(tmp_path, dtype, by):
    recipe = recipe_of(rl__algorithm=ALGORITHMS["gspo"], irl__steps=0, checkpoint__every=1)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": dtype})})
    with pytest.raises(RunFailed, match=r"(?s)Rounding cannot explain.*does not see the prompt"):
        run_shifted(recipe, tmp_path / "run", by=by)
    assert not saved_checkpoints(tmp_path / "run" / "checkpoints")
    run_shifted(recipe, tmp_path / "near", by=by / 2)  # does end by itself


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_clipped_where_nothing_is_learnt(tmp_path, dtype):
    """GSPO's clip of 3e-4 is far below bf16's rounding: both log-probabilities are the trainer's,
    computed alike, so that at no learning rate every ratio is 1, to the last bit."""
    algorithm = {"type": "gspo", "steps_per_generation": 3}
    recipe = recipe_of(
        rl__algorithm=algorithm, rl__steps=6, rl__lr=1e-30, irl__steps=0, model__dtype=dtype,
        rl__micro_tokens=40, rollout__temperature=0.7,
    )  # fmt: skip
    run(recipe, tmp_path / "run")
    rl = [r for r in told(tmp_path / "run") if r["kind"] == "rl" and r["used"]]
    assert len({r["step"] % 3 for r in rl}) == 3
    assert [(r["clipped"], r["ratio"]) for r in rl] == [(0.0, 1.0)] * len(rl)
    if dtype == "bfloat16":  # the engine's own would not have been
        assert max(r["engine_gap"] for r in rl) > 3e-4


def test_the_correction_is_the_ratio_up_to_its_cap(tmp_path):
    """Tokens four times as likely to the trainer, a cap of 2: every weight, and the gradient, 2."""
    plain, _ = run_shifted(recipe_of(rl__steps=1), tmp_path / "plain", by=0.0)
    for cap, weight, cut in ((2.0, 2.0, 1.0), (8.0, 4.0, 0.0)):
        recipe = recipe_of(rl__steps=1, rollout__correct=cap, rollout__gap_stop=2.0)
        (first,), _ = run_shifted(recipe, tmp_path / f"cap-{cap}", by=np.log(4))
        assert first["engine_weight"] == pytest.approx(weight, rel=1e-5)
        assert first["engine_truncated"] == cut
        assert first["grad_norm"] == pytest.approx(weight * plain[0]["grad_norm"], rel=1e-4)


def test_later_steps_of_a_generation_are_corrected_by_the_policy_that_sampled(tmp_path):
    """The weight is of two programs' views of one policy: that it has moved since is the ratio."""
    grpo = {"type": "grpo", "steps_per_generation": 3}
    recipe = recipe_of(
        rl__algorithm=grpo, rl__steps=3, rl__lr=0.03, irl__steps=0,
        rollout__correct=8.0, rollout__gap_stop=2.0,
    )  # fmt: skip
    rl, _ = run_shifted(recipe, tmp_path / "run", by=np.log(4))
    assert [r["used"] > 0 for r in rl] == [True] * 3
    assert [r["engine_weight"] for r in rl] == pytest.approx([4.0] * 3, rel=1e-4)
    assert [r["engine_gap"] for r in rl] == pytest.approx([np.log(4)] * 3, rel=1e-4)
    assert abs(rl[2]["ratio"] - 1) > 1e-3  # and it has moved
