"""Pass@k by enumeration; intervals by textbook, by hand and by simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from sps.algo.passk import bounds, mean_interval, paired, pass_at_k, seed_parts


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


# Scores of 0 and 1: the weight of the right questions is from a Beta distribution, so the bounds
# are its quantiles, with the unseen question (3/4) on the far side; Clopper and Pearson have 1.
BINARY = [  # questions, right ones, interval
    (10, 0, (0.0, 0.272104)),
    (10, 8, (0.459992, 0.974115)),
    (30, 0, (0.0, 0.099701)),
    (30, 16, (0.346574, 0.713895)),
    (200, 199, (0.974593, 0.999873)),
]


@pytest.mark.parametrize(("n", "correct", "interval"), BINARY)
def test_mean_interval_of_binary_scores_is_of_a_beta(n, correct, interval):
    wrong = n - correct
    low = stats.beta.ppf(0.025, correct, wrong + 0.75) if correct else 0.0
    high = stats.beta.ppf(0.975, correct + 0.75, wrong) if wrong else 1.0
    assert (low, high) == pytest.approx(interval, abs=1e-6)
    mean, *got = mean_interval(np.array([1.0] * correct + [0.0] * wrong))
    assert mean == pytest.approx(correct / n)
    assert got == pytest.approx(interval, rel=0.025, abs=1e-3)  # the tail is approximated


@pytest.mark.parametrize("shape", [(0.2, 8), (2, 2), (8, 0.2)])
def test_mean_interval_is_the_quantile_of_randomly_weighted_means(shape):
    rng = np.random.default_rng(0)
    score = rng.beta(*shape, 20)
    weight = rng.gamma([1.0] * 20 + [0.75], size=(200_000, 21))
    weight /= weight.sum(1, keepdims=True)
    low = np.quantile(weight @ np.append(score, 0.0), 0.025)
    high = np.quantile(weight @ np.append(score, 1.0), 0.975)
    assert mean_interval(score)[1:] == pytest.approx((low, high), rel=0.02)


def test_mean_interval_over_seeds_by_hand():
    # Means of the seeds 0.2, 0.3, 0.4: variance 0.01 / 3, t(2) = 4.302653, t**2 = 18.512821.
    # Wilson: ratio = 18.512821 * 0.01 / 3 / 0.21 = 0.293854, root = sqrt(0.061709 + 0.021588) =
    # 0.288612; up (0.3 + 0.146927 + 0.288612) / 1.293854 = 0.568486, down 0.122361.
    level = np.array([[0.2], [0.3], [0.4]])
    _, low, high = mean_interval(np.repeat(level, 10_000, 1))
    assert (low, high) == pytest.approx((0.122361, 0.568486), abs=1e-4)  # questions add 1e-4
    # With ten questions, whose own bounds are `down` and `up`, distances add in quadrature.
    few = np.repeat(level, 10, 1)
    _, down, up = mean_interval(few.mean(0))
    _, low, high = mean_interval(few)
    assert high - 0.3 == pytest.approx(np.hypot(up - 0.3, 0.268486), abs=1e-5)
    assert 0.3 - low == pytest.approx(min(0.3, np.hypot(0.3 - down, 0.177639)), abs=1e-5)


scores = st.integers(0, 16).map(lambda right: right / 16)
grids = st.integers(1, 6).flatmap(
    lambda q: st.lists(st.lists(scores, min_size=q, max_size=q), min_size=1, max_size=3)
)


@given(grids)
def test_mean_interval_holds_the_mean_stays_in_bounds_and_mirrors(value):
    value = np.array(value)
    mean, low, high = mean_interval(value)
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert low < high
    assert mean_interval(1 - value) == pytest.approx((1 - mean, 1 - high, 1 - low), abs=1e-7)


@given(grids, grids)
def test_paired_holds_the_difference_stays_in_bounds_and_swaps(a, b):
    shared = min(len(a[0]), len(b[0]))
    a, b = np.array(a)[:, :shared], np.array(b)[:, :shared]  # any number of seeds each
    got, back = paired(a, b), paired(b, a)
    mean, low, high = got.delta
    assert mean == pytest.approx(b.mean() - a.mean())
    assert -1 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert low < high
    assert back.delta == pytest.approx((-mean, -high, -low), abs=1e-7)
    assert back.p == pytest.approx(got.p, rel=1e-4)
    assert back.verdict == {"better": "worse", "worse": "better", "tied": "tied"}[got.verdict]
    assert got.verdict == ("better" if low > 0 else "worse" if high < 0 else "tied")
    assert (got.p < 0.05 - 1e-5) <= (got.verdict != "tied") <= (got.p < 0.05 + 1e-5)


@settings(max_examples=25)
@given(grids)
def test_more_questions_of_the_same_kind_narrow_the_interval(value):
    value = np.array(value)
    for one, two in [
        (mean_interval(value), mean_interval(np.tile(value, 3))),
        (paired(value, 1 - value).delta, paired(np.tile(value, 3), np.tile(1 - value, 3)).delta),
    ]:
        assert two[2] - two[1] < one[2] - one[1] or (len(value) > 1 and one[1:] == two[1:])


def test_paired_better_by_hand():
    # 7 of 8 questions won, none lost. As shares, (d + 1) / 2, that is 1 seven times and 1/2 once,
    # and 0 for the unseen question (3/4) when the lower bound is sought.
    rng = np.random.default_rng(0)
    weight = rng.gamma([7.0, 1.0, 0.75], size=(400_000, 3))
    share = (weight @ [1, 0.5, 0]) / weight.sum(1)
    b = np.array([1.0] * 7 + [0.0])
    win, loss = paired(np.zeros(8), b), paired(b, np.zeros(8))
    assert win.delta[0] == 0.875
    assert win.delta[1] == pytest.approx(2 * np.quantile(share, 0.025) - 1, abs=0.01)
    assert win.p == pytest.approx(2 * np.mean(share < 0.5), abs=0.001)
    assert (win.verdict, loss.verdict) == ("better", "worse")
    tie = paired(np.zeros(4), np.array([1.0, 1.0, 1.0, 0.0]))
    assert tie.verdict == "tied"


@pytest.mark.parametrize(("n", "reach"), [(30, 0.099701), (200, 0.015577), (500, 0.006258)])
def test_paired_of_equal_scores_is_tied_but_not_certain(n, reach):
    # No difference among n: another question may have one of 1, with a weight from Beta(3/4, n).
    assert stats.beta.ppf(0.975, 0.75, n) == pytest.approx(reach, abs=1e-6)
    got = paired(np.full(n, 0.3), np.full(n, 0.3))
    assert (got.verdict, got.p) == ("tied", 1.0)
    assert got.delta == pytest.approx((0.0, -reach, reach), rel=0.01)


@pytest.mark.parametrize("gap", [-1.0, 1.0, 0.25])
def test_paired_of_one_question_is_tied(gap):
    got = paired(np.array([(1 - gap) / 2]), np.array([(1 + gap) / 2]))
    assert got.delta[0] == gap
    assert got.delta[2] - got.delta[1] > 1.5
    assert got.verdict == "tied"


def test_paired_is_not_misled_by_rounding():
    # 0.3 - 0.1 and 0.4 - 0.2 differ in the last bit alone; so does the mean of three times 0.1.
    got = paired(np.array([0.1, 0.2]), np.array([0.3, 0.4]))
    assert got.verdict == "tied"
    assert got.p > 0.1
    _, low, high = mean_interval(np.full(3, 0.1))
    assert high - low > 0.5


def test_paired_counts_the_spread_between_seeds():
    # Two seeds that disagree, +0.5 and -0.1 on every question: questions alone would be certain.
    a, b = np.zeros((2, 500)), np.vstack([np.full(500, 0.5), np.full(500, -0.1)])
    assert paired(a.mean(0), b.mean(0)).verdict == "better"
    got = paired(a, b)
    # Shares 0.75 and 0.45: mean 0.6, variance 0.045 / 2, t(1)**2 = 161.447639: Wilson's ratio is
    # 15.135716, its root 7.804174 and its bounds 0.022539 and 0.989849, less 1e-5 for questions.
    assert got.delta == pytest.approx((0.2, -0.954922, 0.979698), abs=1e-4)
    assert got.verdict == "tied"
    assert paired(a[:1], b).delta == pytest.approx(got.delta)  # against one seed it is the same


def test_paired_takes_seeds_of_equal_number_as_pairs():
    # Seeds at 0.2 and 0.6, each 0.1 better on every question: between the pairs there is no spread.
    a = np.array([[0.2], [0.6]]) + np.zeros(500)
    got = paired(a, a + 0.1)
    assert got.verdict == "better"
    assert got.delta == pytest.approx((0.1, 0.1, 0.1), abs=0.02)
    assert paired(a, np.vstack([a + 0.1, a[:1]])).verdict == "tied"  # no pairs: the spread of each


def test_p_values_end_at_1e_12():
    assert paired(np.zeros(500), np.ones(500)).p == paired(np.ones(500), np.zeros(500)).p == 1e-12


def test_paired_of_unequal_numbers_of_seeds_counts_the_spread_of_each():
    # Two seeds at 0.3 against three at 0, 0.3, 0.6, as shares with variance 0.03 / 4, t(2)**2 =
    # 18.512821: Wilson's ratio is 0.555385, his upper bound (0.777692 + 0.464714) / 1.555385.
    three = np.array([[0.0], [0.3], [0.6]]) + np.zeros(500)
    got = paired(three, np.full((2, 500), 0.3))
    assert got.delta == pytest.approx((0.0, -0.597554, 0.597554), abs=1e-4)


def test_pairing_finds_what_overlapping_intervals_hide():
    rng = np.random.default_rng(0)
    a = rng.random(100)
    b = np.clip(a + 0.05 + 0.02 * rng.standard_normal(100), 0, 1)
    assert mean_interval(a)[2] > mean_interval(b)[1]  # they overlap
    assert paired(a, b).verdict == "better"


# Coverage, of 2000 repetitions: a true 95 % has a standard error of 0.5 points, and 93 % is four of
# them below. `python -m bench.coverage` has many more cases. The shares noted at each case are
# those of Student's t or Wilson's formula over questions, with Satterthwaite's degrees of freedom.
RUNS = 2000


def ends(value_RSQ, tail=0.025):
    """Bounds of means of scores in [0, 1], of every repetition."""
    return bounds(value_RSQ.mean(-2), seed_parts(value_RSQ), tail)


def share_held(low_R, high_R, truth):
    return np.mean((low_R <= truth + 1e-9) & (truth - 1e-9 <= high_R))


def often_nothing(rng):
    """Beta(2, 98), but one question in 33 is always solved, and often none such is seen."""
    return np.where(rng.random((RUNS, 1, 30)) < 0.03, 1.0, rng.beta(2, 98, (RUNS, 1, 30)))


def rarely_solved(rng):
    """Nearly all questions are never solved, and a few now and then."""
    return rng.beta(0.05, 5, (RUNS, 1, 30))


def near_one(rng):
    """Pass@n: of 30 questions none or one fails."""
    return (rng.random((RUNS, 1, 30)) > 0.005) * 1.0


def two_seeds(rng):
    """A seed shifts all of its questions, about as much as noise moves their mean."""
    noise = 0.1 * rng.uniform(-1, 1, (RUNS, 2, 100))
    return 0.5 + 0.02 * rng.standard_normal((RUNS, 2, 1)) + noise


@pytest.mark.parametrize(
    ("seen", "truth"),
    [
        (often_nothing, 0.03 + 0.97 * 0.02),  # 58 %
        (rarely_solved, 0.05 / 5.05),  # 80 %
        (near_one, 0.995),  # 85 %
        (two_seeds, 0.5),  # 89 %
    ],
)
def test_intervals_cover_the_truth_where_it_is_hard(seen, truth):
    value = seen(np.random.default_rng(1))
    assert share_held(*ends(value), truth) >= 0.93


@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.02), (0.01, 0.06)])  # 45 %, 84 %
def test_paired_intervals_cover_where_few_questions_differ(lost, won):
    # Pass@n of 30 questions: a solves some that b does not, and the other way round.
    draw = np.random.default_rng(2).random((RUNS, 1, 30))
    diff = np.where(draw < lost, -1, np.where(draw > 1 - won, 1, 0))
    low, high = ends((1 + diff) / 2)
    assert share_held(2 * low - 1, 2 * high - 1, won - lost) >= 0.93


def test_two_seeds_find_no_difference_where_there_is_none():
    # Each run's seed shifts all of its questions, and each of them a little: 12 % false verdicts.
    rng = np.random.default_rng(3)
    logit = rng.standard_normal((RUNS, 1, 100))
    shift = 0.2 * rng.standard_normal((2, RUNS, 2, 1)) + 0.5 * rng.standard_normal(
        (2, RUNS, 2, 100)
    )
    a, b = special.expit(logit + shift)
    low, high = ends((1 + b - a) / 2)
    assert 1 - share_held(low, high, 0.5) <= 0.06


@pytest.mark.parametrize(("questions", "wider"), [(30, 1.10), (200, 1.05)])
def test_intervals_in_the_middle_are_hardly_wider_than_students(questions, wider):
    score = np.random.default_rng(4).beta(0.5, 0.5, (RUNS, 1, questions))
    low, high = ends(score)
    t = stats.t.ppf(0.975, questions - 1)
    students = 2 * t * score.std(-1, ddof=1) / np.sqrt(questions)
    assert share_held(low, high, 0.5) >= 0.94
    assert np.mean(high - low) <= wider * students.mean()


def test_seeds_of_repetitions_are_counted_apart():
    value = np.random.default_rng(0).random((2, 3, 5))  # repetitions, seeds, questions
    ((variance, freedom),) = seed_parts(value)
    for got, alone in zip(variance, value, strict=True):
        by_hand = np.var([row.mean() for row in alone], ddof=1) / 3
        assert got == pytest.approx(by_hand)
    assert freedom == 2
