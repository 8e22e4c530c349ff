"""Which method keeps more Pass@k at equal Pass@1, wherever either of them is stopped.

Axes: P points of a path, S seeds, Q questions, R rows of resampling, G grid; the last axis of a
path is Pass@1 (x) and Pass@k (y). A method is a path in that plane: means over seeds and questions
at several steps, strengths or temperatures, in their order, from the base on. The rules are fixed
here, before any scores are seen:

- Envelope: the best Pass@k of a path at a Pass@1 of at least x. Between neighbouring points a path
  is a straight line, since training passes through what lies between two checkpoints; a staircase
  would favour the method that was evaluated more often.
- Range of several methods: from the base's Pass@1 to the smallest of their largest Pass@1.
- Area: mean of the envelope over the range of all methods. A path that is told to stand aside, as
  the base's own through temperatures, does not narrow it, and counts as 0 where it does not reach.
- Gap: mean difference of two envelopes over the range of the two; the verdict is on it. Gaps at
  `QUANTILES` of that range say where.
  Where one of the two never gets above the base's Pass@1 they share no range, and no verdict.
  Means over a range are by the trapezoid rule, of 32 equal parts.
- Area of trials (`areas`): the same mean over one range for all settings of all methods, up to the
  smallest over methods of the largest Pass@1 that any of its settings reaches. Where a setting does
  not reach, it counts as 0: one that learns nothing neither narrows the range nor wins.
- Free gain: by how much the largest Pass@1 of a path where Pass@k is not below the base's exceeds
  the base's Pass@1.

Intervals resample questions and seeds, the same ones for all methods; that they cover is shown by
simulation (`bench/frontier_coverage.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sps.algo.passk import Interval, pass_at_k

QUANTILES = (0.25, 0.5, 0.75)  # of a range, where gaps are reported
_GRID = np.linspace(0, 1, 33)
_WEIGHT = np.array([0.5, *[1.0] * 31, 0.5]) / 32
_AT = [round(32 * q) for q in QUANTILES]
_TINY = 1e-15
_WIDTH = 1e-9  # the least width of a range: what is below it is rounding
NO_RANGE = "no shared range"  # the verdict where there can be none


@dataclass(frozen=True)
class Standing:
    """One method by itself."""

    name: str
    points: list[tuple[float, float]]  # Pass@1 and Pass@k in the order of the path, base left out
    area: Interval  # mean Pass@k of the envelope over the range of all methods
    free_gain: Interval  # of Pass@1 over the base's, as long as Pass@k is not below the base's
    reach: float  # largest Pass@1


@dataclass(frozen=True)
class Gap:
    """A method's envelope minus the reference's; the intervals hold for all rivals at once."""

    name: str
    minus: str
    range: tuple[float, float]  # of Pass@1
    mean: Interval
    at: list[Interval]  # at `QUANTILES` of the range
    verdict: str  # on the mean: 'above', 'below' or 'tied'; or NO_RANGE


@dataclass(frozen=True)
class Frontier:
    """Every method's standing, and its gap to the reference."""

    k: int
    base: tuple[float, float]  # Pass@1 and Pass@k
    range: tuple[float, float]  # of Pass@1, of all methods
    standings: list[Standing]
    gaps: list[Gap]


def frontier(
    base_SQ: np.ndarray,
    paths: Mapping[str, np.ndarray],
    n: int,
    reference: str,
    level: float = 0.95,
    draws: int = 2000,
    aside: Collection[str] = (),
) -> Frontier:
    """Compare paths of correct counts [P, S, Q] out of n, on the questions of the base [S, Q].

    Those `aside` do not narrow the range of all. Seeds are paired by their place; one seed of the
    base is the base. With one seed a path, the intervals are of these trained models alone.
    """
    base_SQ = np.atleast_2d(base_SQ)
    how = _Resampling(_seeds(base_SQ, paths, reference), base_SQ.shape[1], draws, level)
    base_R2 = how.means(_scores(base_SQ[None], n))[:, 0]
    xy = {name: how.path(base_R2, _scores(path, n)) for name, path in paths.items()}
    reaches = [_reach(path) for name, path in xy.items() if name not in aside]
    low_R, high_R = base_R2[:, 0], np.minimum.reduce(reaches)
    standings = [
        Standing(
            name,
            [(float(x), float(y)) for x, y in path[0, 1:]],
            how.interval(np.maximum(_over_range(path, low_R, high_R), 0.0) @ _WEIGHT),
            _at_most(1 - float(low_R[0]), how.skewed_interval(highest_kept(path) - low_R)),
            float(_reach(path)[0]),
        )
        for name, path in xy.items()
    ]
    base = (float(base_R2[0, 0]), float(base_R2[0, 1]))
    gaps = _gaps(xy, low_R, reference, how)
    return Frontier(n, base, (base[0], float(high_R[0])), standings, gaps)


