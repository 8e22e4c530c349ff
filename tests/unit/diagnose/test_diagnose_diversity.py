"""Similarities by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.diagnose.diversity import (
    distinct_correct,
    diversity,
    edit_similarity,
    expected_distinct,
    jaccard,
    levenshtein,
    mean_pairwise,
    word_ngrams,
)


def test_ngrams_of_a_short_text_are_the_text():
    assert word_ngrams("a b") == {("a", "b")}
    assert word_ngrams("a b c d") == {("a", "b", "c"), ("b", "c", "d")}


def test_jaccard_by_hand():
    # 'a b c d' and 'a b c e' share one of three 3-grams.
    assert jaccard(word_ngrams("a b c d"), word_ngrams("a b c e")) == pytest.approx(1 / 3)
    assert jaccard(frozenset(), frozenset()) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("k i t t e n", "s i t t i n g", 1 - 3 / 7),  # the textbook distance of 3
        ("a b", "a b", 1.0),
        ("a b", "", 0.0),
        ("", "", 1.0),
    ],
)
def test_edit_similarity_by_hand(a, b, expected):
    assert edit_similarity(a.split(), b.split()) == pytest.approx(expected)


def _table_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


@given(st.lists(st.sampled_from("abc"), max_size=70), st.lists(st.sampled_from("abc"), max_size=70))
def test_levenshtein_equals_the_plain_table(a, b):
    assert levenshtein(a, b) == _table_distance(a, b)


def test_pairs_are_all_pairs_or_a_seeded_draw():
    texts = ["a b c", "a b c", "x y z"]
    # One equal pair of three: 1/3 in both measures.
    assert mean_pairwise(texts, 10) == pytest.approx((1 / 3, 1 / 3))
    assert mean_pairwise(texts * 9, 20, seed=4) == mean_pairwise(texts * 9, 20, seed=4)
    assert mean_pairwise(["alone"], 10) is None


def test_distinct_correct_ignores_white_space():
    assert distinct_correct(["1 + 2", "1  + 2 ", "2 + 1"]) == 2


def test_expected_distinct_by_hand():
    # Two texts, each in 1 of 2 samples: one draw finds exactly one of them.
    assert expected_distinct({"x": 1, "y": 1}, 2, 1) == pytest.approx(1)


def test_diversity_of_rows():
    rows = [
        {"problem_id": "p", "text": "1 + 2", "verdict": "correct"},
        {"problem_id": "p", "text": "2 + 1", "verdict": "correct"},
        {"problem_id": "q", "text": "9", "verdict": "wrong"},
    ]
    found = diversity(rows)
    assert (found["distinct_total"], found["distinct_correct"]) == (2, 1.0)
    assert found["distinct_correct_solved"] == 2.0
    assert found["edit_correct"] == pytest.approx(1 / 3)  # '1 + 2' to '2 + 1': two of three change
    assert diversity([]) is None
