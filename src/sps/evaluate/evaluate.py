"""Sample, judge, store, count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from sps.evaluate.scores import Scores, count_scores
from sps.policy.load import Policy
from sps.rollout import RolloutEngine
from sps.store.evals import EvalStore
from sps.tasks import Task
from sps.types import Completion, Problem, Request, Sampling, Verdict
from sps.verify import Verifier

Progress = Callable[[int, int, int], None]  # samples done, samples in all, correct so far


def evaluate(
    policy: Policy,
    engine: RolloutEngine,
    verifier: Verifier,
    task: Task,
    problems: Sequence[Problem],
    sampling: Sampling,
    store: EvalStore,
    progress: Progress = lambda done, of, correct: None,
) -> Scores:
    """Draw n samples of every problem, less those that the store holds already; judge and count."""
    rows = store.read()
    missing = _missing(problems, sampling.n, rows)
    prompts = [policy.encode(task.prompt(p)) for p in problems]
    requests = [Request(i, prompts[i], tuple(numbers)) for i, numbers in missing.items()]
    total, correct = len(problems) * sampling.n, sum(r["verdict"] == "correct" for r in rows)
    waiting: list[tuple[dict[str, Any], Future[Verdict]]] = []

    def settle(at_most: int) -> None:
        nonlocal correct
        while len(waiting) > at_most:
            row, future = waiting.pop(0)
            verdict = future.result()
            row |= {"verdict": verdict.kind, "detail": verdict.detail, "answer": verdict.answer}
            correct += verdict.kind == "correct"
            rows.append(row)
            store.append(row)
        progress(len(rows), total, correct)

    for completion in engine.generate(requests, sampling):
        problem = problems[completion.index]
        text = policy.decode(completion.ids)
        future = verifier.submit(problem, text, completion.finished)
        waiting.append((_row(problem, completion, text), future))
        if len(waiting) >= 512:
            settle(at_most=256)
    settle(at_most=0)
    store.flush()
    greedy = _greedy_logprob(engine, prompts, sampling)
    return count_scores([p.id for p in problems], sampling.n, rows, greedy)


def _greedy_logprob(engine: RolloutEngine, prompts: list, sampling: Sampling) -> float:
    """Mean log-probability of greedy trajectories: the paper's measure of squeezing."""
    requests = [Request(i, ids, (0,)) for i, ids in enumerate(prompts)]
    greedy = replace(sampling, n=1, temperature=0.0)
    sums = [float(c.logprobs.sum()) for c in engine.generate(requests, greedy)]
    return sum(sums) / len(sums)


def _missing(problems: Sequence[Problem], n: int, rows: list[dict]) -> dict[int, list[int]]:
    done = defaultdict(set)
    for row in rows:
        done[row["problem_id"]].add(row["sample"])
    lacking = {i: [s for s in range(n) if s not in done[p.id]] for i, p in enumerate(problems)}
    return {i: numbers for i, numbers in lacking.items() if numbers}


def _row(problem: Problem, completion: Completion, text: str) -> dict[str, Any]:
    return {
        "problem_id": problem.id,
        "sample": completion.sample,
        "text": text,
        "length": len(completion.ids),
        "finished": completion.finished,
        "sum_logprob": float(completion.logprobs.sum()),
    }
