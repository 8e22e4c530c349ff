"""What is said of a step, and from which number on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sps.config.load import parse_recipe
from sps.errors import RunFailed
from sps.phases.schedule import Phase
from sps.phases.warnings import (
    Warnings,
    check_gap,
    cut_off_warning,
    gap_warning,
    memory_warning,
    stood_still,
    went_too_far,
)


def test_a_gap_is_warned_of_above_the_limit():
    assert gap_warning({}, 0.0) == ""
    assert gap_warning({"engine_gap": 0.02}, 0.02) == ""
    assert "0.0201 nats a token" in gap_warning({"engine_gap": 0.0201}, 0.02)


@pytest.mark.parametrize(
    ("limit", "dtype", "most"),
    [(None, torch.float32, 0.05), (None, torch.bfloat16, 0.3), (0.7, torch.float32, 0.7)],
)
def test_a_gap_ends_the_run_above_what_rounding_explains(limit, dtype, most):
    check_gap({}, limit, dtype)
    check_gap({"engine_gap": most}, limit, dtype)
    with pytest.raises(RunFailed, match=f"cannot explain more than {most:g}"):
        check_gap({"engine_gap": most + 1e-6}, limit, dtype)


def test_memory_that_ran_out_says_what_is_smaller_now():
    assert memory_warning({}, 512) == memory_warning({"out_of_memory": 0}, 512) == ""
    passes, rows = "passes are now of 512 tokens", "64 sequences are drawn at once now"
    assert memory_warning({"out_of_memory": 1}, 512) == f"memory ran out; {passes}"
    assert memory_warning({"rows_at_once": 64}, 512) == f"memory ran out; {rows}"
    both = {"rows_at_once": 64, "out_of_memory": 2}
    assert memory_warning(both, 512) == f"memory ran out; {rows}, {passes}"


def test_texts_without_an_end_are_warned_of_above_a_twentieth():
    assert cut_off_warning({}, 9) == cut_off_warning({"kept_cut_off": 0.05}, 9) == ""
    assert cut_off_warning({"kept_cut_off": 0.06}, 9).startswith("6% of the rollouts")


def test_no_warning_when_the_policy_moved():
    moved = {"weights_changed": 1.0, "relative_update": 1e-3, "kl": 0.1}
    assert stood_still("rl", moved, 1e-4, "float32", still=1e-6) is None


def test_an_irl_phase_that_goes_as_far_as_rl_is_warned_of():
    rl = {"relative_update": 2.7e-4}
    warning = went_too_far({"relative_update": 2.6e-4}, rl, 2e-5)
    assert "0.96 times as far as the rl phase" in warning
    assert "irl.lr, now 2.0e-05" in warning
    assert went_too_far({"relative_update": 1.8e-4}, rl, 2e-5) is None  # 0.67
    # Resumed in mid-phase: only a part of RL's way is known; or RL had nothing to learn from.
    assert went_too_far({"relative_update": 1.0}, rl | {"since_step": 20}, 2e-5) is None
    assert went_too_far({"relative_update": 1.0}, {"relative_update": 0.0}, 2e-5) is None


def test_a_phase_with_nothing_to_learn_from_does_not_blame_the_learning_rate():
    still = {"weights_changed": 0.0, "relative_update": 0.0, "kl": 0.0}
    for phase, why in [
        ("rl", "both right and wrong answers, or parts of a point"),
        ("irl", "kept no rollout"),
    ]:
        warning = stood_still(phase, still, 1e-4, "float32", still=1e-6, learnt=False)
        assert f"the {phase} phase had nothing to learn from" in warning
        assert why in warning
        assert "lr" not in warning


def warnings_of(kind, rl_moved=None, worst=0):
    """Of a phase of a run with default settings, whose IRL rate is 3e-5."""
    recipe = parse_recipe({"rollout": {"gap_warn": 0.02, "gap_stop": 9.0}}, "test")
    policy = SimpleNamespace(
        weight_dtype="float32", model=SimpleNamespace(compute_dtype=torch.float32)
    )
    health = SimpleNamespace(saw=lambda kind, record: [f"health of {kind}"], worst=worst)
    run = SimpleNamespace(recipe=recipe, policy=policy, health=health, budget=SimpleNamespace())
    run.budget.tokens, run.judge_failed = 512, ""
    return Warnings(run, Phase(1, 1, 1, 9, irl=True, irl_lr=3e-5), kind, rl_moved or {})


def test_a_step_is_warned_of_in_order_and_of_the_gap_once_a_phase():
    warnings, step = warnings_of("rl"), {"engine_gap": 0.5, "out_of_memory": 1, "used": 1.0}
    health, gap, memory = warnings("rl", step)
    assert (health, memory) == ("health of rl", "memory ran out; passes are now of 512 tokens")
    assert "0.5 nats a token" in gap
    assert list(warnings("rl", step)) == [health, memory]
    with pytest.raises(RunFailed, match="cannot explain more than 9"):
        list(warnings("rl", {"engine_gap": 9.5}))


def test_a_judge_that_fails_is_warned_of_once_a_phase_in_its_own_words():
    warnings = warnings_of("rl")
    warnings.run.judge_failed = "crashed: raised KeyError: 'a' (mine.py line 3, in judge)"
    few = {"verdict/crashed": 0.03, "verdict/timeout": 0.02, "used": 1.0}
    assert list(warnings("rl", few)) == ["health of rl"]
    _, text = warnings("rl", {"verdict/crashed": 0.9, "verdict/timeout": 0.09, "used": 1.0})
    assert "failed at 99% of the answers" in text
    assert "KeyError: 'a' (mine.py line 3, in judge)" in text
    assert list(warnings("rl", {"verdict/crashed": 0.9, "used": 1.0})) == ["health of rl"]


def test_a_phase_whose_judge_fails_at_most_answers_blames_that_and_not_the_problems():
    warnings = warnings_of("rl")
    for share in (0.4, 0.8):
        list(warnings("rl", {"verdict/crashed": share / 2, "verdict/timeout": share / 2}))
    _, text = warnings("meter", STILL)
    assert "nothing to learn from: the judge failed at most answers" in text
    assert "solved occasionally" not in text


def test_a_phase_whose_answers_are_mostly_cut_off_blames_that():
    for shares, blamed in [((1.0, 0.4), True), ((0.4, 0.5), False)]:
        warnings = warnings_of("rl")
        for share in shares:
            list(warnings("rl", {"verdict/truncated": share, "used": 0.0}))
        _, text = warnings("meter", STILL)
        assert ("70% of the answers were cut off at rollout.max_new_tokens" in text) == blamed
        assert ("parts of a point" in text) != blamed


STILL = {"of": "irl", "weights_changed": 0.0, "relative_update": 0.0}


@pytest.mark.parametrize(
    ("kind", "records", "said"),
    [
        ("rl", [{"used": 0.0}, {"used": 0.5}, {"used": 0.0}], "at lr 0.0001 it does nothing"),
        ("rl", [{"used": 0.0}], "no rollout had an advantage"),
        ("irl", [{"kept": 8, "lr": 3e-5}, {"loss": 1.0}], "at lr 3e-05 it does nothing"),
        ("irl", [{"kept": 0, "lr": 3e-5}], "the selector kept no rollout"),
    ],
)
def test_a_phase_that_stood_still_is_told_from_one_with_nothing_to_learn(kind, records, said):
    warnings = warnings_of(kind)
    for record in records:
        assert list(warnings(kind, record)) == [f"health of {kind}"]
    _, text = warnings("meter", STILL)
    assert said in text


def test_a_part_of_a_phase_or_one_with_skipped_updates_is_not_called_still():
    assert list(warnings_of("rl")("meter", STILL | {"since_step": 4})) == ["health of meter"]
    assert list(warnings_of("rl", worst=1)("meter", STILL)) == ["health of meter"]


def test_an_irl_phase_is_compared_with_the_rl_phase_before_it():
    moved = STILL | {"relative_update": 9e-4}
    _, text = warnings_of("irl", {"relative_update": 1e-3})("meter", moved)
    assert "0.90 times as far" in text
    assert "irl.lr, now 3.0e-05" in text
    assert list(warnings_of("rl")("meter", moved)) == ["health of meter"]
