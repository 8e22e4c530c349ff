"""The simulator against closed form, and against the paper's property as printed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.diagnose.simulate import (
    BALANCED,
    PEAKY,
    gain_threshold,
    gradient_step,
    nudge,
    sequence_probabilities,
    sequence_step,
    simulate,
    softmax,
)

distributions = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=12).map(
    lambda values: np.array(values) / sum(values)
)


def test_nudge_by_hand():
    # p = (1/2, 1/4, 1/4), z_2 lowered by log 2: weights 4, 2, 1 of 7.
    after = nudge(np.array([0.5, 0.25, 0.25]), 2, -np.log(2))
    assert after == pytest.approx([4 / 7, 2 / 7, 1 / 7])


@given(distributions, st.floats(-5, 5))
def test_nudge_equals_the_softmax_of_moved_logits(p_V, eta):
    z_V = np.log(p_V)
    z_V[0] += eta
    assert nudge(p_V, 0, eta) == pytest.approx(softmax(z_V))


@given(distributions, st.floats(-5, -0.01))
def test_negative_nudge_raises_every_other_token_in_proportion(p_V, eta):
    ratio_V = nudge(p_V, 0, eta)[1:] / p_V[1:]
    assert (ratio_V > 1).all()  # Property 1 of the paper prints < 1
    assert ratio_V == pytest.approx(np.full_like(ratio_V, ratio_V[0]))


def test_gradient_step_by_hand():
    # p = (1/2, 1/2), lr 1, down on token 1: z moves by +1/2 and -1/2, so p = sigmoid(1).
    after = gradient_step(np.array([0.5, 0.5]), 1, 1.0, -1)
    assert after == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])


@given(distributions, st.floats(0.01, 3))
def test_negative_gradient_step_raises_exactly_what_is_above_the_threshold(p_V, lr):
    threshold = gain_threshold(p_V, 0, lr)
    after_V = gradient_step(p_V, 0, lr, -1)
    clear = np.abs(p_V - threshold) > 1e-9
    clear[0] = False
    assert ((after_V > p_V) == (p_V > threshold))[clear].all()


def test_threshold_tends_to_the_collision_probability_less_the_target():
    # sum p^2 of PEAKY is 0.64927; the target has 0.01.
    assert gain_threshold(PEAKY, 6, 1e-6) == pytest.approx((PEAKY**2).sum() - 0.01, abs=1e-6)


def test_squeezing_needs_a_peak():
    balanced, peaky = (gradient_step(p, 6, 1.0, -1) - p for p in (BALANCED, PEAKY))
    others = [1, 2, 3, 4, 5, 7]
    assert (balanced[others] > 0).all()
    assert (peaky[others] < 0).all()
    assert peaky[0] > 0.09


def test_sequence_step_moves_only_its_own_path():
    rows = [np.array([[0.5, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.5]])]
    after = sequence_step(rows, (1, 0), 1.0, -1)
    up = 1 / (1 + np.exp(-1))
    # (1, 0) loses at both places; the second place after 0 stays at one half.
    expected = [up / 2, up / 2, (1 - up) * (1 - up), (1 - up) * up]
    assert sequence_probabilities(after) == pytest.approx(expected)


def test_simulation_says_that_property_1_is_wrong_and_what_is_true():
    found = simulate()
    assert found["property_1_as_printed_holds"] is False
    assert found["dominant_gains"] is True
    assert len(found["cases"]) == 16
    for case in found["cases"]:
        assert sum(case["after"]) == pytest.approx(1)
