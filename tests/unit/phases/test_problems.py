"""Which problems a step draws."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from made_run import open_made_run, save_model

from sps.data.sampler import Sampler
from sps.phases.problems import make_difficulty, next_problems
from sps.phases.rl import draw_groups, rl_phase
from sps.phases.schedule import Phase
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


def test_dapo_draws_again_for_other_problems_and_learns_how_hard_all_of_them_are(tmp_path):
    save_model(tmp_path / "model")
    changes = {
        "rl__sampling": {"by": "difficulty", "floor": 0.5},
        "rl__algorithm": {"type": "dapo", "max_resample_times": 3},
    }
    run, _ = open_made_run(tmp_path / "model", tmp_path / "run", **changes)
    dull = 0
    for step in range(1, 13):
        _, metrics = draw_groups(run, step, 4)
        table = run.store.read(step, step).to_pylist()
        drawn = {row["group"]: row["problem_id"] for row in table}
        assert len({*drawn.values()}) == len(drawn)
        right = {g: {r["verdict"] == "correct" for r in table if r["group"] == g} for g in drawn}
        alike = sum(len(found) == 1 for found in right.values())
        assert metrics["sampling/dull"] == pytest.approx(alike / len(drawn))
        dull += alike
    assert dull > 12
    run.start = 12
    again = make_difficulty(run)  # from all that is stored
    assert again.weight_N.tolist() == run.difficulty.weight_N.tolist()
    run.start = 11
    assert make_difficulty(run).weight_N.tolist() != again.weight_N.tolist()
    run.close()


def test_groups_that_fill_a_batch_up_teach_nothing_and_are_shared_out_over_the_steps(tmp_path):
    """With a punishment of length, right answers of other lengths would differ in reward."""
    save_model(tmp_path / "model")
    how = {"type": "dapo", "max_resample_times": 1, "soft_cache_length": 7}
    changes = {"rl__algorithm": {**how, "steps_per_generation": 3}, "rollout__n": 2}
    run, _ = open_made_run(tmp_path / "model", tmp_path / "run", **changes)
    steps = [metrics for _, metrics, _ in rl_phase(run, Phase(1, 1, 1, 3))]
    table = run.store.read(1, 1).to_pylist()
    run.close()
    groups: dict[int, list] = {}
    for row in table:
        groups.setdefault(row["group"], []).append(row)
    alike = [g for g in groups.values() if len({row["verdict"] == "correct" for row in g}) == 1]
    apart = [g for g in groups.values() if g not in alike]
    assert any(len({row["length"] for row in g}) > 1 for g in alike)
    assert {row["reward"] for g in alike for row in g} <= {0.0, 1.0}
    assert any(row["reward"] < 0 for g in apart for row in g)  # punished, where there is an order
    used = [metrics["used"] * 4 for metrics in steps]  # groups that teach, of each step's four
    assert sum(used) == sum(len({row["reward"] for row in g}) > 1 for g in apart) > 3
    assert max(used) - min(used) <= 1
    assert sum(metrics["tokens"] for metrics in steps) == sum(row["length"] for row in table)
    assert sum(metrics["groups"] for metrics in steps) == len(groups)
