"""Diversity of right samples, against enumeration."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.algo.diversity import distinct_modes, pcmd

MODES = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=9)


def test_by_hand():
    # a a b: the pairs are aa, ab, ab, of which two differ.
    assert pcmd(["a", "a", "b"]) == pytest.approx(2 / 3)
    assert distinct_modes(["a", "a", "b"]) == 2
    assert pcmd(["a", "b"]) == 1.0
    assert pcmd([None, None]) == 0.0


@pytest.mark.parametrize("modes", [[], ["a"]])
def test_fewer_than_two_have_no_diversity(modes):
    assert pcmd(modes) is None
    assert distinct_modes(modes) == len(modes)


@given(MODES)
def test_it_is_the_share_of_ordered_pairs_that_differ(modes):
    pairs = [a != b for a, b in permutations(modes, 2)]
    assert pcmd(modes) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@given(MODES)
def test_the_order_of_samples_and_the_names_of_modes_do_not_matter(modes):
    named = [{"a": 1, "b": 2, "c": 3, None: 4}[mode] for mode in reversed(modes)]
    assert pcmd(named) == pcmd(modes)
    assert distinct_modes(named) == distinct_modes(modes)
