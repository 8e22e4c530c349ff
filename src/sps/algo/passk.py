"""Pass@k, its interval, and comparisons paired by question.

Axes: S seeds, Q questions. The question is the unit that is drawn: samples of one question are not
independent, so every interval is clustered by question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

Interval = tuple[float, float, float]  # mean, low, high
_ROUNDING = 1e-9  # shares that are this near are equal


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
    """Mean of values in [0, 1] over seeds and questions, with a Wilson interval.

    Wilson's formula with Student's t and the effective sample size mean * (1 - mean) / se**2: for
    one seed and values of 0 and 1 that is n - 1, so a little wider than Wilson's. It never leaves
    [0, 1].
    """
    value_SQ = np.atleast_2d(value_SQ)
    mean = float(value_SQ.mean())
    error, freedom = _standard_error(value_SQ)
    spread = mean * (1 - mean)
    size = spread / error**2 if error > 0 else float(value_SQ.shape[1])
    if size <= 0:
        size = float(value_SQ.shape[1])
    t = float(stats.t.ppf(0.5 + level / 2, freedom))
    centre = (mean + t * t / (2 * size)) / (1 + t * t / size)
    half = t / (1 + t * t / size) * np.sqrt(spread / size + t * t / (4 * size * size))
    return mean, max(0.0, float(centre - half)), min(1.0, float(centre + half))


@dataclass(frozen=True)
class Paired:
    """Difference b - a of two methods on the same questions."""

    delta: Interval
    verdict: str  # of b against a: 'better', 'worse' or 'tied'
    p: float  # two-sided


def paired(a_SQ: np.ndarray, b_SQ: np.ndarray, level: float = 0.95) -> Paired:
    """Compare by question (and by seed, where there are several): 'tied' unless 0 is outside."""
    diff_SQ = np.atleast_2d(b_SQ) - np.atleast_2d(a_SQ)
    mean = float(diff_SQ.mean())
    if diff_SQ.size < 2:  # nothing to estimate a spread from
        return Paired((mean, -1.0, 1.0), "tied", 1.0)
    if np.abs(diff_SQ).max() < _ROUNDING:
        return Paired((0.0, 0.0, 0.0), "tied", 1.0)
    error, freedom = _standard_error(diff_SQ)
    if error == 0:
        (low, high), p = _without_spread(diff_SQ, level)
    else:
        half = float(stats.t.ppf(0.5 + level / 2, freedom)) * error
        low, high, p = mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, freedom))
    verdict = "better" if low > 0 else "worse" if high < 0 else "tied"
    return Paired((mean, low, high), verdict, p)


def _without_spread(diff_SQ: np.ndarray, level: float) -> tuple[tuple[float, float], float]:
    """Interval and p of differences that do not vary: not certain, they are but a few.

    The differences, from [-1, 1] to [0, 1], as `mean_interval` has them: with the largest spread
    that their mean allows. p is of the score test whose interval that is.
    """
    mean, questions = float(diff_SQ.mean()), diff_SQ.shape[1]
    _, low, high = mean_interval(np.full((1, questions), (mean + 1) / 2), level)
    p = 2 * stats.t.sf(abs(mean) * np.sqrt(questions), max(questions - 1, 1))
    return (2 * low - 1, 2 * high - 1), float(p)


def _standard_error(value_SQ: np.ndarray) -> tuple[float, float]:
    """Standard error of the mean over questions and seeds, and its degrees of freedom.

    Questions and seeds are crossed: the variances of question means and of seed means add up (a
    little too much, which is the safe side); Satterthwaite's formula gives the freedom.
    """
    seeds, questions = value_SQ.shape
    parts = []
    if questions > 1:
        parts.append((value_SQ.mean(0).var(ddof=1) / questions, questions - 1))
    if seeds > 1:
        parts.append((value_SQ.mean(1).var(ddof=1) / seeds, seeds - 1))
    total = sum(variance for variance, _ in parts)
    if total < _ROUNDING**2:
        return 0.0, max(questions - 1, 1)
    freedom = total**2 / sum(variance**2 / free for variance, free in parts)
    return float(np.sqrt(total)), float(freedom)
