"""Diversity of right samples, against enumeration."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.algo.diversity import diversity, pcmd, read_solutions, solutions
from sps.algo.passk import mean_interval

MODES = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=9)


def test_by_hand():
    # a a b: the pairs are aa, ab, ab, of which two differ.
    assert solutions(["b", "a", "a"]) == (2, 1)
    assert pcmd((2, 1)) == pytest.approx(2 / 3)
    assert pcmd((1, 1)) == 1.0
    assert pcmd((2,)) == 0.0


@pytest.mark.parametrize("modes", [[], ["a"]])
def test_fewer_than_two_have_no_diversity(modes):
    assert pcmd(solutions(modes)) is None
    assert sum(solutions(modes)) == len(modes)


@given(MODES)
def test_it_is_the_share_of_ordered_pairs_that_differ(modes):
    pairs = [a != b for a, b in permutations(modes, 2)]
    assert pcmd(solutions(modes)) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@given(MODES)
def test_the_order_of_samples_and_the_names_of_modes_do_not_matter(modes):
    named = [{"a": 1, "b": 2, "c": 3, None: 4}[mode] for mode in reversed(modes)]
    assert solutions(named) == solutions(modes)


def test_means_over_questions_by_hand():
    # Three questions of 4 samples: aab, a, none right. Only the first has two right ones.
    found = diversity([[(2, 1), (1,), ()]])
    assert found["distinct"][0] == pytest.approx((2 + 1 + 0) / 3)
    shares = mean_interval(np.array([2, 1, 0]) / 2)  # two solutions are the most
    assert found["distinct"] == pytest.approx([2 * value for value in shares])
    assert found["pcmd"] == pytest.approx(mean_interval(np.array([2 / 3])))
    assert found["pcmd_questions"] == 1


def test_seeds_count_where_each_has_two_right_samples():
    found = diversity([[(2, 1), (1, 1)], [(1, 1), (1,)]])
    # Only the first question has two right samples of both seeds: 2/3 and 1.
    assert found["pcmd"][0] == pytest.approx((2 / 3 + 1) / 2)
    assert found["pcmd_questions"] == 1
    assert found["distinct"][0] == pytest.approx((2 + 2 + 2 + 1) / 4)
    assert diversity([[(1,), ()]])["pcmd"] is None
    assert diversity([[(), ()]])["distinct"][0] == 0


def test_solutions_are_read_back_and_must_be_as_many_as_the_right_samples():
    right = {"q": 3, "r": 0}
    assert read_solutions({"q": [2, 1], "r": []}, right) == ((2, 1), ())
    assert read_solutions(None, right) is None
    for wrong in ({"q": [2, 2], "r": []}, {"q": [4, -1], "r": []}, {"q": [3, 0], "r": []}):
        with pytest.raises(ValueError, match="not as many"):
            read_solutions(wrong, right)
