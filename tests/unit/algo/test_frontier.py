"""The frontier by hand, against a dense walk along the path, and its coverage by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sps.algo.frontier import _Resampling, areas, envelope, frontier, highest_kept

PATH = [(0.1, 0.9), (0.2, 0.95), (0.4, 0.75), (0.3, 0.6)]  # rises, falls, and turns back


def test_envelope_by_hand():
    # At 0.15 the best lies further on, at 0.2; from there a line falls by 0.1 for every 0.1.
    got = envelope(np.array([PATH]), np.array([[0.1, 0.15, 0.2, 0.3, 0.35, 0.4, 0.41]]))
    assert got[0].tolist() == pytest.approx([0.95, 0.95, 0.95, 0.85, 0.8, 0.75, -np.inf])


def test_highest_kept_by_hand():
    down, up = [(0.1, 0.9), (0.3, 0.7)], [(0.1, 0.9), (0.3, 0.9)]
    paths = [PATH[:3], [*down, down[1]], [*up, up[1]]]
    # The first comes back to 0.9 a quarter of the way from 0.2 to 0.4.
    assert highest_kept(np.array(paths)).tolist() == pytest.approx([0.25, 0.1, 0.3])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5), st.floats(0, 1)
)
def test_envelope_is_the_best_of_a_dense_walk(path, at):
    x, y = np.array(path).T
    time = np.linspace(0, len(path) - 1, 20001) if len(path) > 1 else np.zeros(1)
    xs, ys = (np.interp(time, np.arange(len(path)), v) for v in (x, y))
    slack = 1e-4  # a walk misses the very place, and only from outside
    loose, tight = (max(ys[xs >= at + d], default=-np.inf) for d in (-slack, slack))
    got = envelope(np.array([path]), np.array([[at]]))[0, 0]
    assert tight - slack <= got <= loose + slack


def counts(*points):
    """One seed's right samples of 2 questions at each point."""
    return np.array(points)[:, None]


def test_areas_of_trials_by_hand():
    # The base has Pass@1 1/8 and Pass@4 1/2. One method reaches 1/2 at the most, the other 3/4.
    # `near` stops at 1/4, a third of the way: Pass@4 is 1/2 up to there, at points 0 to 10 of the
    # grid of 32 parts, and counts as 0 further on.
    one = {"steep": counts([4, 0]), "near": counts([2, 0])}
    span, found = areas(np.array([1, 0]), {"a": one, "b": {"far": counts([3, 3])}}, 4, draws=50)
    assert span == (1 / 8, 1 / 2)
    assert found["a"]["steep"][0] == 1 / 2
    assert found["a"]["near"][0] == pytest.approx((0.5 + 10) / 32 / 2)
    assert found["b"]["far"][0] == 1
    for mean, low, high in [*found["a"].values(), *found["b"].values()]:
        assert 0 <= low <= mean <= high <= 1
    with pytest.raises(ValueError, match="seeds"):
        areas(np.array([1, 0]), {"a": {**one, "x": counts([1, 1]).repeat(2, 1)}}, 4)


def test_area_gap_and_range_by_hand():
    # Of 4 samples a question. Base: Pass@1 1/8, Pass@4 1/2. Both end at Pass@1 1/2, `flat` with
    # Pass@4 1, `steep` with 1/2; `far` goes on to 3/4.
    paths = {"steep": counts([4, 0]), "flat": counts([2, 2]), "far": counts([2, 2], [3, 3])}
    found = frontier(np.array([1, 0]), paths, 4, "steep", draws=50)
    assert found.base == (1 / 8, 1 / 2)
    assert found.range == (1 / 8, 1 / 2)
    assert [s.area[0] for s in found.standings] == [1 / 2, 1, 1]
    assert [s.reach for s in found.standings] == [1 / 2, 1 / 2, 3 / 4]
    assert [s.free_gain[0] for s in found.standings] == [3 / 8, 3 / 8, 5 / 8]
    assert found.standings[2].points == [(1 / 2, 1), (3 / 4, 1)]
    assert [(g.name, g.minus, g.range, g.mean[0]) for g in found.gaps] == [
        ("flat", "steep", (1 / 8, 1 / 2), 1 / 2),
        ("far", "steep", (1 / 8, 1 / 2), 1 / 2),
    ]
    assert [[at[0] for at in g.at] for g in found.gaps] == [[1 / 2] * 3] * 2


def test_a_path_aside_does_not_narrow_the_range_and_counts_as_0_beyond_it():
    base, far = np.array([1, 0]), {"steep": counts([4, 0]), "flat": counts([2, 2])}
    for points, area in (([2, 0],), (0.5 + 10) / 32 / 2), (([0, 1], [0, 1]), 1 / 128):
        found = frontier(base, far | {"base": counts(*points)}, 4, "steep", 0.95, 50, ["base"])
        assert found.range == (1 / 8, 1 / 2)
        assert [s.area[0] for s in found.standings] == pytest.approx([1 / 2, 1, area])
        assert found.gaps[1].range == (1 / 8, found.standings[2].reach)


