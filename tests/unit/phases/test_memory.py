"""Which remembered rollouts a step recalls."""

from __future__ import annotations

import numpy as np
import pytest

from sps.config.irl import MemoryConfig
from sps.phases.memory import choose
from sps.store.memory import Memory, Remembered


def remembered(problem, number, step=1, length=4):
    ids = np.full(length, number, np.int32)
    return Remembered(problem, np.array([1], np.int32), ids, step, -0.1 * number)


@pytest.fixture
def memory():
    """Of problem a ten solutions, of b two, of c one."""
    memory = Memory(lambda problem, ids: str(ids[0]), True)
    for problem, count in (("c", 1), ("b", 2), ("a", 10)):
        for number in range(count):
            memory.keep(remembered(problem, number, step=1 + number))
    return memory


def recall(memory, asked, step=20, tokens=1000, seed=0, **settings):
    rng = np.random.default_rng(seed)
    found = choose(memory, MemoryConfig(weight=1, **settings), asked, step, tokens, rng)
    return sorted((r.problem_id, int(r.ids[0])) for r in found)


def test_all_that_is_remembered_of_the_problems_at_hand(memory):
    assert recall(memory, ["a"]) == [("a", i) for i in range(10)]
    assert recall(memory, ["b", "c", "unknown"]) == [("b", 0), ("b", 1), ("c", 0)]
    assert recall(memory, []) == []


def test_any_problem_will_do_where_the_recipe_says_all(memory):
    found = recall(memory, ["unknown"], problems="all", per_problem=1)
    assert [name for name, _ in found] == ["a", "b", "c"]  # one of each


def test_at_most_so_many_of_a_problem_and_others_each_time(memory):
    draws = [tuple(recall(memory, ["a", "b"], per_problem=3, seed=seed)) for seed in range(60)]
    assert all(len([name for name, _ in found if name == "a"]) == 3 for found in draws)
    assert {number for found in draws for name, number in found if name == "a"} == set(range(10))
    assert draws[0] == tuple(recall(memory, ["a", "b"], per_problem=3, seed=0))


def test_what_is_too_old_is_forgotten(memory):
    # The solution with number i is of step i + 1.
    assert recall(memory, ["a"], step=10, age=3) == [("a", 7), ("a", 8), ("a", 9)]


def test_the_least_likely_share_of_a_problem(memory):
    assert recall(memory, ["a", "c"], quantile=0.25) == [("a", 7), ("a", 8), ("a", 9), ("c", 0)]


def test_tokens_are_shared_out_over_the_problems(memory):
    found = recall(memory, ["a", "b", "c"], tokens=4 * 5)
    assert [name for name, _ in found] == ["a", "a", "b", "b", "c"]
    assert recall(memory, ["a", "b", "c"], tokens=3) == []