def _at_most(most: float, interval: Interval) -> Interval:
    value, low, high = interval
    return value, low, min(high, most)


def areas(
    base_SQ: np.ndarray,
    trials: Mapping[str, Mapping[str, np.ndarray]],
    n: int,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[tuple[float, float], dict[str, dict[str, Interval]]]:
    """The range of Pass@1 and the area of each path, for several settings of several methods;
    paths as in `frontier`."""
    base_SQ = np.atleast_2d(base_SQ)
    flat = {f"{m} {t}": path for m, own in trials.items() for t, path in own.items()}
    how = _Resampling(_seeds(base_SQ, flat, next(iter(flat))), base_SQ.shape[1], draws, level)
    base_R2 = how.means(_scores(base_SQ[None], n))[:, 0]
    xy = {
        method: {trial: how.path(base_R2, _scores(path, n)) for trial, path in own.items()}
        for method, own in trials.items()
    }
    best = [np.maximum.reduce([_reach(path) for path in own.values()]) for own in xy.values()]
    low_R, high_R = base_R2[:, 0], np.minimum.reduce(best)
    found = {
        method: {
            trial: how.interval(np.maximum(_over_range(path, low_R, high_R), 0.0) @ _WEIGHT)
            for trial, path in own.items()
        }
        for method, own in xy.items()
    }
    return (float(low_R[0]), float(high_R[0])), found


def envelope(path: np.ndarray, at_RG: np.ndarray) -> np.ndarray:
    """Best y of each path [R, P, 2] at an x of at least `at`; -inf beyond its largest x."""
    best_RG = np.full(at_RG.shape, -np.inf)
    x_PR1, y_PR1 = path.transpose(2, 1, 0)[..., None]
    for i, (x, y) in enumerate(zip(x_PR1, y_PR1, strict=True)):
        np.maximum(best_RG, np.where(x >= at_RG, y, -np.inf), out=best_RG)
        if i:
            before, was = x_PR1[i - 1], y_PR1[i - 1]
            share_RG = (at_RG - before) / np.where(x == before, np.inf, x - before)
            between = (share_RG > 0) & (share_RG < 1)
            line_RG = np.where(between, was + share_RG * (y - was), -np.inf)
            np.maximum(best_RG, line_RG, out=best_RG)
    return best_RG


def highest_kept(path: np.ndarray) -> np.ndarray:
    """Largest x of each path [R, P, 2] where y is not below that of its first point: the envelope
    of the plane with its axes swapped."""
    return envelope(path[..., ::-1], path[:, :1, 1])[:, 0]


def _gaps(
    xy: Mapping[str, np.ndarray], low_R: np.ndarray, reference: str, how: _Resampling
) -> list[Gap]:
    """Each method against the reference, all at once."""
    diffs, ranges = {}, {}
    for name in (name for name in xy if name != reference):
        high_R = np.minimum(_reach(xy[name]), _reach(xy[reference]))
        ranges[name] = (float(low_R[0]), float(high_R[0]))
        ours, other = (_over_range(xy[one], low_R, high_R) for one in (name, reference))
        diffs[name] = ours - other
    wide = [name for name, (low, high) in ranges.items() if high - low > _WIDTH]
    stretch = how.stretch([diffs[name] @ _WEIGHT for name in wide])
    found = []
    for name, diff_RG in diffs.items():
        mean = how.interval(diff_RG @ _WEIGHT, -1.0, stretch)
        at = [how.interval(diff_RG[:, i], -1.0, stretch) for i in _AT]
        verdict = "above" if mean[1] > 0 else "below" if mean[2] < 0 else "tied"
        verdict = verdict if name in wide else NO_RANGE
        found.append(Gap(name, reference, ranges[name], mean, at, verdict))
    return found


def _over_range(path: np.ndarray, low_R: np.ndarray, high_R: np.ndarray) -> np.ndarray:
    at_RG = low_R[:, None] + (high_R - low_R)[:, None] * _GRID
    return envelope(path, np.minimum(at_RG, high_R[:, None]))  # not an ulp beyond the path


def _reach(path: np.ndarray) -> np.ndarray:
    """Largest Pass@1 of each path; never below the base's, where it begins."""
    return path[..., 0].max(1)


def _scores(correct: np.ndarray, n: int) -> np.ndarray:
    """Pass@1 and Pass@n of counts."""
    table_N2 = np.stack([pass_at_k(np.arange(n + 1), n, k) for k in (1, n)], -1)
    return table_N2[correct]


def _seeds(base_SQ: np.ndarray, paths: Mapping[str, np.ndarray], reference: str) -> int:
    """The number of seeds that all paths have."""
    if reference not in paths:
        raise ValueError(f"no path is called {reference!r}")
    seeds = {path.shape[1] for path in paths.values()}
    if len(seeds) > 1 or len(base_SQ) not in (1, *seeds):
        raise ValueError(f"paths have {sorted(seeds)} seeds, the base {len(base_SQ)}")
    if any(path.shape[2] != base_SQ.shape[1] for path in paths.values()):
        raise ValueError("paths were evaluated on other questions than the base")
    return seeds.pop()


class _Resampling:
    """Rows of means: the estimate, then means over resampled questions, then over resampled seeds.

    Questions are drawn with replacement. Of two seeds there are only three such draws, so the
    deviations of seeds get Gaussian weights of the same variance instead. And because few seeds
    know their own variance badly, each deviation is divided by the root of a chi-square over its
    degrees of freedom: Student's tails. Without that two seeds cover 70 % of the time.
    """

    def __init__(self, seeds: int, questions: int, draws: int, level: float) -> None:
        self.rng = np.random.default_rng(0)
        self.level, self.draws, self.freedom = level, draws, seeds - 1
        drawn_RQ = self.rng.multinomial(questions, np.full(questions, 1 / questions), draws)
        # Stretched: a mean of resampled values has 1 - 1/Q of the variance of the mean.
        stretch = np.sqrt(questions / max(questions - 1, 1))
        self.weight_RQ = (1 + stretch * (drawn_RQ - 1)) / questions
        self.weight_RS = self.rng.standard_normal((draws, seeds))

    def means(self, score: np.ndarray) -> np.ndarray:
        """Of scores [P, S, Q, 2], as [R, P, 2]."""
        points, seeds, questions, _ = score.shape
        mean_P2 = score.mean((1, 2))
        flat_Q = score.mean(1).transpose(1, 0, 2).reshape(questions, -1)
        by_question = (self.weight_RQ @ flat_Q).reshape(-1, points, 2)
        by_seed = np.repeat(mean_P2[None], self.draws, 0)
        if seeds > 1:
            off_SP2 = (score.mean(2) - mean_P2[:, None]).swapaxes(0, 1)
            scale = np.sqrt(seeds * (seeds - 1))
            by_seed += np.tensordot(self.weight_RS, off_SP2 / scale, 1)
        return np.concatenate([mean_P2[None], by_question, by_seed])

    def path(self, base_R2: np.ndarray, score: np.ndarray) -> np.ndarray:
        """A path's points, the base first."""
        return np.concatenate([base_R2[:, None], self.means(score)], axis=1)

    def interval(self, value_R: np.ndarray, least: float = 0.0, stretch: float = 1.0) -> Interval:
        """Of a statistic in [least, 1]. Symmetric: a maximum over noisy points is biased upwards,
        and in resamples once more."""
        off = stretch * np.quantile(np.abs(self._deviations(value_R)), self.level)
        return _clipped(value_R[0], -off, off, least)

    def skewed_interval(self, value_R: np.ndarray) -> Interval:
        """Each end by the deviations on its side: a gain may be 0 and not less."""
        tail = (1 - self.level) / 2
        low, high = np.quantile(self._deviations(value_R), (tail, 1 - tail))
        return _clipped(value_R[0], low, high)

    def stretch(self, values: Sequence[np.ndarray]) -> float:
        """By how much intervals must be longer to hold all at once: the quantile of the largest
        deviation, each in units of its own interval. It is max-t; unlike Bonferroni's rule it uses
        that rivals share questions, seeds and the reference."""
        if len(values) < 2:
            return 1.0
        off = np.abs([self._deviations(value_R) for value_R in values])
        own = np.maximum(np.quantile(off, self.level, axis=1, keepdims=True), _TINY)
        return float(np.quantile((off / own).max(0), self.level))

    def _deviations(self, value_R: np.ndarray) -> np.ndarray:
        """Of a statistic from its estimate: those over questions plus those over seeds."""
        by_question, by_seed = (value_R[1:] - value_R[0]).reshape(2, -1)
        if not self.freedom:
            return by_question
        # Drawn anew for each statistic: each has a variance of its own.
        chi = self.rng.chisquare(self.freedom, self.draws) / self.freedom
        return by_question + by_seed / np.sqrt(chi)


def _clipped(value: float, low: float, high: float, least: float = 0.0) -> Interval:
    return float(value), float(max(value + low, least)), float(min(value + high, 1.0))
