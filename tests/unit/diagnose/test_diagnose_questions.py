"""Buckets, gained and lost, unions: by hand."""

import pytest

from sps.algo.passk import paired_rows
from sps.diagnose.questions import (
    accuracy_buckets,
    gained_and_lost,
    pass_curve,
    upper_bound,
)


def test_buckets_are_closed_above():
    # 0/10, 1/10 (in (0, 0.1]), 2/10, 10/10.
    found = accuracy_buckets({"a": 0, "b": 1, "c": 2, "d": 10}, 10)
    assert found == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_bucket_edges_are_exact_where_floats_are_not():
    # 3/30 is exactly 0.1 and 9/30 exactly 0.3; 9 * 10 / 30 in floats may be above 3.
    assert accuracy_buckets({"a": 3, "b": 9}, 30)[1] == 1
    assert accuracy_buckets({"a": 3, "b": 9}, 30)[3] == 1


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
    curve = pass_curve({"a": 1, "b": 0}, 2)
    assert [curve["1"][0], curve["2"][0]] == [0.25, 0.5]


def test_upper_bound_grows_with_each_checkpoint():
    found = upper_bound([({"a": 1, "b": 0, "c": 0}, 4), ({"a": 0, "b": 2, "c": 0}, 4)])
    assert (found["each"], found["union"], found["samples"]) == ([1, 1], [1, 2], 8)
    assert found["rate"][0] == pytest.approx(2 / 3)


def test_paired_rows_use_shared_questions_and_possible_k():
    rows = paired_rows([({"a": 1, "b": 0, "x": 4}, 4)], [({"a": 3, "b": 2, "y": 0}, 4)], [1, 4, 8])
    assert [r["k"] for r in rows] == [1, 4]
    assert rows[0]["delta"][0] == pytest.approx(0.5)  # (3/4 - 1/4 + 2/4 - 0) / 2
    assert rows[1]["delta"][0] == pytest.approx(0.5)  # (1 - 1 + 1 - 0) / 2
