"""Pass@k, its interval, and comparisons paired by question.

Axes: S seeds, Q questions. The question is the unit that is drawn: samples of one question are not
independent, so every interval is clustered by question. That the intervals cover is shown by
simulation (`bench/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

Interval = tuple[float, float, float]  # mean, low, high
Counts = tuple[Mapping[str, int], int]  # right samples of each question, out of n
Parts = list[tuple[np.ndarray, int]]  # variances of a mean, with their degrees of freedom
# Weight of an unseen question. 1 is Gaffke's; with less than 0.7 the coverage of a rate near 0 or 1
# falls below 93 %.
_UNSEEN = 0.75
_TINY = 1e-15
BUCKETS = ("0", "0-25", "25-50", "50-75", "75-100", "100")  # per cent of a question's samples


def pass_at_k(correct_Q: np.ndarray, n_Q: np.ndarray | int, k: int) -> np.ndarray:
    """Unbiased Pass@k of each question: 1 - C(n - c, k) / C(n, k), the chance that k of the n drawn
    without replacement hold a correct one."""
    correct_Q, n_Q = np.asarray(correct_Q), np.broadcast_to(n_Q, np.shape(correct_Q))
    if k < 1 or (n_Q < k).any():
        raise ValueError(f"Pass@{k} needs k from 1 to the number of samples ({n_Q.min()})")
    step_QK = np.arange(k)
    left_QK = (n_Q - correct_Q)[..., None] - step_QK
    miss_QK = np.clip(left_QK, 0, None) / (n_Q[..., None] - step_QK)
    return 1 - miss_QK.prod(-1)


def mean_interval(value_SQ: np.ndarray, level: float = 0.95) -> Interval:
    """Mean of scores in [0, 1] over seeds and questions, with its confidence interval.

    With one seed the interval is of this trained model's mean over all questions of the kind that
    was asked. With several it is of the method's: over all such questions and all seeds.
    """
    value_SQ = np.atleast_2d(value_SQ)
    low, high = bounds(value_SQ.mean(-2), seed_parts(value_SQ), (1 - level) / 2)
    return float(value_SQ.mean()), float(low), float(high)


def accuracy_buckets(correct_Q: np.ndarray, n: int) -> list[int]:
    """Questions by the share of their samples that are correct; none and all stand alone."""
    inner_Q = np.clip(-(-4 * correct_Q // n), 1, 4)  # exact: 25 % is in 0-25, 26 % in 25-50
    place_Q = np.where(correct_Q == 0, 0, np.where(correct_Q == n, 5, inner_Q))
    return np.bincount(place_Q, minlength=len(BUCKETS)).tolist()


@dataclass(frozen=True)
class Paired:
    """Difference b - a of two methods on the same questions."""

    delta: Interval
    verdict: str  # of b against a: 'better', 'worse' or 'tied'
    p: float  # two-sided; 1e-12 also stands for less


def paired(a_SQ: np.ndarray, b_SQ: np.ndarray, level: float = 0.95) -> Paired:
    """Compare by question (and by seed, where there are as many): 'tied' unless 0 is outside.

    A method with one seed is taken as that one trained model: the interval says nothing of others.
    """
    a_SQ, b_SQ = np.atleast_2d(a_SQ), np.atleast_2d(b_SQ)
    diff_Q = b_SQ.mean(0) - a_SQ.mean(0)
    share_Q = (1 + diff_Q) / 2  # from [-1, 1] to [0, 1]; 1/2 is no difference
    if 1 in (len(a_SQ), len(b_SQ)) or len(a_SQ) == len(b_SQ):
        parts = seed_parts((b_SQ - a_SQ) / 2)
    else:  # not pairs of seeds: each method has a variance of its own
        parts = seed_parts(a_SQ / 2) + seed_parts(b_SQ / 2)
    low, high = (float(2 * end - 1) for end in bounds(share_Q, parts, (1 - level) / 2))
    verdict = "better" if low > 0 else "worse" if high < 0 else "tied"
    return Paired((float(diff_Q.mean()), low, high), verdict, _p_value(share_Q, parts))


def pass_rates(counts: Sequence[Counts], questions: Sequence[str], k: int) -> np.ndarray:
    """Pass@k of each seed and question."""
    return np.stack([pass_at_k(np.array([c[q] for q in questions]), n, k) for c, n in counts])


def paired_rows(
    a: Sequence[Counts], b: Sequence[Counts], ks: Iterable[int] = ()
) -> list[dict[str, Any]]:
    """b - a in Pass@k on the questions that all seeds of both answered, for each k that they have
    samples for; left out: 1, 8, 32 and the largest."""
    shared = [q for q in a[0][0] if all(q in c for c, _ in [*a, *b])]
    top = min(n for _, n in [*a, *b])
    rows = []
    for k in ks or sorted({1, min(8, top), min(32, top), top}):
        if shared and k <= top:
            found = paired(pass_rates(a, shared, k), pass_rates(b, shared, k))
            row = {"k": k, "delta": list(found.delta), "verdict": found.verdict, "p": found.p}
            rows.append(row)
    return rows


def seed_parts(value_SQ: np.ndarray) -> Parts:
    """Variance of the mean that is due to seeds, and its degrees of freedom; nothing for one seed.

    It includes noise that the spread of the questions includes as well. Subtracting that would be
    right on average, but coverage with two seeds would fall to 87 %.
    """
    seeds = value_SQ.shape[-2]
    return [(value_SQ.mean(-1).var(-1, ddof=1) / seeds, seeds - 1)] if seeds > 1 else []


def bounds(value_Q: np.ndarray, parts: Parts, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Both bounds of the mean of scores in [0, 1]; each is to be missed with probability `tail`.

    Axes before the questions are repetitions.
    """
    return 1 - _upper(1 - value_Q, parts, tail), _upper(value_Q, parts, tail)


