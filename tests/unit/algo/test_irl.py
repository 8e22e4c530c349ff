"""L2TE and its alternatives on groups small enough to check by eye; the forward KL."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sps.algo.irl import SELECTORS, forward_kl, irl_weight, js_divergence, lower_quantile
from sps.algo.reach import reach

# position              0     1     2     3     4     5     6     7
REWARD = np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]])
LIKELIHOOD = np.array([[-1.0, -8.0, -2.0, -7.0, -6.0, -3.0, -4.0, -5.0]])
# least likely first:     1     3     4     7  |  6     5     2     0


def kept(name, k, reward=REWARD, likelihood=LIKELIHOOD, quantile=0.5, over="group", seed=0):
    low = lower_quantile(likelihood, quantile, over)
    keep = SELECTORS[name](reward, likelihood, low, k, np.random.default_rng(seed))
    return [set(np.flatnonzero(row).tolist()) for row in keep]


@pytest.mark.parametrize(
    ("k", "want"),
    [
        (1, {4}),  # the least likely negative of the lower half
        (2, {4, 7}),  # its other negative
        (3, {4, 7, 1}),  # negatives ran out: the least likely positive of the lower half
        (4, {4, 7, 1, 3}),
        (5, {4, 7, 1, 3, 5}),  # then the upper half: its least likely negative, not 6, a positive
        (7, {4, 7, 1, 3, 5, 2, 0}),
        (8, set(range(8))),
    ],
)
def test_l2te_takes_unlikely_negatives_then_tops_up(k, want):
    assert kept("l2te", k) == [want]


def test_l2te_keeps_positives_of_a_group_without_negatives():
    assert kept("l2te", 3, reward=np.ones((1, 8))) == [{1, 3, 4}]


def test_l2te_breaks_ties_by_position():
    likelihood = np.full((1, 6), -1.0)
    # The lower half of equals is the first three; of them 1 is positive, so 0 and 2 come first.
    reward = np.array([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert kept("l2te", 2, reward, likelihood) == [{0, 2}]
    assert kept("l2te", 3, reward, likelihood) == [{0, 1, 2}]


def test_l2te_treats_a_punished_answer_as_negative():
    # Soft overlong punishment can make a reward negative, or 0.4 for a right but long answer.
    reward = np.array([[-0.5, 0.4, 0.0, 1.0]])
    likelihood = np.array([[-4.0, -3.0, -2.0, -1.0]])
    assert kept("l2te", 1, reward, likelihood) == [{0}]
    assert kept("l2te", 2, reward, likelihood) == [{0, 1}]


def test_equals_are_low_by_position_however_many():
    # Two hundred, every second at -2: sorting that is not stable does not show on a handful.
    low = lower_quantile(np.tile([-1.0, -2.0], 100)[None], 0.25, "group")
    assert np.flatnonzero(low).tolist() == list(range(1, 100, 2))


def test_l2te_takes_a_low_positive_before_a_negative_that_is_not_low():
    # Whatever is called low: here the likelier of the two.
    given = np.array([[0.0, 1.0]]), np.array([[-9.0, -1.0]]), np.array([[False, True]])
    assert SELECTORS["l2te"](*given, 1, np.random.default_rng(0)).tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("low_likelihood", {1, 3, 4}),
        ("low_likelihood_positive", {1, 3, 6}),
        ("positive", {1, 3, 6}),
        ("negative", {4, 7, 5}),
    ],
)
def test_other_selectors_by_hand(name, want):
    assert kept(name, 3) == [want]


def test_positive_selectors_keep_nothing_of_a_wrong_group():
    for name in ("positive", "low_likelihood_positive"):
        assert kept(name, 3, reward=np.zeros((1, 8))) == [set()]
    assert kept("negative", 3, reward=np.ones((1, 8))) == [set()]


def test_low_likelihood_positive_prefers_the_unlikely():
    assert kept("low_likelihood_positive", 1) == [{1}]
    assert kept("low_likelihood_positive", 2) == [{1, 3}]


def test_positive_draws_every_correct_rollout_in_turn():
    drawn = [kept("positive", 1, seed=s)[0] for s in range(40)]
    assert set().union(*drawn) == {1, 3, 6}


def test_uniform_keeps_each_with_the_same_chance():
    # 4000 groups of 8, keep 3: each position is kept 1500 times, standard deviation
    # sqrt(4000 * 3/8 * 5/8) = 30.6; four of them are 122.
    shape = (4000, 8)
    keep = SELECTORS["uniform"](
        np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), 3, np.random.default_rng(0)
    )
    assert (keep.sum(1) == 3).all()
    assert abs(keep.sum(0) - 1500).max() < 122


def test_quantile_over_the_group_and_over_the_batch():
    likelihood = np.array([[-9.0, -8.0, -7.0, -6.0], [-4.0, -3.0, -2.0, -1.0]])
    by_group = [[True, True, False, False], [True, True, False, False]]
    by_batch = [[True, True, True, True], [False, False, False, False]]
    assert lower_quantile(likelihood, 0.5, "group").tolist() == by_group
    assert lower_quantile(likelihood, 0.5, "batch").tolist() == by_batch
    # Over the batch the first group is all low (3 is its negative) and the second not at all.
    reward = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    assert kept("l2te", 2, reward, likelihood, over="group") == [{0, 1}, {1, 0}]
    assert kept("l2te", 2, reward, likelihood, over="batch") == [{3, 0}, {1, 3}]


@pytest.mark.parametrize(("quantile", "count"), [(0.01, 1), (0.25, 2), (0.26, 3), (0.5, 4), (1, 8)])
def test_quantile_rounds_up(quantile, count):
    assert lower_quantile(LIKELIHOOD, quantile, "group").sum() == count


@given(st.lists(st.floats(-5, 0), min_size=4, max_size=4), st.integers(1, 4))
def test_selectors_never_keep_more_than_k(likelihood, k):
    for name in SELECTORS:
        reward = np.array([[0.0, 1.0, 0.0, 1.0]])
        count = len(kept(name, k, reward, np.array([likelihood]))[0])
        limited = name in ("positive", "negative", "low_likelihood_positive")
        assert count == (min(k, 2) if limited else k)


def test_forward_kl_is_torch_cross_entropy():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 7, generator=rng, dtype=torch.float64)
    target = torch.randint(0, 7, (3, 4), generator=rng)
    length = torch.tensor([4, 2, 1])
    mask = torch.arange(4)[None] < length[:, None]
    logp = logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    torn = torch.where(mask, logp, -math.inf)
    labels = torch.where(mask, target, -100)
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    got = forward_kl(torn, irl_weight(length, "token").double(), mask)
    assert got.item() == pytest.approx(want.item(), rel=1e-7)
    rows = zip(logits, labels, strict=True)
    each = torch.stack([torch.nn.functional.cross_entropy(lo, la) for lo, la in rows])
    got = forward_kl(torn, irl_weight(length, "sequence").double(), mask)
    assert got.item() == pytest.approx(each.mean().item(), rel=1e-7)


def test_irl_weight_by_hand():
    length = torch.tensor([4, 2, 2])
    assert irl_weight(length, "token").tolist() == pytest.approx([1 / 8] * 3)
    assert irl_weight(length, "sequence").tolist() == pytest.approx([1 / 12, 1 / 6, 1 / 6])
    for reduce in ("token", "sequence"):  # the shortest there is, and a text without any token
        assert irl_weight(torch.tensor([1]), reduce).tolist() == [1]
        assert irl_weight(torch.tensor([0]), reduce).tolist() == [1]


def test_forward_kl_gradient_raises_the_kept_tokens():
    # The sign matters: the paper's printed sign would push away from the rollouts.
    logp = torch.full((1, 2), -1.0, requires_grad=True)
    forward_kl(logp, torch.tensor([0.5]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert logp.grad.tolist() == [[-0.5, -0.5]]


def test_lower_quantile_of_a_hundred_is_not_one_more_by_rounding():
    likelihood = np.arange(100.0)[None]
    assert lower_quantile(likelihood, 0.07, "group").sum() == 7  # 0.07 * 100 is 7.000000000000001


# docs/results_small.md: RL and IRL steps of a phase, irl.lr / rl.lr, and the ratio of their ways.
@pytest.mark.parametrize(
    ("rl_steps", "steps", "rates", "measured"),
    [
        (10, 4, 0.5, 0.715), (25, 4, 0.5, 0.304), (50, 4, 1.0, 0.376), (100, 4, 1.0, 0.263),
        (188, 4, 1.5, 0.283), (50, 1, 2.5, 0.354), (50, 2, 1.5, 0.339), (50, 8, 0.5, 0.339),
        (50, 16, 0.5, 0.574), (50, 4, 1.5, 0.540), (25, 4, 0.5, 0.291), (25, 4, 2.0, 0.970),
    ],
)  # fmt: skip
def test_reach_is_what_was_measured(rl_steps, steps, rates, measured):
    assert reach(rates * 1e-4, steps, 1e-4, rl_steps) == pytest.approx(measured, rel=0.3)


def test_js_divergence_is_twice_jensen_shannon_in_expectation_over_the_base():
    """Every token of a small vocabulary once, weighted by the base: that is the expectation."""
    rng = np.random.default_rng(3)
    p, q = (rng.dirichlet(np.ones(7)) for _ in range(2))
    m = (p + q) / 2
    wanted = sum(p * np.log(p / m)) + sum(q * np.log(q / m))  # KL(p | m) + KL(q | m)
    logs = [torch.tensor(np.log(x))[:, None] for x in (p, q)]
    real = torch.ones(7, 1, dtype=torch.bool)
    got = js_divergence(*logs, torch.tensor(q), real)
    assert float(got) == pytest.approx(wanted, rel=1e-9)
    assert wanted > 0.1


def test_js_divergence_and_its_slope_are_0_at_the_base_and_padding_counts_for_nothing():
    base_BT = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, 0.0, 0.0]], dtype=torch.float64)
    new_BT = base_BT.clone()
    new_BT[1, 2] = -torch.inf  # padding
    new_BT.requires_grad_()
    mask_BT = torch.tensor([[True, True, False], [True, False, False]])
    loss = js_divergence(new_BT, base_BT, torch.ones(2, dtype=torch.float64), mask_BT)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    assert new_BT.grad.abs().max() < 1e-12
