"""What an evaluation found, and what is reported of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np

from sps.algo.passk import Interval, mean_interval, pass_at_k


@dataclass(frozen=True)
class Scores:
    """Correct samples of each question, out of n."""

    ids: tuple[str, ...]  # of the questions
    correct_Q: np.ndarray  # int
    n: int
    kinds: dict[str, int]  # verdicts by kind
    details: dict[str, int]  # and by the task's own word
    mean_logprob: float  # per sampled token
    mean_length: float
    greedy_logprob: float | None = None  # mean log-probability of greedy trajectories

    def per_question(self, k: int) -> np.ndarray:
        """Pass@k of each question."""
        return pass_at_k(self.correct_Q, self.n, k)

    def report_ks(self) -> list[int]:
        """Powers of two up to n, and n."""
        return sorted({2**i for i in range(self.n.bit_length()) if 2**i <= self.n} | {self.n})

    def pass_at_k(self, k: int) -> Interval:
        """Mean over questions with its interval."""
        return mean_interval(self.per_question(k))

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a record or a JSON file."""
        return {
            "n": self.n,
            "questions": len(self.ids),
            "pass_at_k": {str(k): list(self.pass_at_k(k)) for k in self.report_ks()},
            "avg": list(self.pass_at_k(1)),
            "kinds": self.kinds,
            "details": self.details,
            "mean_logprob": self.mean_logprob,
            "mean_length": self.mean_length,
            "greedy_logprob": self.greedy_logprob,
            "per_question": dict(zip(self.ids, self.correct_Q.tolist(), strict=True)),
        }


def read_scores(summary: dict[str, Any]) -> Scores:
    """The inverse of Scores.summary."""
    per_question = summary["per_question"]
    return Scores(
        tuple(per_question),
        np.array(list(per_question.values())),
        summary["n"],
        summary["kinds"],
        summary["details"],
        summary["mean_logprob"],
        summary["mean_length"],
        summary["greedy_logprob"],
    )


def count_scores(
    ids: list[str], n: int, rows: list[dict[str, Any]], greedy: float | None
) -> Scores:
    """Scores from judged samples, one dict a sample."""
    place = {name: i for i, name in enumerate(ids)}
    correct_Q = np.zeros(len(ids), dtype=np.int64)
    for row in rows:
        correct_Q[place[row["problem_id"]]] += row["verdict"] == "correct"
    # An endpoint may not give lengths or log-probabilities: such samples are not in the means.
    lengths = [row["length"] for row in rows if row["length"] is not None]
    likely = [r for r in rows if r["sum_logprob"] is not None and r["length"]]
    tokens = sum(row["length"] for row in likely)
    return Scores(
        tuple(ids),
        correct_Q,
        n,
        dict(Counter(row["verdict"] for row in rows)),
        dict(Counter(row["detail"] for row in rows)),
        sum(row["sum_logprob"] for row in likely) / max(tokens, 1),
        sum(lengths) / max(len(lengths), 1),
        greedy,
    )


def best_step(scores: dict[int, Scores], saved: Container[int], last: int) -> int:
    """The step with the best Avg@n among those saved, the first of equals; `last` if none has."""
    found = {step: s.pass_at_k(1)[0] for step, s in scores.items() if step in saved}
    return max(found, key=lambda step: (found[step], -step), default=last)