def _upper(value_Q: np.ndarray, parts: Parts, tail: float) -> np.ndarray:
    """Distances of the mean to the bounds over questions and over seeds, added in quadrature.

    Each has its own distribution. A sum of variances with Satterthwaite's degrees of freedom is too
    sure of itself whenever two or three seeds happen to agree.
    """
    mean = value_Q.mean(-1)
    reach = _over_questions(value_Q, tail) - mean
    for variance, freedom in parts:
        reach = np.hypot(reach, _over_seeds(mean, variance, freedom, tail) - mean)
    return np.minimum(mean + reach, 1.0)


def _over_seeds(mean: np.ndarray, variance: np.ndarray, freedom: int, tail: float) -> np.ndarray:
    """Wilson's bound with Student's t: the variance goes to 0 at both ends of [0, 1]."""
    spread = np.maximum(mean * (1 - mean), _TINY)
    ratio = stats.t.isf(tail, freedom) ** 2 * variance / spread
    return (mean + ratio / 2 + np.sqrt(ratio * spread + ratio**2 / 4)) / (1 + ratio)


def _over_questions(value_Q: np.ndarray, tail: float) -> np.ndarray:
    """Upper bound of the mean over all questions, whatever their distribution on [0, 1].

    Gaffke's bound (2005; see also arXiv 1905.06208): the quantile of the mean under random weights,
    from a flat Dirichlet distribution, of the questions and one unseen question with score 1. Of
    scores 0 and 1 it is Clopper and Pearson's. Here the unseen question has the weight `_UNSEEN`.
    """
    gap_Q = 1 - value_Q
    low = np.full(gap_Q.shape[:-1], np.log(_TINY))
    high = np.full(gap_Q.shape[:-1], np.log(1e3 * gap_Q.shape[-1]))
    limit = stats.norm.isf(tail)
    for _ in range(20):  # to 5e-5 of the distance to the mean
        middle = (low + high) / 2
        beyond = _tilted(gap_Q, np.exp(middle))[1] > limit
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return 1 - _tilted(gap_Q, np.exp(low))[0]


def _tilted(gap_Q: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean gap to the score 1 under weights tilted by 1 / (room + gap), and the normal deviate of a
    random mean gap below it: a saddlepoint approximation (Barndorff-Nielsen's r*)."""
    weight_Q = 1 / (room[..., None] + gap_Q)
    mean = (gap_Q * weight_Q).sum(-1) / (weight_Q.sum(-1) + _UNSEEN / room)
    off_Q = gap_Q - mean[..., None]
    scale = 1 / (room + mean)
    # log1p: with much room, logs of the weights themselves would cancel out.
    logs = np.log1p(off_Q * scale[..., None]).sum(-1) + _UNSEEN * np.log1p(-mean * scale)
    curve = ((off_Q * weight_Q) ** 2).sum(-1) + _UNSEEN * (mean / room) ** 2
    r, u = (np.sqrt(np.maximum(x, _TINY)) for x in (2 * logs, curve))
    return mean, r + np.log(u / r) / r


def _p_value(share_Q: np.ndarray, parts: Parts) -> float:
    """Twice the tail at which the interval begins to hold 1/2, no difference."""
    if share_Q.mean() > 0.5:
        share_Q = 1 - share_Q

    def beyond(log_tail: float) -> float:
        return float(_upper(share_Q, parts, np.exp(log_tail))) - 0.5

    least, most = np.log(0.5e-12), np.log(0.5)
    if beyond(most) >= 0:
        return 1.0
    if beyond(least) <= 0:
        return 1e-12
    return float(2 * np.exp(optimize.brentq(beyond, least, most, xtol=1e-6)))
