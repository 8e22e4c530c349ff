"""An evaluation as the product runs it, samples judged while others are drawn: what waits for what.

python -m bench.gpu_long eval:1.5b:12x128:512 draws and calls this. Tokens are random, so the texts
that are judged are the answers of bench/verify.py, half of them integers; decoding is left out.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.verify import samples
from sps.evaluation.evaluate import EvalJob, collect
from sps.rollout.texts import Ask, Written
from sps.store.evals import EvalStore
from sps.types import Problem, Sampling
from sps.verify.pool import VerifierPool

JUDGE = "sps.tasks.math.judge:make_judge"
# lengths, seed -> request, sample and tokens of each answer, as they finish
Draw = Callable[[np.ndarray, int], Iterator[tuple[int, int, int]]]


class Texts:
    """A TextEngine of drawn tokens and given answers."""

    def __init__(self, draw: Iterator[tuple[int, int, int]], answers: list[str], n: int) -> None:
        self.draw, self.answers, self.n = draw, answers, n
        self.began = time.perf_counter()
        self.away = self.last = 0.0  # seconds that drawing stood still, and until the last sample
        self.tokens, self.progress = 0, []

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> Iterator[Written]:
        """As they finish; ten lines of progress."""
        total, shown = sum(len(ask.samples) for ask in asks), 0
        for count, (index, sample, length) in enumerate(self.draw, 1):
            self.tokens += length
            now = time.perf_counter()
            if count * 10 // total > shown:
                shown = count * 10 // total
                self.progress.append((round(now - self.began, 2), count, self.tokens))
                print(
                    f"  {now - self.began:6.1f} s: {count} samples, {self.tokens} tokens",
                    flush=True,
                )
            text = self.answers[index * self.n + sample]
            yield Written(index, sample, text, length, True, 0.0)
            self.away += time.perf_counter() - now
        self.last = time.perf_counter() - self.began

    def close(self) -> None:
        """Nothing to give back."""


def evaluation(draw: Draw, length_PG: np.ndarray, seed: int) -> dict[str, Any]:
    """Seconds to the last sample and to the last verdict, and of verdicts with nothing beside."""
    groups, n = length_PG.shape
    made = samples(groups, n, 0.5, seed)
    problems = [Problem(str(i), "", made[i * n][0]) for i in range(groups)]
    answers = [text for _, text in made]
    task: Any = SimpleNamespace(prompt=lambda problem: "")
    with VerifierPool(JUDGE) as pool, tempfile.TemporaryDirectory() as folder:
        texts = Texts(draw(length_PG, seed), answers, n)
        store = EvalStore(Path(folder))
        rows = collect(texts, EvalJob(task, problems, Sampling(n, 1), pool, store))
        seconds = time.perf_counter() - texts.began
    kinds = dict(Counter(row["verdict"] for row in rows))
    assert len(rows) == groups * n, len(rows)
    return {
        "seconds": seconds,
        "last_sample": texts.last,
        "tokens": texts.tokens,
        "rate": texts.tokens / texts.last,
        "stood_still": texts.away,  # submitting, storing, and waiting for verdicts
        "after_last_sample": seconds - texts.last,
        "verdicts_alone": alone(problems, answers, n),
        "verdicts": kinds,
        "progress": texts.progress,
    }


def alone(problems: list[Problem], answers: list[str], n: int) -> float:
    """Seconds of a pool that has started, with nothing beside."""
    with VerifierPool(JUDGE) as pool:
        pool.submit(problems[0], "", True).result()
        began = time.perf_counter()
        waiting = [pool.submit(problems[i // n], text, True) for i, text in enumerate(answers)]
        for future in waiting:
            future.result()
        return time.perf_counter() - began