def test_estimates_are_of_all_questions_as_they_are():
    base, path = np.array([[1, 0, 2, 0, 3, 1, 0]]), np.array([[[4, 0, 1, 0, 3, 2, 1]]])
    found = frontier(base, {"a": path, "b": path + (path == 0)}, 4, "a", draws=50)
    assert found.base == (pytest.approx(base.mean() / 4), pytest.approx((base > 0).mean()))
    assert [s.name for s in found.standings] == ["a", "b"]
    assert found.standings[0].points == [
        (pytest.approx(path.mean() / 4), pytest.approx((path > 0).mean()))
    ]
    assert found.standings[0].reach == pytest.approx(path.mean() / 4)
    assert found.gaps[0].range == (pytest.approx(1 / 4), pytest.approx(path.mean() / 4))


def test_intervals_of_gaps_are_longer_where_there_are_more_rivals():
    rng = np.random.default_rng(3)
    base, run = drawn(rng, 1, 50)
    paths = {name: run() for name in "abc"}
    alone = frontier(base, {name: paths[name] for name in "ab"}, 16, "a", draws=400).gaps[0]
    among = frontier(base, paths, 16, "a", draws=400).gaps[0]
    pairs = zip([among.mean, *among.at], [alone.mean, *alone.at], strict=True)
    ratios = [(y[2] - y[0]) / (x[2] - x[0]) for y, x in pairs]
    assert ratios[0] > 1.02
    assert ratios == pytest.approx([ratios[0]] * 4)
    assert all(low < value < high for value, low, high in (among.mean, *among.at))


def test_a_gap_lies_between_minus_1_and_1():
    # Pass@1 1/16 both, Pass@16 1 against 1/3. The one solved question of three may be any or none.
    paths = {"all": np.array([[[1, 1, 1]]]), "one": np.array([[[3, 0, 0]]])}
    for reference, other, end in (("all", "one", 1), ("one", "all", 2)):
        found = frontier(np.zeros(3, int), paths, 16, reference, draws=200).gaps[0]
        assert found.name == other
        assert abs(found.mean[0]) == pytest.approx(2 / 3)
        assert [abs(value[end]) for value in (found.mean, *found.at)] == [1.0] * 4


def test_a_skewed_interval_has_each_end_by_its_own_side():
    how = _Resampling(1, 5, 101, 0.9)
    off = np.linspace(-0.1, 0.3, 101)
    values = [np.r_[value, value + off, np.full(101, value)] for value in (0.5, 0.05, 0.9)]
    # The deviations' quantiles at 5 % and 95 % are -0.08 and 0.28.
    want = [(0.5, 0.42, 0.78), (0.05, 0.0, 0.33), (0.9, 0.82, 1.0)]
    assert [how.skewed_interval(value) for value in values] == [pytest.approx(x) for x in want]


def test_gap_quantiles_are_of_the_range_of_the_two():
    # The reference falls on a line from (0, 1) to (1, 0.5); the other is kept at 1 up to 0.5.
    paths = {"a": np.array([[[4, 4, 0, 0]]]), "b": np.array([[[2, 2, 2, 2]]])}
    found = frontier(np.array([1, 1, 1, 1]), paths, 4, "a", draws=20)
    gap = found.gaps[0]
    assert gap.range == (1 / 4, 1 / 2)
    assert [at[0] for at in gap.at] == pytest.approx([1 / 8, 1 / 4, 3 / 8])
    assert gap.mean[0] == pytest.approx(1 / 4)


def test_a_path_that_never_rises_has_the_base_alone():
    base = np.array([2, 2])
    found = frontier(base, {"a": counts([1, 1]), "b": counts([3, 3])}, 4, "a", draws=20)
    assert found.range == (1 / 2, 1 / 2)
    assert found.gaps[0].range == (1 / 2, 1 / 2)
    assert found.gaps[0].mean == (0, 0, 0)


def drawn(rng, seeds, questions, gain=0.0, spread=0.5):
    """Right samples of 16 on a path of two points: the level of a run, and each question's own."""
    odds_Q = rng.normal(-2.0, 1.0, questions)

    def run():
        level_S1, own_SQ = rng.normal(0, spread, (seeds, 1)), rng.normal(0, 0.3, (seeds, questions))
        share_P11 = np.array([0.5, 1])[:, None, None]
        odds = odds_Q * (1 + 0.4 * share_P11) + (1.5 + gain + level_S1 + own_SQ) * share_P11
        return rng.binomial(16, 1 / (1 + np.exp(-odds)))

    return rng.binomial(16, 1 / (1 + np.exp(-odds_Q))), run


def test_all_methods_get_the_same_draws():
    base, run = drawn(np.random.default_rng(0), 3, 40)
    one = run()
    found = frontier(base, {"a": one, "b": one.copy(), "c": one.copy()}, 16, "a", draws=100)
    assert [gap.mean for gap in found.gaps] == [(0, 0, 0)] * 2
    assert {gap.verdict for gap in found.gaps} == {"tied"}


