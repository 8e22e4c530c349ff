"""What is counted in a row, and what is said of it."""

from __future__ import annotations

import pytest

from sps.run.health import Health

FINE = {"phase": 1, "reward": 0.5, "loss": 0.1, "grad_norm": 1.0, "logprob": -0.5, "used": 1.0}
NAN = float("nan")


def said(health, *changes):
    """For each step how many warnings it brought."""
    return [len(health.saw("rl", FINE | change)) for change in changes]


@pytest.mark.parametrize("bad", [{"skipped": 1}, {"loss": NAN}, {"logprob": float("-inf")}])
def test_updates_that_are_not_finite_are_counted_in_a_row(bad):
    health = Health(50)
    said(health, {}, bad, bad)
    assert health.skipped == 2
    said(health, {"used": 0.0, "loss": 0.0})  # no update
    assert health.skipped == 2
    health.saw("irl", {"kept": 3})  # none either
    health.saw("irl", {"loss": NAN, "grad_norm": NAN, "skipped": 1})
    assert health.skipped == 3
    said(health, {})
    assert health.skipped == 0


def test_a_reward_that_stays_at_zero_is_said_after_a_phase_and_each_time_it_has_doubled():
    health, zero = Health(3), {"reward": 0.0}
    assert said(health, *[zero] * 13) == [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
    assert said(health, {}, zero, zero, zero) == [0, 0, 0, 1]
    late = Health(999)
    assert said(late, *[zero] * 50) == [0] * 49 + [1]


def test_an_entropy_that_blows_up_is_said_once_a_phase():
    health = Health(50)
    # At 0.4 first: above 3 x 0.4 and 0.4 + 1 it is said.
    steps = [0.4, 1.3, 1.39, 1.41, 1.5]
    assert said(health, *({"entropy": e} for e in steps)) == [0, 0, 0, 1, 0]
    assert said(health, {"entropy": 1.6, "phase": 2}, {"entropy": NAN, "phase": 3}) == [1, 0]
    high = Health(50)  # at 2.0: above 6
    assert said(high, *({"entropy": e} for e in (2.0, 5.9, 6.1))) == [0, 0, 1]


def test_steps_in_which_the_judge_failed_at_all_that_it_was_asked_are_counted_in_a_row():
    failing = [
        {"verdict/crashed": 1.0},
        {"verdict/timeout": 0.5, "verdict/crashed": 0.5},
        {"verdict/truncated": 0.9, "verdict/timeout": 0.1},
    ]
    others = [
        {"verdict/truncated": 1.0},
        {"verdict/crashed": 0.99, "verdict/wrong": 0.01},
        {"verdict/timeout": 0.5, "verdict/unparsed": 0.5},
        {},
    ]
    health = Health(50)
    for other in others:
        said(health, *failing)
        assert health.failing == 3
        health.saw("irl", {"kept": 3})
        assert health.failing == 3
        said(health, other)
        assert health.failing == 0


def at_fault(health, *changes):
    """After each step whether the judge is at fault."""
    found = []
    for change in changes:
        said(health, change)
        found.append(health.judge_is_at_fault)
    return found


def test_a_judge_is_at_fault_that_failed_in_three_draws_and_not_three_steps():
    crashed = {"verdict/crashed": 1.0}
    assert at_fault(Health(50, 16), *[crashed] * 3) == [False, False, True]
    # 4 steps learn from a draw, and have its verdicts: 12 steps are at least 3 draws.
    assert at_fault(Health(50, 16, 4), *[crashed] * 12) == [False] * 11 + [True]
    assert at_fault(Health(50, 16), crashed, crashed, {"verdict/wrong": 1.0}, crashed)[-1] is False


def test_few_failures_beside_answers_that_were_cut_off_are_not_enough():
    """Of 128 answers one: after 48 steps there are 48 of them."""
    one = {"verdict/truncated": 127 / 128, "verdict/timeout": 1 / 128}
    assert at_fault(Health(50, 128), *[one] * 48) == [False] * 47 + [True]
    half = {"verdict/truncated": 0.5, "verdict/timeout": 0.5}  # of 8, so 12 in 3 steps
    assert at_fault(Health(50, 8), *[half] * 3) == [False] * 3
    more = {"verdict/truncated": 0.375, "verdict/timeout": 0.625}
    assert at_fault(Health(50, 8), *[more] * 3) == [False, False, True]
    assert at_fault(Health(50, 128), *[half] * 3) == [False, False, True]
