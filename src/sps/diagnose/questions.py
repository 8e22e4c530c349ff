"""What became of each question: accuracy buckets, questions gained and lost, Pass@k over seeds.

`correct` maps a question to its correct samples out of n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sps.algo.diversity import diversity
from sps.algo.passk import Counts, accuracy_buckets, mean_interval, pass_at_k, pass_rates
from sps.diagnose.read import Evaluation


def buckets(correct: Mapping[str, int], n: int) -> list[int]:
    """Questions by their share of correct samples."""
    return accuracy_buckets(np.array([*correct.values()], dtype=int), n)


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


def pass_curve(counts: Sequence[Counts], ks: Sequence[int] = ()) -> dict[int, list[float]]:
    """Pass@k with its interval for k = 1, 2, 4 ... n, or the given ks, over seeds and the questions
    that all of them answered."""
    shared = [q for q in counts[0][0] if all(q in correct for correct, _ in counts)]
    top = min(n for _, n in counts)
    ks = ks or sorted({2**i for i in range(top.bit_length()) if 2**i <= top} | {top})
    return {k: list(mean_interval(pass_rates(counts, shared, k))) for k in ks if shared}


def seeds_diversity(seeds: Sequence[Evaluation]) -> dict[str, Any]:
    """Distinct right solutions and PCMD of evaluations on the same questions, one a seed; nothing
    where not all tell solutions apart."""
    told = [e.solutions_Q for e in seeds if e.solutions_Q is not None]
    alike = len({(*e.correct, e.n) for e in seeds}) == 1
    return diversity(told) if alike and len(told) == len(seeds) else {}
