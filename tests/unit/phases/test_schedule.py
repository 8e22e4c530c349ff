"""Which phase comes when, and which rollouts an IRL step sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.algo.reach import reach
from sps.config.load import parse_recipe
from sps.evaluation.scores import best_step, count_scores
from sps.phases.irl import batches
from sps.phases.schedule import Phase, Schedule


def schedule(problems=0, rounds=1, **tree):
    """Of 7 steps in phases of 3 unless told otherwise; 4 problems a step."""
    irl = {"every": 3, "steps": 4, "lr": 0.5} | tree.pop("irl", {})
    algorithm = {"type": "gspo", "steps_per_generation": rounds}
    rl = {"steps": 7, "lr": 1e-3, "algorithm": algorithm} | tree.pop("rl", {})
    tree |= {"rl": rl, "irl": irl, "rollout": {"prompts": 4}}
    return Schedule(parse_recipe(tree, "test"), problems)


def test_phases_by_hand():
    assert list(schedule().phases()) == [
        Phase(1, 1, 1, 3, True, 0.5),
        Phase(2, 4, 4, 6, True, 0.5),
        Phase(3, 7, 7, 7, True, 0.5),
    ]
    plain = schedule(rl={"steps": 4}, irl={"every": 9, "steps": 0})
    assert list(plain.phases()) == [Phase(1, 1, 1, 4, irl=False)]
    one = schedule(rl={"steps": 4}, irl={"every": 9, "lr": 0.0})
    assert list(one.phases()) == [Phase(1, 1, 1, 4, irl=True, irl_lr=0.0)]


def test_the_phase_it_was_stopped_in_is_finished():
    third = Phase(3, 7, 7, 7, True, 0.5)
    assert list(schedule().phases(done=4)) == [Phase(2, 4, 5, 6, True, 0.5), third]
    assert list(schedule().phases(done=3)) == [Phase(2, 4, 4, 6, True, 0.5), third]
    assert list(schedule().phases(done=7)) == []


def test_a_rate_that_is_left_out_is_by_the_whole_phase_also_when_resumed_in_it():
    # 0.35 = 2 * lr / 1e-3 * (4 / steps) ** 0.65, for phases of 3, 3 and 1 steps.
    rates = [0.35e-3 / 2 / (4 / steps) ** 0.65 for steps in (3, 3, 1)]
    for done in (0, 2, 3, 5):
        left = [phase.irl_lr for phase in schedule(irl={"lr": None}).phases(done)]
        assert left == pytest.approx(rates[done // 3 :])


def test_the_reach_of_a_rate_by_hand():
    assert reach(3e-4, 4, 1e-3, 8) == pytest.approx(2 * 0.3 * 0.5**0.65)


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
    found = schedule(10, rounds, irl={"every": every, "steps": irl_steps})
    assert found.phase_steps == steps


def test_evaluations_and_checkpoints_by_hand():
    asked = {"evaluation": {"every": 2}, "checkpoint": {"every": 4}}
    assert schedule(**asked).evaluated() == [0, 2, 4, 6, 7]
    assert schedule(**asked).saved() == [4, 7]
    # Generations of 2 steps end at 2, 3, 5, 6 and 7 where phases of 3 cut them short.
    assert schedule(rounds=2, **asked).evaluated() == [0, 2, 5, 6, 7]
    assert schedule(rounds=2, **asked).saved() == [5, 7]
    # In a phase of 5 they end at 2, 4 and 5.
    every_step = {"evaluation": {"every": 1}, "checkpoint": {"every": 1}, "irl": {"every": 5}}
    assert schedule(rounds=2, **every_step).evaluated() == [0, 2, 4, 5, 7]
    assert schedule(rounds=1, **every_step).saved() == [1, 2, 3, 4, 5, 6, 7]
    off = schedule(evaluation={"every": 0}, checkpoint={"every": 0})
    assert (off.evaluated(), off.saved()) == ([], [7])


def test_rollouts_are_drawn_at_the_first_step_of_each_generation():
    found = schedule(rounds=2, irl={"every": 5})
    assert [list(found.draws(done)) for done in (0, 2, 4, 5, 7)] == [[], [1], [1, 3], [], [6]]
    # Memory needs those of all phases, also where one has just ended.
    assert [found.draws(done, all_phases=True) for done in (0, 2, 5, 7)] == [
        [],
        [1],
        [1, 3, 5],
        [1, 3, 5, 6],
    ]


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
def test_every_step_left_is_taken_once(total, every, done):
    phases = list(schedule(rl={"steps": total}, irl={"every": every}).phases(min(done, total)))
    steps = [s for p in phases for s in range(p.first, p.last + 1)]
    assert steps == list(range(min(done, total) + 1, total + 1))
    assert all(p.last == min(p.number * every, total) for p in phases)
    assert all(p.start == (p.number - 1) * every + 1 for p in phases)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 8))
def test_irl_batches_reuse_a_rollout_only_in_a_new_pass(size, batch, steps):
    drawn = list(batches(size, batch, steps, np.random.default_rng(0)))
    assert [len(b) for b in drawn] == [min(batch, size)] * steps
    a_pass = size // min(batch, size)  # whole batches of one shuffle
    for at in range(0, steps, a_pass):
        seen = np.concatenate(drawn[at : at + a_pass])
        assert len(set(seen.tolist())) == len(seen)
        assert set(seen.tolist()) <= set(range(size))
