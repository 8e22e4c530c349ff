"""Embedding similarity: the closed form by hand, and padding that changes nothing."""

import numpy as np
import pytest
from made_folders import make_policy

from sps.diagnose.embedding import cosine_similarity, embed, mean_cosine


def test_mean_cosine_by_hand():
    # Pairs: (x, y) 0, (x, -x) -1, (y, -x) 0: the mean is -1/3.
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert mean_cosine(vectors) == pytest.approx(-1 / 3)
    assert mean_cosine(vectors[:1]) is None


def test_empty_answers_are_like_nothing():
    assert mean_cosine(np.zeros((2, 3))) == 0.0
    # Pairs: (0, x) 0, (0, x) 0, (x, x) 1: the mean is 1/3.
    assert mean_cosine(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])) == pytest.approx(1 / 3)


def test_padding_leaves_an_embedding_alone():
    policy = make_policy()
    alone = embed(policy, ["1 + 2"])[0]
    padded = embed(policy, ["1 + 2", "1 + 2 + 1 + 1 + 2"])[0]
    assert padded == pytest.approx(alone, abs=1e-5)
    assert np.linalg.norm(alone) == pytest.approx(1.0, abs=1e-5)


def test_equal_answers_are_wholly_alike():
    rows = [{"problem_id": "q", "text": "1 + 2"}] * 3 + [{"problem_id": "r", "text": "2"}]
    assert cosine_similarity(make_policy(), rows) == pytest.approx(1.0, abs=1e-5)
    assert cosine_similarity(make_policy(), []) is None
