"""Which phase comes when, and which rollouts an IRL step sees."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.config.load import parse_recipe
from sps.evaluate.scores import best_step, count_scores
from sps.phases.irl import batches, irl_every, phase_start
from sps.phases.schedule import Phase, schedule


def test_schedule_by_hand():
    assert list(schedule(total=7, every=3, irl_steps=4)) == [
        Phase(1, 1, 3, True),
        Phase(2, 4, 6, True),
        Phase(3, 7, 7, True),
    ]
    assert list(schedule(total=4, every=9, irl_steps=0)) == [Phase(1, 1, 4, False)]
    assert list(schedule(total=4, every=9, irl_steps=1)) == [Phase(1, 1, 4, True)]


def test_schedule_finishes_the_phase_it_was_stopped_in():
    assert list(schedule(7, 3, 4, done=4)) == [Phase(2, 5, 6, True), Phase(3, 7, 7, True)]
    assert list(schedule(7, 3, 4, done=3)) == [Phase(2, 4, 6, True), Phase(3, 7, 7, True)]
    assert list(schedule(7, 3, 4, done=7)) == []


@pytest.mark.parametrize(
    ("every", "irl_steps", "rounds", "steps"),
    [
        (0, 4, 1, 3),  # a pass over 10 problems, 4 at a time, takes 3 steps
        (5, 4, 1, 5),
        (5, 4, 2, 5),  # where IRL follows, what is drawn for several steps is cut short
        (5, 0, 2, 6),  # plain RL rounds up to whole generations
        (0, 0, 2, 4),
        (6, 0, 2, 6),
    ],
)
def test_a_phase_is_as_long_as_set_or_one_pass(every, irl_steps, rounds, steps):
    algorithm = {"type": "gspo", "steps_per_generation": rounds}
    tree = {"rollout": {"prompts": 4}, "rl": {"algorithm": algorithm}}
    recipe = parse_recipe(tree | {"irl": {"every": every, "steps": irl_steps}}, "test")
    run = SimpleNamespace(recipe=recipe, train=[None] * 10)
    assert irl_every(run) == steps
    assert phase_start(run, Phase(3, 1, 1, True)) == 1 + 2 * steps


def scores(*right):
    """Of questions with so many right answers of 4."""
    rows = [
        {"problem_id": str(q), "verdict": kind, "detail": "", "length": 1, "sum_logprob": -1.0}
        for q, count in enumerate(right)
        for kind in ["correct"] * count + ["wrong"] * (4 - count)
    ]
    return count_scores([str(q) for q in range(len(right))], 4, rows, None)


def test_the_best_checkpoint_is_the_first_with_the_most_right_answers():
    # 3, 4, 4 and 2 of 8 right. Pass@4 would be highest at step 6, where both have a right one.
    found = {2: scores(3, 0), 4: scores(4, 0), 5: scores(0, 4), 6: scores(1, 1), 0: scores(4, 4)}
    assert best_step(found, {2, 4, 5, 6}, 6) == 4
    assert best_step(found, {2, 5, 6}, 6) == 5
    assert best_step(found, {3}, 6) == 6
    assert best_step({}, {2, 4}, 6) == 6


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 40))
def test_schedule_takes_every_step_left_once(total, every, done):
    phases = list(schedule(total, every, 1, min(done, total)))
    steps = [s for p in phases for s in range(p.first, p.last + 1)]
    assert steps == list(range(min(done, total) + 1, total + 1))
    assert all(p.last == min(p.number * every, total) for p in phases)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 8))
def test_irl_batches_reuse_a_rollout_only_in_a_new_pass(size, batch, steps):
    drawn = list(batches(size, batch, steps, np.random.default_rng(0)))
    assert [len(b) for b in drawn] == [min(batch, size)] * steps
    a_pass = size // min(batch, size)  # whole batches of one shuffle
    for at in range(0, steps, a_pass):
        seen = np.concatenate(drawn[at : at + a_pass])
        assert len(set(seen.tolist())) == len(seen)
        assert set(seen.tolist()) <= set(range(size))
