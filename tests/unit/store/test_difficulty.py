"""How much the rewards of each problem differ, and what it weighs for that."""

from __future__ import annotations

import numpy as np
import pytest

from sps.store.difficulty import COLUMNS, Difficulty
from sps.store.rollouts import RolloutStore
from sps.types import Rollout, Verdict


def group(step, number, problem, rewards, shaped=0.0):
    """Rewards of 1 are right; `shaped` is added to what the loss sees."""

    def rollout(sample, reward):
        verdict = Verdict("correct" if reward == 1 else "wrong", reward)
        arrays = np.array([1], np.int32), np.array([2], np.int32), np.zeros(1, np.float32)
        return Rollout(problem, *arrays, reward + shaped, verdict, step, step, number, sample)

    return [rollout(sample, reward) for sample, reward in enumerate(rewards)]


def test_weights_are_as_by_hand():
    known = Difficulty(["never", "always", "half", "quarter", "unseen", "some", "same"], floor=0.2)
    rewards = [[0] * 4, [1] * 4, [1, 0, 1, 0], [0, 0, 0, 1], [0.5, 0.0, 0.5, 0.0], [0.3] * 4]
    names = ["never", "always", "half", "quarter", "some", "same"]
    for i, (name, own) in enumerate(zip(names, rewards, strict=True)):
        known.add(group(1, i, name, own))
    # 0.2 + 0.8 * 4p(1 - p); of rewards 0.5 and 0 the variance is 1/16; of equal ones it is 0.
    want = [0.2, 0.2, 1.0, 0.2 + 0.8 * 0.75, 1.0, 0.2 + 0.8 * 0.25, 0.2]
    assert known.weight_N == pytest.approx(want)


def test_the_latest_group_counts_as_much_as_all_before_it():
    known = Difficulty(["a"], floor=0.1)
    for step, rewards in enumerate(([1, 1], [0, 0], [0, 0]), 1):
        known.add(group(step, 0, "a", rewards))
    # Rates of 1, 1/2, 1/4: all right once, all wrong twice since.
    assert known.weight_N == pytest.approx([0.1 + 0.9 * 4 * 0.25 * 0.75])
    assert known.metrics(np.zeros(1, int))["sampling/never"] == 1.0


def test_a_right_answer_is_one_however_its_reward_was_shaped():
    known = Difficulty(["a", "b"], floor=0.1)
    # Too long: the right ones would have a reward of 0, the wrong ones of -1.
    known.add([*group(1, 0, "a", [1, 1, 0, 0], shaped=-1.0), *group(1, 1, "b", [0, 0], shaped=-1)])
    assert known.weight_N == pytest.approx([1.0, 0.1])
    assert known.metrics(np.zeros(2, int))["sampling/never"] == 0.5  # and a wrong one 0
    # Three of four right: 4 * 3/16, where a wrong one of -1 would give 4 * 3/4, cut to 1.
    known.add(group(2, 0, "a", [1, 1, 1, 0], shaped=-1.0))
    rate = (1 / 2 + 3 / 4) / 2
    assert known.weight_N[0] == pytest.approx(0.1 + 0.9 * 4 * rate * (1 - rate))


def test_what_is_read_back_is_what_was_there_to_the_bit(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"p{i}" for i in range(5)]
    known, store = Difficulty(names, floor=0.05), RolloutStore(tmp_path)
    for step in range(1, 7):
        chosen = rng.choice(names, 4)  # one of them may have two groups in a step
        groups = [group(step, i, str(p), rng.random(11).round(2)) for i, p in enumerate(chosen)]
        rollouts = [rollout for own in groups for rollout in own]
        store.append(step, rollouts)
        known.add(rollouts)
        if step == 4:
            store.close_phase(1, 4, kept=set())  # in another order on disk
    again = Difficulty(names, floor=0.05)
    table = store.read(1, 6, COLUMNS)
    again.read(table.take(rng.permutation(len(table))))  # the order on disk is no matter
    assert known.weight_N.tobytes() == again.weight_N.tobytes()
    assert len({*known.weight_N}) == 5
    assert known.metrics(np.zeros(5, int)) == again.metrics(np.zeros(5, int))


def test_the_effective_number_of_problems_is_of_the_chances_within_sources():
    known = Difficulty(["a", "b", "c", "d"], floor=0.5)
    known.add([*group(1, 0, "a", [1, 1]), *group(1, 1, "d", [0, 0])])
    # Weights 1/2, 1, 1, 1/2. One source: chances 1/6, 1/3, 1/3, 1/6.
    found = known.metrics(np.zeros(4, int))
    assert found["sampling/problems"] == pytest.approx(1 / (2 / 36 + 2 / 9))
    assert (found["sampling/always"], found["sampling/never"]) == (0.25, 0.25)
    assert found["sampling/unseen"] == 0.5
    # Sources {a} and {b, c, d}: a has 1/4 for itself, the others share 3/4 as 2 : 2 : 1.
    chances = [0.25, 0.3, 0.3, 0.15]
    assert known.metrics(np.array([0, 1, 1, 1]))["sampling/problems"] == pytest.approx(
        1 / sum(c * c for c in chances)
    )
