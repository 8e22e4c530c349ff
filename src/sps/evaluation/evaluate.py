"""Sample, judge, store, count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sps.algo.diversity import Solutions, solutions
from sps.errors import RunFailed
from sps.evaluation.scores import Scores, count_scores
from sps.ranks import Ranks
from sps.rollout import RolloutEngine
from sps.rollout.texts import Ask, TextEngine, Written
from sps.store.evals import EvalStore
from sps.tasks import Task
from sps.types import FAILED, Problem, Request, Sampling, Verdict
from sps.verify import Verifier

if TYPE_CHECKING:  # an endpoint and a regrade need no torch
    from sps.policy.load import Policy

_WAITING = 2048  # samples that may wait for their verdict
_FAILURES = 64  # of the judge, of two questions and more, and nothing else: it is at fault


@dataclass
class Tally:
    """How far an evaluation is."""

    total: int  # samples in all
    done: int = 0
    stored: int = 0  # of those done, found in the store
    correct: int = 0
    tokens: int = 0  # drawn now, not found in the store
    solved: int = 0  # questions with a correct sample


@dataclass(frozen=True)
class EvalJob:
    """Questions, how they are answered and judged, and where that is kept."""

    task: Task
    problems: Sequence[Problem]
    sampling: Sampling
    verifier: Verifier
    store: EvalStore  # of its ranks each draws and judges a share
    watch: Callable[[Tally], None] = lambda tally: None  # the share of this rank


class PolicyTexts:
    """A policy and its rollout engine as a TextEngine."""

    def __init__(self, policy: Policy, engine: RolloutEngine):
        self.policy, self.engine = policy, engine

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> Iterator[Written]:
        """Every sample of every ask."""
        requests = [Request(a.index, self.policy.encode(a.prompt), a.samples) for a in asks]
        for c in self.engine.generate(requests, sampling):
            text = self.policy.decode(c.ids)
            total = float(c.logprobs.sum())
            yield Written(c.index, c.sample, text, len(c.ids), c.finished, total)

    def close(self) -> None:
        """Give back the engine's memory."""
        self.engine.close()


def evaluate(policy: Policy, engine: RolloutEngine, job: EvalJob) -> Scores:
    """Draw n samples of every problem, less those that the store holds already; judge and count."""
    rows = collect(PolicyTexts(policy, engine), job)
    prompts = [policy.encode(job.task.prompt(p)) for p in job.problems]
    greedy = _greedy_logprob(engine, prompts, job.sampling, job.store.ranks)
    ids, told = [p.id for p in job.problems], count_solutions(job.task, job.problems, rows)
    return count_scores(ids, job.sampling.n, rows, greedy, told)


def collect(texts: TextEngine, job: EvalJob) -> list[dict[str, Any]]:
    """The judged samples of every problem: those stored, and the others, drawn now and stored."""
    problems, store, ranks, n = job.problems, job.store, job.store.ranks, job.sampling.n
    wanted = {p.id for p in problems}
    stored = ranks.broadcast(store.read)
    rows = [r for r in stored if r["problem_id"] in wanted and r["sample"] < n]
    solved = {r["problem_id"] for r in rows if r["verdict"] == "correct"}
    lacking = missing(problems, n, rows)
    mine = ranks.shard(list(lacking.items()))
    asks = [Ask(i, job.task.prompt(problems[i]), tuple(s)) for i, s in mine]
    tally = _so_far(rows, sum(len(ask.samples) for ask in asks))
    job.watch(tally)
    fresh: list[dict[str, Any]] = []
    failed: list[BaseException] = []  # of the verifier, which are no verdicts
    waiting: list[tuple[dict[str, Any], Future[Verdict]]] = []
    doubt = _Doubt(problems, rows, "choose another folder with --out")

    def settle(at_most: int) -> None:
        """Store what is judged, and wait for the oldest while too many are not."""
        while waiting and (len(waiting) > at_most or waiting[0][1].done()):
            row, future = waiting.pop(0)
            if (error := future.exception()) is not None:
                failed.append(error)
                continue
            row |= _judgement(future.result())
            fresh.append(row)
            for sure in doubt.passes(row):
                store.append(sure)
            tally.done += 1
            tally.tokens += row["length"] or 0
            if row["verdict"] == "correct":
                tally.correct += 1
                solved.add(row["problem_id"])
                tally.solved = len(solved)
        job.watch(tally)

    try:
        for written in texts.write(asks, job.sampling) if lacking else ():
            problem = problems[written.index]
            future = job.verifier.submit(problem, written.text, written.finished)
            waiting.append((_row(problem, written), future))
            settle(at_most=_WAITING)
        settle(at_most=0)
    except _JudgeFails:
        waiting.clear()
        raise
    except RunFailed as error:
        failed.append(error)
    finally:  # an endpoint that fails half way, too, leaves what it answered
        settle(at_most=0)
        for row in doubt.held:
            store.append(row)
        store.flush()
    if failed:
        raise RunFailed(f"{failed[0]}; what was judged before is stored, and not drawn again")
    return rows + ranks.gather(fresh)


