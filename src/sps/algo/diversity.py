"""How many different solutions the right samples of a question are. A mode is what `Task.mode`
says: equal for equal solutions, None where a task does not tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sps.algo.passk import mean_interval

Solutions = Sequence[int]  # of a question: right samples of each distinct solution


def solutions(modes: Iterable[Hashable]) -> tuple[int, ...]:
    """How many right samples of a question each distinct solution has, the commonest first."""
    return tuple(sorted(Counter(modes).values(), reverse=True))


def pcmd(counts: Solutions) -> float | None:
    """Pairwise diversity of correct modes: the chance that two of the n right samples of a
    question, drawn without replacement, are different solutions; None where n < 2.

    1 - sum over solutions m of n_m (n_m - 1) / (n (n - 1)): unbiased for two new right samples, so
    it does not rise with n, as the number of distinct solutions does.
    """
    n = sum(counts)
    if n < 2:
        return None
    return 1 - sum(count * (count - 1) for count in counts) / (n * (n - 1))


def diversity(counts_SQ: Sequence[Sequence[Solutions]]) -> dict[str, Any]:
    """Means over seeds S and questions Q, as [mean, low, high].

    distinct: right solutions a question. Its interval takes the most that any question has for the
    most there can be: with the number of samples it would be far too wide. pcmd: over the questions
    of which every seed has two right samples, `pcmd_questions` in number; None where there is none.
    """
    distinct_SQ = np.array([[len(counts) for counts in counts_Q] for counts_Q in counts_SQ])
    most = max(1, int(distinct_SQ.max()))
    pairs_QS = zip(*([pcmd(counts) for counts in counts_Q] for counts_Q in counts_SQ), strict=True)
    known_QS = [pair_S for pair_S in pairs_QS if None not in pair_S]
    return {
        "distinct": [most * value for value in mean_interval(distinct_SQ / most)],
        "pcmd": list(mean_interval(np.array(known_QS, dtype=float).T)) if known_QS else None,
        "pcmd_questions": len(known_QS),
    }


def read_solutions(found: Any, per_question: Mapping[str, Any]) -> tuple[Solutions, ...] | None:
    """Those of each question, as an evaluation's summary holds them; None where it has none."""
    if found is None:
        return None
    counts_Q = tuple(tuple(int(count) for count in found[q]) for q in per_question)
    for counts, right in zip(counts_Q, per_question.values(), strict=True):
        if sum(counts) != int(right) or min(counts, default=1) < 1:
            raise ValueError("solutions are not as many as right samples")
    return counts_Q
