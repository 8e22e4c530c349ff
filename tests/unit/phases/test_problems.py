"""Which problems a step draws."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sps.data.sampler import Sampler
from sps.phases.problems import next_problems
from sps.store.difficulty import Difficulty
from sps.types import Problem

NAMES = [f"p{i}" for i in range(6)]


def made(seed, difficulty):
    return SimpleNamespace(
        train=[Problem(name, "?", "") for name in NAMES],
        sampler=Sampler(6, seed),
        difficulty=difficulty,
    )


def ids(problems):
    return sorted(problem.id for problem in problems)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_step_draws_again_is_new_as_long_as_there_is_any(seed):
    """DAPO's further attempts; without weights only a pass over the data tells them apart."""
    run = made(seed, Difficulty(NAMES, 0.1))
    next_problems(run, 3, [])  # in mid-pass
    first = ids(next_problems(run, 4, []))
    drawn = [[SimpleNamespace(problem_id=name)] for name in first]
    second = ids(next_problems(run, 2, drawn))
    assert ids(run.train) == sorted([*first, *second])
    drawn += [[SimpleNamespace(problem_id=name)] for name in second]
    assert len(next_problems(run, 2, drawn)) == 2  # all were drawn: any of them


def test_without_weights_the_order_is_that_of_the_pass():
    run, order = made(3, None), Sampler(6, 3).take(8)
    assert [p.id for p in next_problems(run, 8, [])] == [NAMES[i] for i in order]
