"""Buckets, diversity, gained and lost: by hand."""

import pytest

from sps.algo.passk import paired_rows
from sps.diagnose.questions import buckets, gained_and_lost, pass_curve, seeds_diversity
from sps.diagnose.read import Evaluation


def test_buckets_are_closed_above_and_hold_none_and_all_alone():
    # 0/12, 1/12 and 3/12 (in (0, 25 %]), 4/12, 9/12 (in (50, 75 %]), 11/12, 12/12.
    right = dict(enumerate([0, 1, 3, 4, 9, 11, 12]))
    assert buckets(right, 12) == [1, 2, 1, 1, 1, 1]
    assert buckets({}, 12) == [0] * 6


def test_diversity_is_of_seeds_on_the_same_questions_that_all_tell_solutions_apart():
    def seed(*counts, n=4, told=True):
        right = {f"q{i}": sum(own) for i, own in enumerate(counts)}
        return Evaluation("test", "test", 1, n, right, {}, counts if told else None)

    one, two = seed((2, 1), (1,)), seed((1, 1), ())
    assert seeds_diversity([one, two])["distinct"][0] == pytest.approx((2 + 1 + 2 + 0) / 4)
    for odd in (seed((1,)), seed((2,), (), n=8), seed((2,), (), told=False)):
        assert seeds_diversity([one, odd]) == {}


def test_gained_and_lost_by_hand():
    before = {"a": 0, "b": 2, "c": 1, "d": 0, "only before": 1}
    after = {"a": 3, "b": 0, "c": 4, "d": 0}
    found = gained_and_lost(before, 4, after, 4)
    assert (found["gained"], found["lost"]) == (["a"], ["b"])
    assert (found["kept"], found["never"], found["questions"]) == (1, 1, 4)
    assert (found["solved_before"], found["solved_after"]) == (2, 2)


def test_solved_counts_are_at_equal_draws():
    # After: 1 of 4 right, seen in 2 draws with chance 1 - (3/4)(2/3) = 1/2.
    found = gained_and_lost({"a": 0}, 2, {"a": 1}, 4)
    assert (found["k"], found["solved_after"]) == (2, pytest.approx(0.5))


def test_pass_curve_by_hand():
    # Two questions, 1 of 2 and 0 of 2 right: Pass@1 (1/2 + 0)/2, Pass@2 (1 + 0)/2.
    curve = pass_curve([({"a": 1, "b": 0}, 2)])
    assert [curve[1][0], curve[2][0]] == [0.25, 0.5]
    assert pass_curve([({}, 2)]) == {}


def test_paired_rows_use_shared_questions_and_possible_k():
    rows = paired_rows([({"a": 1, "b": 0, "x": 4}, 4)], [({"a": 3, "b": 2, "y": 0}, 4)], [1, 4, 8])
    assert [r["k"] for r in rows] == [1, 4]
    assert rows[0]["delta"][0] == pytest.approx(0.5)  # (3/4 - 1/4 + 2/4 - 0) / 2
    assert rows[1]["delta"][0] == pytest.approx(0.5)  # (1 - 1 + 1 - 0) / 2
