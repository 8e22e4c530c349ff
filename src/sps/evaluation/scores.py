"""What an evaluation found, and what is reported of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from sps.algo.diversity import Solutions, diversity, read_solutions
from sps.algo.passk import Counts, Interval, mean_interval, pass_at_k
from sps.errors import UserError
from sps.run.reading import read_json

MOST = 10**6  # samples a question


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
    solutions_Q: tuple[Solutions, ...] | None = None  # None: the task tells no solutions apart

    @property
    def counts(self) -> Counts:
        """Right samples of each question, and n."""
        return dict(zip(self.ids, self.correct_Q.tolist(), strict=True)), self.n

    def per_question(self, k: int) -> np.ndarray:
        """Pass@k of each question."""
        return pass_at_k(self.correct_Q, self.n, k)

    def report_ks(self) -> list[int]:
        """Powers of two up to n, and n."""
        return sorted({2**i for i in range(self.n.bit_length()) if 2**i <= self.n} | {self.n})

    def pass_at_k(self, k: int) -> Interval:
        """Mean over questions with its interval."""
        return mean_interval(self.per_question(k))

    def diversity(self) -> dict[str, Any]:
        """Distinct right solutions a question and PCMD; nothing where they are not told apart."""
        return {} if self.solutions_Q is None else diversity([self.solutions_Q])

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a record or a JSON file."""
        told: dict[str, Any] = self.diversity()
        if self.solutions_Q is not None:
            told["solutions"] = dict(zip(self.ids, map(list, self.solutions_Q), strict=True))
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
            "per_question": self.counts[0],
            **told,
        }


def for_record(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary as it is put on record: without what is kept in its file alone."""
    return {k: v for k, v in summary.items() if k not in ("per_question", "solutions")}


def other_questions(a: Scores, b: Scores) -> str:
    """What to say of two evaluations whose questions differ; empty where they are the same."""
    if a.ids == b.ids:
        return ""
    odd = ", ".join(sorted({*a.ids} ^ {*b.ids})[:3]) or "none, but in another order"
    return f"evaluated on different questions ({len(a.ids)} and {len(b.ids)}; not in both: {odd})"


def read_scores(summary: Any) -> Scores:
    """The inverse of Scores.summary; a ValueError where it is none."""
    try:
        per_question, greedy = summary["per_question"], summary["greedy_logprob"]
        found = Scores(
            tuple(per_question),
            np.array([int(count) for count in per_question.values()], dtype=np.int64),
            int(summary["n"]),
            {str(kind): int(count) for kind, count in summary["kinds"].items()},
            {str(word): int(count) for word, count in summary["details"].items()},
            float(summary["mean_logprob"]),
            float(summary["mean_length"]),
            None if greedy is None else float(greedy),
            read_solutions(summary.get("solutions"), per_question),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"they are no scores: {type(error).__name__} {error}") from None
    inside = (found.correct_Q >= 0) & (found.correct_Q <= found.n)
    if not found.ids or not 1 <= found.n <= MOST or not inside.all():
        raise ValueError("counts are out of range")
    return found


def load_scores(path: Path) -> Scores:
    """The scores in a file of evals/."""
    try:
        return read_scores(read_json(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove it, and its scores are made again where the "
            "weights are still there: from the samples beside it, or new ones where these are lost"
        ) from None


def count_scores(
    ids: list[str],
    n: int,
    rows: list[dict[str, Any]],
    greedy: float | None,
    solutions_Q: Sequence[Solutions] | None = None,
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
        # The same whatever the order in which samples came: a resumed evaluation has another.
        dict(sorted(Counter(row["verdict"] for row in rows).items())),
        dict(sorted(Counter(row["detail"] for row in rows).items())),
        fsum(row["sum_logprob"] for row in likely) / max(tokens, 1),
        sum(lengths) / max(len(lengths), 1),
        greedy,
        None if solutions_Q is None else tuple(solutions_Q),
    )


def best_step(scores: dict[int, Scores], saved: Container[int], last: int) -> int:
    """The step with the best Avg@n among those saved, the first of equals; `last` if none has."""
    found = {step: s.pass_at_k(1)[0] for step, s in scores.items() if step in saved}
    return max(found, key=lambda step: (found[step], -step), default=last)
