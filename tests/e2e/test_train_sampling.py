"""Whole runs with difficulty-aware sampling: who is drawn, and what the record says of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from small_runs import Killed, kill_at, recipe_of, run, stored, told

from sps.build import make_task, open_run
from sps.errors import UserError
from sps.loop import train
from sps.types import Verdict
from sps.verify import InlineVerifier

pytestmark = pytest.mark.usefixtures("one_cache")
FLOOR = 0.1


NAMES = [problem.id for problem in make_task(recipe_of()).problems("train")]


def kind_of(problem_id):
    """A third of the problems is always solved, a third never, a third every other time."""
    return ("always", "never", "sometimes")[NAMES.index(problem_id) % 3]


def make_judge():
    asked = Counter()

    def judge(problem, text, finished):
        asked[problem.id] += 1
        every_other = asked[problem.id] % 2 == 0
        right = {"always": True, "never": False}.get(kind_of(problem.id), every_other)
        return Verdict("correct", 1.0) if right else Verdict("wrong", 0.0)

    return judge


@pytest.fixture(scope="module")
def folders(one_cache, tmp_path_factory):
    """Forty steps of each kind of sampling with this judge."""
    folder = tmp_path_factory.mktemp("sampling")
    for by in ("uniform", "difficulty"):
        settings = {"rl__steps": 40, "irl__steps": 0, "checkpoint__every": 0, "rl__lr": 1e-6}
        this = open_run(recipe_of(rl__sampling={"by": by}, **settings), folder / by)
        this.verifier = InlineVerifier(make_judge())
        train(this)
    return folder


def drawn(folder):
    """Problem of each group, by step."""
    found: dict[int, dict[int, str]] = {}
    for row in stored(folder):
        found.setdefault(row["step"], {})[row["group"]] = row["problem_id"]
    return {step: list(groups.values()) for step, groups in found.items()}


def test_problems_that_are_always_or_never_solved_are_drawn_less(folders):
    count = {
        by: Counter(kind_of(p) for problems in drawn(folders / by).values() for p in problems)
        for by in ("uniform", "difficulty")
    }
    # 160 groups, six passes and 16 more, at most 8 of them of one third. With weights, the first
    # pass has 8 of each as well; of the other 136, 0.1 to 1 gives 11, 11 and 113.
    assert all(48 <= n <= 56 for n in count["uniform"].values())
    assert count["difficulty"]["sometimes"] == pytest.approx(121, abs=12)
    assert count["difficulty"]["always"] == pytest.approx(19, abs=8)
    assert count["difficulty"]["never"] == pytest.approx(19, abs=8)


def test_every_draw_is_the_one_worked_out_by_hand_from_the_stored_rewards(folders):
    """In plain Python, from the files of the run alone."""
    rate: dict[str, float] = {}
    rows, place = stored(folders / "difficulty"), 0
    for step, problems in sorted(drawn(folders / "difficulty").items()):
        left = {p: FLOOR + (1 - FLOOR) * 4 * r * (1 - r) for p, r in rate.items()}
        left = {p: left.get(p, 1.0) for p in NAMES}
        for problem in problems:
            order = np.random.default_rng([1, place // 24]).permutation(24)
            found = NAMES[order[place % 24]]
            keep, which = np.random.default_rng([1, 32452843, place]).random(2)
            if keep >= left[found]:
                which *= sum(left.values())
                for found in NAMES:
                    which -= left[found]
                    if which < 0:
                        break
            assert problem == found, (step, place)
            left[found], place = 0.0, place + 1
        for problem in problems:
            own = [r for r in rows if r["step"] == step and r["problem_id"] == problem]
            right = sum(r["verdict"] == "correct" for r in own) / 4
            rate[problem] = (rate[problem] + right) / 2 if problem in rate else right
    assert place == 160


def test_the_record_says_what_it_did(folders):
    records = {
        by: [r for r in told(folders / by) if r["kind"] == "rl"] for by in ("uniform", "difficulty")
    }
    assert not [key for r in records["uniform"] for key in r if key.startswith("sampling/")]
    first, last = records["difficulty"][0], records["difficulty"][-1]
    # Four of 24 problems drawn: the others weigh 1.
    assert first["sampling/unseen"] == pytest.approx(20 / 24)
    assert first["sampling/problems"] > 20
    assert last["sampling/unseen"] == 0
    assert last["sampling/always"] == last["sampling/never"] == pytest.approx(8 / 24)
    # Eight at 1 and sixteen at 0.1.
    assert last["sampling/problems"] == pytest.approx(9.6**2 / (8 + 16 * 0.01))
    for record, problems in zip(
        records["difficulty"], drawn(folders / "difficulty").values(), strict=True
    ):
        assert record["sampling/dull"] == np.mean([kind_of(p) != "sometimes" for p in problems])


def test_rollouts_that_are_lost_are_named(tmp_path):
    recipe = recipe_of(rl__sampling={"by": "difficulty"}, irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    (tmp_path / "run" / "rollouts" / "phase-000001-000003.parquet").unlink()
    with pytest.raises(UserError, match=r"rollouts of step 1.* are missing, and rl\.sampling goes"):
        open_run(recipe, tmp_path / "run", resume=True)


def test_a_floor_without_difficulty_is_refused():
    with pytest.raises(UserError, match=r"rl\.sampling.*floor does nothing with by: uniform"):
        recipe_of(rl__sampling={"floor": 0.2})
    with pytest.raises(UserError, match=r"rl\.sampling\.floor.*greater than 0"):
        recipe_of(rl__sampling={"by": "difficulty", "floor": 0})
