"""What became of each question: accuracy buckets, questions gained and lost, Pass@k over training.

Axes: Q questions. `correct` maps a question to its correct samples out of n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sps.algo.passk import mean_interval, pass_at_k

BUCKETS = ("0", *(f"{i / 10:.1f}-{(i + 1) / 10:.1f}" for i in range(10)))


def accuracy_buckets(correct: Mapping[str, int], n: int) -> list[int]:
    """Questions by share of correct samples: none, then (0, 0.1], (0.1, 0.2] ... (0.9, 1]."""
    counts = [0] * len(BUCKETS)
    for value in correct.values():
        counts[-(-10 * value // n)] += 1  # exact: ceil of 10 * share, without floating point
    return counts


def gained_and_lost(
    before: Mapping[str, int], n_before: int, after: Mapping[str, int], n_after: int
) -> dict[str, Any]:
    """Questions solved at least once after but never before, and the other way round.

    With unequal n the larger evaluation has more chances to solve a question, so the expected
    numbers of questions solved in min(n) draws stand beside the plain counts.
    """
    shared = [q for q in before if q in after]
    gained = [q for q in shared if not before[q] and after[q]]
    lost = [q for q in shared if before[q] and not after[q]]
    k = min(n_before, n_after)
    was, now = (
        pass_at_k(np.array([c[q] for q in shared], dtype=int), n, k) if shared else np.zeros(0)
        for c, n in ((before, n_before), (after, n_after))
    )
    return {
        "questions": len(shared),
        "k": k,
        "gained": gained,
        "lost": lost,
        "kept": sum(bool(before[q] and after[q]) for q in shared),
        "never": sum(not before[q] and not after[q] for q in shared),
        "solved_before": float(was.sum()),
        "solved_after": float(now.sum()),
    }


def pass_curve(correct: Mapping[str, int], n: int) -> dict[str, list[float]]:
    """Pass@k with its interval for k = 1, 2, 4 ... n."""
    counts_Q = np.array(list(correct.values()), dtype=int)
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    return {str(k): list(mean_interval(pass_at_k(counts_Q, n, k))) for k in ks}


def upper_bound(evaluations: Sequence[tuple[Mapping[str, int], int]]) -> dict[str, Any]:
    """Union over checkpoints of the questions each solved at least once, as the checkpoints add up.

    The union draws more samples than any one checkpoint, so it is compared with the union's own
    budget in mind: `samples` is how many were drawn a question.
    """
    solved: set[str] = set()
    questions: set[str] = set()
    growth, each, samples = [], [], 0
    for correct, n in evaluations:
        own = {q for q, c in correct.items() if c}
        questions |= set(correct)
        solved |= own
        samples += n
        each.append(len(own))
        growth.append(len(solved))
    return {
        "questions": len(questions),
        "each": each,
        "union": growth,
        "samples": samples,
        "rate": list(mean_interval(np.array([float(q in solved) for q in sorted(questions)])))
        if questions
        else None,
    }
