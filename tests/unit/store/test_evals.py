"""The evaluation store and what is counted from it."""

from __future__ import annotations

import numpy as np
import pytest

from sps.evaluate.scores import count_scores, read_scores
from sps.store.evals import EvalStore


def row(problem: str, sample: int, verdict: str = "wrong") -> dict:
    return {
        "problem_id": problem,
        "sample": sample,
        "text": "1 + 1",
        "length": 4,
        "finished": True,
        "sum_logprob": -2.0,
        "verdict": verdict,
        "detail": verdict,
        "answer": "2",
    }


def test_eval_store_reads_back_what_it_flushed(tmp_path):
    store = EvalStore(tmp_path)
    store.append(row("a", 0))
    assert store.read() == []
    store.flush()
    again = EvalStore(tmp_path)  # a new process goes on in a new part
    again.append(row("a", 1, "correct"))
    again.flush()
    assert again.read() == [row("a", 0), row("a", 1, "correct")]
    assert len(list(tmp_path.glob("part-*.parquet"))) == 2


def test_scores_by_hand():
    rows = [row("a", s, "correct" if s < 1 else "wrong") for s in range(4)]
    rows += [row("b", s, "unparsed") for s in range(4)]
    scores = count_scores(["a", "b"], 4, rows, greedy=-3.5)
    assert scores.correct_Q.tolist() == [1, 0]
    # Pass@2 of a: 1 - C(3,2)/C(4,2) = 1/2; of b: 0.
    assert scores.per_question(2).tolist() == pytest.approx([0.5, 0.0])
    assert scores.pass_at_k(4)[0] == pytest.approx(0.5)
    assert scores.report_ks() == [1, 2, 4]
    assert scores.kinds == {"correct": 1, "wrong": 3, "unparsed": 4}
    assert scores.mean_logprob == pytest.approx(-0.5)  # 8 samples of -2 over 32 tokens
    assert scores.mean_length == 4


def test_scores_survive_their_summary():
    rows = [row("a", s, "correct") for s in range(3)]
    scores = count_scores(["a", "b"], 3, rows, greedy=-3.5)
    again = read_scores(scores.summary())
    assert again.summary() == scores.summary()
    assert np.array_equal(again.correct_Q, scores.correct_Q)
    assert again.report_ks() == [1, 2, 3]