def regrade(job: EvalJob) -> tuple[list[dict[str, Any]], int]:
    """Judge stored texts again, without drawing any; also how many verdicts changed."""
    known = {p.id: p for p in job.problems}
    rows = job.store.read()
    tally = Tally(len(rows))
    changed, solved = 0, set()
    doubt = _Doubt(job.problems, [], "judge again")
    futures = [
        job.verifier.submit(known[row["problem_id"]], row["text"], row["finished"]) for row in rows
    ]
    for row, future in zip(rows, futures, strict=True):
        fresh = _judgement(future.result())
        changed += fresh["verdict"] != row["verdict"]
        row |= fresh
        doubt.passes(row)
        tally.done += 1
        if row["verdict"] == "correct":
            tally.correct += 1
            solved.add(row["problem_id"])
            tally.solved = len(solved)
        job.watch(tally)
    job.store.replace(rows)
    return rows, changed


class _JudgeFails(RunFailed):
    """The judge has failed at all answers so far."""


class _Doubt:
    """Holds failures of the judge back as long as it has done nothing else, and ends an evaluation
    that has only these: its verdicts would say nothing of the model."""

    def __init__(
        self, problems: Sequence[Problem], stored: Sequence[dict[str, Any]], then: str
    ) -> None:
        self.held: list[dict[str, Any]] = []
        self._then = then  # what to do when the judge is mended
        self._questions = min(2, len(problems))
        self._gone = any(map(_is_judged, stored))

    def passes(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that may be stored now that this one is known, too."""
        self._gone |= _is_judged(row)
        if not self._gone and row["verdict"] in FAILED:
            self.held.append(row)
            self._check()
            return []
        if not self._gone:
            return [row]
        sure, self.held = [*self.held, row], []
        return sure

    def _check(self) -> None:
        count, questions = len(self.held), {row["problem_id"] for row in self.held}
        if count < _FAILURES or len(questions) < self._questions:
            return
        first, self.held = self.held[0], []
        raise _JudgeFails(
            f"the judge failed at all of the first {count} answers, so no more are judged, and "
            f"these verdicts are not kept. The first, to {first['problem_id']!r}: "
            f"{first['verdict']}: {first['detail'] or 'no detail'}. Mend the judge, which returns "
            "False for what it cannot read, or give it more time where time was up "
            f"(task.time_limit, --time-limit); then {self._then}"
        )


def _is_judged(row: dict[str, Any]) -> bool:
    return row["verdict"] not in (*FAILED, "truncated")


def count_solutions(
    task: Task, problems: Sequence[Problem], rows: Sequence[dict[str, Any]]
) -> list[Solutions] | None:
    """The right samples of each problem by distinct solution; None where the task tells none apart.

    A right answer that its task cannot read is a solution like any other.
    """
    modes: dict[str, list[str | None]] = {p.id: [] for p in problems}
    known = {p.id: p for p in problems}
    for row in rows:
        if row["verdict"] == "correct":
            name = row["problem_id"]
            modes[name].append(task.mode(known[name], row["text"]))
    found = [mode for own in modes.values() for mode in own]
    if found and all(mode is None for mode in found):
        return None
    return [solutions(own) for own in modes.values()]


def _so_far(rows: list[dict[str, Any]], to_come: int) -> Tally:
    right = [row["problem_id"] for row in rows if row["verdict"] == "correct"]
    done = len(rows)
    return Tally(done + to_come, done, done, len(right), 0, len(set(right)))


def _judgement(verdict: Verdict) -> dict[str, str]:
    detail, answer = _storable(verdict.detail), _storable(verdict.answer)
    return {"verdict": verdict.kind, "detail": detail, "answer": answer}


def _storable(text: str) -> str:
    """What no UTF-8 file can hold becomes a question mark: half of a character pair."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _greedy_logprob(
    engine: RolloutEngine, prompts: list, sampling: Sampling, ranks: Ranks
) -> float:
    """Mean log-probability of greedy trajectories: the paper's measure of squeezing."""
    requests = [Request(i, ids, (0,)) for i, ids in enumerate(prompts)]
    greedy = replace(sampling, n=1, temperature=0.0)
    drawn = engine.generate(ranks.shard(requests), greedy)
    sums = ranks.gather([(c.index, float(c.logprobs.sum())) for c in drawn])
    return sum(total for _, total in sorted(sums)) / len(sums)


def missing(problems: Sequence[Problem], n: int, rows: list[dict]) -> dict[int, list[int]]:
    """Sample numbers that are not there, by place of the problem."""
    done = defaultdict(set)
    for row in rows:
        done[row["problem_id"]].add(row["sample"])
    lacking = {i: [s for s in range(n) if s not in done[p.id]] for i, p in enumerate(problems)}
    return {i: numbers for i, numbers in lacking.items() if numbers}


def _row(problem: Problem, written: Written) -> dict[str, Any]:
    return {
        "problem_id": problem.id,
        "sample": written.sample,
        "text": _storable(written.text),
        "length": written.length,
        "finished": written.finished,
        "sum_logprob": written.sum_logprob,
    }
