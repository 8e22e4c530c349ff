"""The least time of a rollout, by hand."""

import numpy as np
import pytest

from bench.long_floor import BANDWIDTH, PRODUCTS, floor, matrices

# Two heads of width 2, one of keys and values; three layers.
TINY = {
    "hidden_size": 4, "intermediate_size": 5, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 3, "vocab_size": 7,
}  # fmt: skip


def test_weights_are_those_of_the_products():
    # Queries 4x4, keys and values 2 of 4x2, output 4x4, three of 4x5; the head is 4x7.
    assert matrices(TINY) == 3 * (16 + 16 + 16 + 60) + 28


def test_a_step_reads_weights_and_what_its_rows_see():
    """Prompts of 10 tokens, two rows at once; answers of 1 and 3 tokens, then of 2 and 1.

    step  rows (prompt: own tokens)   prompts
    0     0: 0, 0: 0                  1
    1     0: 1, 1: 0                  2         the third answer takes the place of the first
    2     0: 2, 1: 1                  2
    3     1: 0                        1         both have ended; the fourth
    """
    found = floor(TINY, np.array([[1, 3], [2, 1]]), 2, prompt=10)
    weights, token = 3 * 108 + 28, 3 * 2 * 1 * 2 * 2
    seen = (0 + 10) + (1 + 20) + (3 + 20) + (0 + 10)
    assert found.steps == 4
    assert found.attention == pytest.approx(token * seen / BANDWIDTH)
    assert found.products == pytest.approx(2 * weights * 4 / BANDWIDTH)  # few rows: reading
    assert found.whole == found.attention + found.products


def test_many_rows_wait_for_operations():
    """A weight of two bytes takes as long to read as it takes to serve 184 rows; here are 400."""
    weights = 3 * 108 + 28
    found = floor(TINY, np.ones((1, 400), dtype=int), 400)
    assert found.steps == 1
    assert found.products == pytest.approx(2 * weights * 400 / PRODUCTS)
