"""What a run remembers, whether it was there or reads it back."""

from __future__ import annotations

import numpy as np
import pytest

from sps.store.memory import Memory
from sps.store.rollouts import RolloutStore
from sps.types import Rollout, Verdict

COLUMNS = ["step", "group", "sample", "problem_id", "prompt_ids", "ids", "mean_logprob"]


def rollout(step, group, sample, problem, ids, right=True, reward=None, kind="wrong"):
    kind = "correct" if right else kind
    verdict = Verdict(kind, float(right))
    arrays = np.array([1, 2], np.int32), np.array(ids, np.int32)
    logprobs = np.full(len(ids), -0.1 * step - 0.01 * sample, np.float32)
    paid = float(right) if reward is None else reward
    return Rollout(problem, *arrays, logprobs, paid, verdict, step, step - 1, group, sample)


def first_token(problem, ids):
    return str(ids[0])


STEPS = {
    1: [
        rollout(1, 0, 0, "a", [5, 1]),
        rollout(1, 0, 1, "a", [6, 1]),
        rollout(1, 1, 0, "b", [5, 2], right=False),
        rollout(1, 1, 1, "b", [7, 2], reward=0.3),  # right, and punished for its length
        rollout(1, 2, 2, "a", [6, 3]),  # drawn last, though it is the least likely
        rollout(1, 3, 2, "d", [4, 1]),
        rollout(1, 4, 0, "d", [4, 2]),  # drawn last, though of an earlier sample
    ],
    2: [
        rollout(2, 0, 0, "a", [5, 3]),  # the solution of step 1 in other words
        rollout(2, 0, 1, "c", [9, 3], right=False, reward=0.5),
        rollout(2, 1, 0, "c", [8, 3], right=False, kind="truncated"),
    ],
}


@pytest.mark.parametrize("distinct", [True, False])
def test_a_memory_read_back_is_the_one_that_was_there(distinct, tmp_path):
    memory, store = Memory(first_token, distinct), RolloutStore(tmp_path)
    for step, rollouts in STEPS.items():
        store.append(step, rollouts)
        memory.add(rollouts)
    store.close_phase(1, 2, kept=set())  # in another order on disk
    again = Memory(first_token, distinct)
    again.read(store.right(2, COLUMNS))

    def told(memory):
        return [
            (r.problem_id, r.step, round(r.mean_logprob, 4), *r.prompt_ids, *r.ids) for r in memory
        ]

    assert told(again) == told(memory)
    assert len(memory) == len(told(memory)) == (4 if distinct else 3)
    assert [(r.step, *r.ids) for r in memory.of_problem("a")] == (
        [(1, 6, 3), (2, 5, 3)] if distinct else [(2, 5, 3)]
    )
    assert [list(r.ids) for r in memory.of_problem("b")] == [[7, 2]]
    assert [list(r.ids) for r in memory.of_problem("d")] == [[4, 2]]
    assert memory.of_problem("c") == memory.of_problem("never seen") == []


def test_a_run_resumed_before_a_step_does_not_remember_it(tmp_path):
    store = RolloutStore(tmp_path)
    for step, rollouts in STEPS.items():
        store.append(step, rollouts)
    memory = Memory(first_token, True)
    memory.read(store.right(1, COLUMNS))
    assert {r.step for r in memory} == {1}