def test_a_method_that_is_above_is_called_so_both_ways():
    rng = np.random.default_rng(1)
    base, run = drawn(rng, 6, 100, spread=0.05)
    good = run()
    bad = np.where(rng.random((1, 1, 100)) < 0.4, 0, good * 1.5).clip(max=16).astype(int)
    for paths, verdict in (
        ({"bad": bad, "good": good}, "above"),
        ({"good": good, "bad": bad}, "below"),
    ):
        found = frontier(base, paths, 16, next(iter(paths)), draws=200)
        assert found.gaps[0].verdict == verdict


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_deviations_over_seeds_have_students_tails(seeds):
    # All questions alike: what is left is the mean of the seeds, whose interval is Student's.
    score = np.arange(1.0, seeds + 1).reshape(1, seeds, 1, 1) * np.ones((1, 1, 5, 2)) / 100
    how = _Resampling(seeds, 5, 20000, 0.95)
    _, low, high = how.interval(how.means(score)[:, 0, 1], least=-1e9)
    sem = np.arange(1, seeds + 1).std(ddof=1) / 100 / seeds**0.5
    want = 2 * stats.t.isf(0.025, seeds - 1) * sem
    assert min(high, 1.0) - low == pytest.approx(want, rel=0.06)


def test_resampled_questions_have_the_variance_of_the_mean():
    value_Q = np.array([0.0, 0.0, 1.0, 0.2, 0.7, 0.1])
    how = _Resampling(1, 6, 40000, 0.95)
    got = how.means(np.stack([value_Q, value_Q], -1)[None, None])[1:40001, 0, 0]
    assert got.std() == pytest.approx(value_Q.std(ddof=1) / 6**0.5, rel=0.02)


def test_stretch_is_that_of_the_largest_of_all_deviations():
    how, rng = _Resampling(1, 5, 40000, 0.95), np.random.default_rng(0)
    values = [np.r_[0, rng.normal(0, scale, 40000), np.zeros(40000)] for scale in (1, 2, 3, 4, 5)]
    # Of 5 independent ones each must hold with probability 0.95 ** (1 / 5).
    want = stats.norm.isf((1 - 0.95**0.2) / 2) / stats.norm.isf(0.025)
    assert how.stretch(values) == pytest.approx(want, rel=0.01)
    assert how.stretch([values[0], 3 * values[0]]) == pytest.approx(1.0)


@pytest.mark.parametrize(("rivals", "seeds"), [(1, 2), (1, 3), (4, 3)])
def test_equal_methods_are_seldom_told_apart(rivals, seeds):
    """Of 60 comparisons of equal methods 3 are expected to be told apart, by any of the rivals;
    with the normal distribution's tails it is 10 and more."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(60):
        base, run = drawn(rng, seeds, 60)
        paths = {str(i): run() for i in range(1 + rivals)}
        found = frontier(base, paths, 16, "0", draws=300)
        false += any(gap.verdict != "tied" for gap in found.gaps)
    assert false <= 6


@pytest.mark.parametrize(
    ("base", "paths", "message"),
    [
        ((1, 4), {"a": (2, 3, 4), "b": (2, 2, 4)}, r"\[2, 3\] seeds"),
        ((2, 4), {"a": (2, 3, 4)}, r"\[3\] seeds, the base 2"),
        ((1, 5), {"a": (2, 3, 4)}, "other questions"),
        ((1, 4), {"b": (2, 3, 4)}, "no path is called 'a'"),
    ],
)
def test_what_cannot_be_paired_is_refused(base, paths, message):
    with pytest.raises(ValueError, match=message):
        frontier(np.ones(base, int), {n: np.ones(s, int) for n, s in paths.items()}, 4, "a")


def test_no_gain_goes_beyond_all_of_pass_at_1():
    """Two seeds far apart: the intervals are wide, and Pass@1 is at most 1."""
    base, path = counts([2, 2])[0], np.array([[[4, 4], [3, 4]]])
    (standing,) = frontier(base, {"one": path}, 4, "one").standings
    value, low, high = standing.free_gain
    assert 0 <= low <= value <= high == 0.5


def test_without_a_shared_range_there_is_no_verdict():
    """The base and `flat` have Pass@1 1/4, `far` 1/2: at 1/4 alone there is nothing to compare."""
    base = np.array([1, 1, 1, 1])
    paths = {"flat": np.array([[[1, 1, 1, 1]]]), "far": np.array([[[2, 2, 2, 2]]])}
    for reference, other in (("flat", "far"), ("far", "flat")):
        (gap,) = frontier(base, paths, 4, reference, draws=20).gaps
        assert (gap.name, gap.range, gap.verdict) == (other, (1 / 4, 1 / 4), "no shared range")
    # Nor does it widen the intervals of the others.
    rng = np.random.default_rng(3)
    base, drawn_run = drawn(rng, 1, 50)
    two = {name: drawn_run() for name in "ab"}
    stuck = {"c": np.repeat(base[None, None] if base.ndim == 1 else base[None], 1, 0)}
    alone = frontier(base, two, 16, "a", draws=400).gaps[0]
    among = frontier(base, two | stuck, 16, "a", draws=400).gaps
    assert [gap.verdict for gap in among][1] == "no shared range"
    assert among[0].mean == pytest.approx(alone.mean)
