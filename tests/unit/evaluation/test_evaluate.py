"""Evaluation: every sample judged once, and none drawn again that is stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sps.evaluation.evaluate import EvalJob, count_solutions, evaluate
from sps.evaluation.scores import read_scores
from sps.store.evals import EvalStore
from sps.tasks.countdown import Countdown
from sps.types import Completion, Problem, Sampling
from sps.verify import InlineVerifier

PROBLEMS = [
    Problem("a", "1 2 -> 3 :", "3", {"numbers": (1, 2), "target": 3}),
    Problem("b", "2 2 -> 4 :", "4", {"numbers": (2, 2), "target": 4}),
]
RIGHT = {"a": "1 + 2 = 3 .", "b": "2 + 2 = 4 ."}


class ScriptedEngine:
    """Answers right on the samples it is told to; counts what it was asked for."""

    def __init__(self, policy, right):
        self.policy, self.right, self.asked = policy, right, []

    def generate(self, requests, sampling):
        for r in requests:
            for sample in r.samples:
                name = PROBLEMS[r.index].id
                if sampling.temperature:
                    self.asked.append((name, sample))
                right = sample in self.right[name]
                ids = self.policy.encode(RIGHT[name] if right else "1 - 1 = 0 .")
                logprobs = np.full(len(ids), -0.5, dtype=np.float32)
                yield Completion(r.index, sample, np.array(ids, np.int32), logprobs, True)


@pytest.fixture
def run(policy, tmp_path):
    def _run(engine, n=4):
        verifier, store = InlineVerifier(Countdown().judge), EvalStore(tmp_path)
        job = EvalJob(Countdown(), PROBLEMS, Sampling(n, 8), verifier, store)
        return evaluate(policy, engine, job)

    return _run


def test_evaluate_counts_by_hand(run, policy):
    scores = run(ScriptedEngine(policy, {"a": {0, 1}, "b": {3}}))
    assert scores.ids == ("a", "b")
    assert scores.correct_Q.tolist() == [2, 1]
    # Pass@2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2.
    assert scores.per_question(2).tolist() == pytest.approx([5 / 6, 1 / 2])
    assert scores.pass_at_k(1)[0] == pytest.approx(3 / 8)
    assert scores.kinds == {"correct": 3, "wrong": 5}
    assert scores.mean_logprob == pytest.approx(-0.5)
    # Every text has 6 tokens of -0.5; a's greedy answer is its sample 0.
    assert scores.mean_length == 6
    assert scores.greedy_logprob == pytest.approx(-3.0)


def test_right_answers_are_counted_by_solution(run, policy, monkeypatch):
    monkeypatch.setitem(RIGHT, "b", "2 * 2 = 4 .")
    engine = ScriptedEngine(policy, {"a": {0, 1}, "b": {3}})
    assert run(engine, n=4).solutions_Q == ((2,), (1,))
    monkeypatch.setitem(RIGHT, "a", "2 + 1 = 3 .")  # the same solution
    monkeypatch.setitem(RIGHT, "b", "2 + 2 = 4 .")  # another one
    scores = run(ScriptedEngine(policy, {"a": {4, 5}, "b": {5}}), n=6)
    assert scores.solutions_Q == ((4,), (1, 1))
    found = scores.summary()
    assert found["solutions"] == {"a": [4], "b": [1, 1]}
    assert found["distinct"][0] == 1.5
    assert (found["pcmd"][0], found["pcmd_questions"]) == (0.5, 2)  # 0 of a, 1 of b
    assert read_scores(found).summary() == found


def test_a_task_that_tells_no_solutions_apart_has_no_diversity():
    rows = [{"problem_id": "a", "verdict": "correct", "text": RIGHT["a"]}]

    class Odd(Countdown):
        def mode(self, problem, text):
            return None

    assert count_solutions(Countdown(), PROBLEMS, rows) == [(1,), ()]
    assert count_solutions(Odd(), PROBLEMS, rows) is None
    assert count_solutions(Odd(), PROBLEMS, []) == [(), ()]


def test_the_solutions_of_a_problem_are_told_apart_by_that_problem():
    class ByProblem(Countdown):
        def mode(self, problem, text):
            return text if problem.id == "b" else "the only one"

    texts = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"), ("b", "y")]
    rows = [{"problem_id": name, "verdict": "correct", "text": text} for name, text in texts]
    assert count_solutions(ByProblem(), PROBLEMS, rows) == [(2,), (2, 1)]


def test_a_right_answer_that_cannot_be_read_is_a_solution_beside_those_that_can():
    class Half(Countdown):
        def mode(self, problem, text):
            return text if text == "x" else None

    rows = [{"problem_id": "a", "verdict": "correct", "text": text} for text in ("x", "y")]
    assert count_solutions(Half(), PROBLEMS, rows) == [(1, 1), ()]


def test_evaluate_says_how_far_it_is_and_draws_one_greedy_answer_a_question(policy, tmp_path):
    asked, told = [], []

    class Watched(ScriptedEngine):
        def generate(self, requests, sampling):
            requests = list(requests)
            asked.append((sampling, [(r.index, r.samples) for r in requests]))
            yield from super().generate(requests, sampling)

    engine, sampling = Watched(policy, {"a": {0}, "b": set()}), Sampling(2, 8, seed=5)
    given = (Countdown(), PROBLEMS, sampling, InlineVerifier(Countdown().judge))
    job = EvalJob(*given, EvalStore(tmp_path), lambda tally: told.append(replace(tally)))
    evaluate(policy, engine, job)
    assert [(t.done, t.total, t.correct) for t in (told[0], told[-1])] == [(0, 4, 0), (4, 4, 1)]
    assert asked[0] == (sampling, [(0, (0, 1)), (1, (0, 1))])
    assert asked[1] == (replace(sampling, n=1, temperature=0.0), [(0, (0,)), (1, (0,))])


def test_evaluate_draws_only_what_the_store_lacks(run, policy):
    run(ScriptedEngine(policy, {"a": {0, 1}, "b": {3}}), n=4)
    more = ScriptedEngine(policy, {"a": {5}, "b": set()})
    scores = run(more, n=6)
    assert more.asked == [("a", 4), ("a", 5), ("b", 4), ("b", 5)]
    assert scores.correct_Q.tolist() == [3, 1]
    again = ScriptedEngine(policy, {"a": set(), "b": set()})
    assert run(again, n=6).correct_Q.tolist() == [3, 1]
    assert again.asked == []


def test_evaluate_counts_what_was_asked_for_and_no_more(run, policy, tmp_path):
    """The store holds six samples of each problem, and one of a problem that is not asked about."""
    run(ScriptedEngine(policy, {"a": {0, 4, 5}, "b": {4}}), n=6)
    store = EvalStore(tmp_path)
    store.append({**store.read()[0], "problem_id": "z", "sample": 0})
    store.flush()
    scores = run(ScriptedEngine(policy, {"a": set(), "b": set()}), n=4)
    assert scores.correct_Q.tolist() == [1, 0]
    assert sum(scores.kinds.values()) == 8
