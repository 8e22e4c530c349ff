"""Pass@k by enumeration; intervals by textbook, by hand and by simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import beta

from sps.algo.passk import Paired, mean_interval, paired, pass_at_k


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n, data):
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    samples = [True] * correct + [False] * (n - correct)
    subsets = list(combinations(samples, k))
    want = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([correct]), n, k)[0] == pytest.approx(want, abs=1e-12)


def test_pass_at_k_of_many_samples_does_not_overflow():
    # One right of 2048: the chance that k = 1024 of them hold it is 1/2.
    assert pass_at_k(np.array([1]), 2048, 1024)[0] == pytest.approx(0.5, abs=1e-9)


def test_pass_at_k_takes_a_count_a_question():
    # 1 - C(2,2)/C(3,2) = 2/3 and 1 - C(3,2)/C(4,2) = 1/2
    got = pass_at_k(np.array([1, 1]), np.array([3, 4]), 2)
    assert got.tolist() == pytest.approx([2 / 3, 1 / 2])


def test_pass_at_k_refuses_more_than_was_drawn():
    with pytest.raises(ValueError, match=r"Pass@5"):
        pass_at_k(np.array([1]), 4, 5)
    with pytest.raises(ValueError, match=r"Pass@0"):
        pass_at_k(np.array([1]), 4, 0)


# Questions, right ones, Wilson's interval at 95 % (z = 1.959964), ours (n - 1, Student's t).
WILSON = [
    (10, 8, (0.490162, 0.943318), (0.427012, 0.955495)),  # t(9) = 2.262157
    (10, 0, (0.0, 0.277533), (0.0, 0.338509)),
    (30, 16, (0.361423, 0.697676), (0.351954, 0.706309)),  # t(29) = 2.045230
    (200, 199, (0.972226, 0.999117), (0.971898, 0.999127)),
]


@pytest.mark.parametrize(("n", "correct", "textbook", "ours"), WILSON)
def test_mean_interval_of_binary_values_is_wilsons_a_little_wider(n, correct, textbook, ours):
    value = np.array([1.0] * correct + [0.0] * (n - correct))
    mean, low, high = mean_interval(value)
    assert mean == pytest.approx(correct / n)
    assert (low, high) == pytest.approx(ours, abs=1e-6)
    z_interval = stats.binomtest(correct, n).proportion_ci(method="wilson")
    assert tuple(z_interval) == pytest.approx(textbook, abs=1e-6)
    assert low <= textbook[0] + 1e-6
    assert high >= textbook[1]


@pytest.mark.parametrize(("n", "correct"), [(10, 8), (30, 16), (200, 199)])
def test_mean_interval_inverts_the_score_test(n, correct):
    # Wilson's bounds are the x whose own standard error puts the mean t away:
    # (mean - x)**2 = t**2 x (1 - x) / (n - 1).
    value = np.array([1.0] * correct + [0.0] * (n - correct))
    mean, *bounds = mean_interval(value)
    t = stats.t.ppf(0.975, n - 1)
    for x in bounds:
        assert (mean - x) ** 2 == pytest.approx(t**2 * x * (1 - x) / (n - 1), rel=1e-9)


scores = st.integers(0, 16).map(lambda right: right / 16)


@given(st.lists(st.lists(scores, min_size=4, max_size=4), min_size=1, max_size=3))
def test_mean_interval_holds_the_mean_and_stays_in_bounds(value):
    mean, low, high = mean_interval(np.array(value))
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1
    assert low < high


def test_paired_better_by_hand():
    # Differences 1, 1, 1, 0: mean 3/4, standard error 0.5 / 2 = 1/4, t(3) = 3.182446:
    # 0.75 +- 0.795612 holds 0, a tie; with 4 more wins the error is 0.125 and t(7) = 2.364624.
    a = np.zeros(4)
    tie = paired(a, np.array([1.0, 1.0, 1.0, 0.0]))
    assert tie.delta == pytest.approx((0.75, -0.045612, 1.545612), abs=1e-6)
    assert tie.verdict == "tied"
    assert tie.p == pytest.approx(0.057669, abs=1e-6)
    b = np.array([1.0] * 7 + [0.0])
    win = paired(np.zeros(8), b)
    assert win.delta == pytest.approx((0.875, 0.875 - 0.295578, 0.875 + 0.295578), abs=1e-6)
    assert win.verdict == "better"
    loss = paired(b, np.zeros(8))
    assert loss.verdict == "worse"
    assert loss.delta == pytest.approx((-0.875, -1.170578, -0.579422), abs=1e-6)


def test_paired_of_the_same_scores_is_tied_with_p_1():
    same = np.array([[0.1, 0.9, 0.4]])
    assert paired(same, same).verdict == "tied"
    assert paired(same, same).p == 1.0


def test_paired_of_one_question_is_tied():
    # Nothing says how much another question would differ: any difference is possible.
    assert paired(np.array([0.25]), np.array([0.5])) == Paired((0.25, -1.0, 1.0), "tied", 1.0)
    assert paired(np.array([1.0]), np.array([0.0])) == Paired((-1.0, -1.0, 1.0), "tied", 1.0)
    assert paired(np.array([0.5]), np.array([0.5])) == Paired((0.0, -1.0, 1.0), "tied", 1.0)


# Differences of 1, as (1 + 1) / 2 of [0, 1]: Wilson's lower bound is 1 / (1 + t**2 / n), back in
# [-1, 1] that is (n - t**2) / (n + t**2); p is the chance of sqrt(n) under Student's t.
@pytest.mark.parametrize(
    ("n", "low", "p", "verdict"),
    [
        (2, -0.975527, 0.391827, "tied"),  # t(1) = 12.706205
        (5, -0.213134, 0.089009, "tied"),  # t(4) = 2.776445; a sign test has 2 / 2**5 = 0.0625
        (10, 0.322983, 0.011508, "better"),  # t(9) = 2.262157
    ],
)
def test_paired_of_the_same_gap_everywhere_is_not_certain(n, low, p, verdict):
    got = paired(np.zeros(n), np.ones(n))
    assert got.delta == pytest.approx((1.0, low, 1.0), abs=1e-6)
    assert got.p == pytest.approx(p, abs=1e-6)
    assert got.verdict == verdict
    back = paired(np.ones(n), np.zeros(n))
    assert back.delta == pytest.approx((-1.0, -1.0, -low), abs=1e-6)
    assert back.verdict == {"better": "worse"}.get(verdict, "tied")


def test_paired_is_not_misled_by_rounding():
    # 0.3 - 0.1 and 0.4 - 0.2 differ in the last bit alone; so does the mean of three times 0.1.
    got = paired(np.array([0.1, 0.2]), np.array([0.3, 0.4]))
    assert got.verdict == "tied"
    assert got.p > 0.1
    _, low, high = mean_interval(np.full(3, 0.1))
    assert high - low > 0.5


@given(st.integers(2, 200), st.integers(-16, 16).filter(bool))
def test_without_spread_the_verdict_and_p_say_the_same(n, gap):
    got = paired(np.zeros(n), np.full(n, gap / 16))
    assert got.delta[1] - 1e-12 <= gap / 16 <= got.delta[2] + 1e-12
    assert (got.verdict != "tied") == (got.p < 0.05)


def test_paired_counts_the_spread_between_seeds():
    # Two seeds that disagree, +0.5 and -0.1 on every question: questions alone would be certain.
    a = np.zeros((2, 50))
    b = np.vstack([np.full(50, 0.5), np.full(50, -0.1)])
    got = paired(a, b)
    assert got.delta[0] == pytest.approx(0.2)
    # variance of the seed means 0.18 / 2 = 0.09, error 0.3, t(1) = 12.7062: half 3.811861
    assert got.delta[2] - got.delta[0] == pytest.approx(12.706205 * 0.3, abs=1e-4)
    assert got.verdict == "tied"


def test_pairing_finds_what_overlapping_intervals_hide():
    rng = np.random.default_rng(0)
    a = rng.random(100)
    b = np.clip(a + 0.05 + 0.02 * rng.standard_normal(100), 0, 1)
    assert mean_interval(a)[2] > mean_interval(b)[1]  # they overlap
    assert paired(a, b).verdict == "better"


# Coverage: in 2000 repetitions of a true 95 % interval the share that holds the truth has an error
# of sqrt(.95 * .05 / 2000) = 0.5 points. The bounds below are 93 % and 98 %: four of them
# under, six over (intervals may be a little wide, never narrow).


def pass1_of(rng, questions, samples):
    """Pass@1 of questions whose difficulty is drawn from Beta(0.5, 1.5): true mean 1/4."""
    return rng.binomial(samples, rng.beta(0.5, 1.5, questions)) / samples


@pytest.mark.parametrize("questions", [30, 200])
def test_mean_interval_covers_the_truth(questions):
    rng = np.random.default_rng(questions)
    held = 0
    for _ in range(2000):
        _, low, high = mean_interval(pass1_of(rng, questions, 16))
        held += low <= 0.25 <= high
    assert 0.93 <= held / 2000 <= 0.98


def test_paired_covers_the_truth():
    rng = np.random.default_rng(3)
    # E[d**0.8] for d from Beta(0.5, 1.5) is B(1.3, 1.5) / B(0.5, 1.5).
    truth, held = beta(1.3, 1.5) / beta(0.5, 1.5), 0
    for _ in range(2000):
        difficulty = rng.beta(0.5, 1.5, 30)
        a = rng.binomial(16, difficulty) / 16
        b = rng.binomial(16, difficulty**0.8) / 16
        low, high = paired(a, b).delta[1:]
        held += low <= truth - 0.25 <= high
    assert 0.93 <= held / 2000 <= 0.98


def test_intervals_over_seeds_cover_the_truth():
    # A seed shifts every question: with 3 seeds only 2 degrees of freedom are left for it. The two
    # variances are added, so the interval is on the wide side: at least 93 %, at most 99.5 %.
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(2000):
        shift = 0.05 * rng.standard_normal((3, 1))
        question = 0.3 * rng.standard_normal((1, 40))
        noise = 0.1 * rng.standard_normal((3, 40))
        low, high = paired(np.zeros((3, 40)), 0.1 + shift + question + noise).delta[1:]
        held += low <= 0.1 <= high
    assert 0.93 <= held / 2000 <= 0.995
