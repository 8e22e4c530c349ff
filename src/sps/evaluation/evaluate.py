"""Sample, judge, store, count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# A judge is at fault that has judged nothing, and failed so often: at every answer of so many
# questions (of all, where there are fewer), and so often at each, the others being cut off.
_FAILURES, _QUESTIONS, _EACH = 64, 8, 4
_NOT_JUDGED = {
    "verdict": "crashed",
    "detail": "not judged: the judge had only failed",
    "answer": "",
}


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


class JudgeFails(RunFailed):
    """The judge has failed at every answer so far. What was drawn is stored; the next attempt has
    it judged before it draws more."""

    @property
    def what(self) -> str:
        """What has happened, without what to do."""
        return super().__str__()

    def __str__(self) -> str:
        """Empty where another rank says it."""
        return self.what and (
            f"{self.what}. Mend the judge, which returns False for what it cannot read, or give it "
            "more time where time was up (task.time_limit, --time-limit). What was drawn is kept, "
            "and not drawn again"
        )


def collect(texts: TextEngine, job: EvalJob) -> list[dict[str, Any]]:
    """The judged samples of every problem: those stored, and the others, drawn now and stored."""
    problems, ranks, n = job.problems, job.store.ranks, job.sampling.n
    wanted = {p.id for p in problems}
    stored = ranks.broadcast(lambda: _stored(job))
    rows = [r for r in stored if r["problem_id"] in wanted and r["sample"] < n]
    lacking = missing(problems, n, rows)
    mine = ranks.shard(list(lacking.items()))
    asks = [Ask(i, job.task.prompt(problems[i]), tuple(s)) for i, s in mine]
    doubt = _Doubt({problems[i].id: len(s) for i, s in mine}, len(lacking), rows)
    judging = _Judging(job, _so_far(rows, sum(len(ask.samples) for ask in asks)), rows, doubt)
    try:
        for written in texts.write(asks, job.sampling) if lacking else ():
            judging.take(written)
            if doubt.certain:
                break
        judging.settle(at_most=0)
    except RunFailed as error:
        judging.failed.append(error)
    finally:  # an endpoint that fails half way, too, leaves what it answered
        judging.settle(at_most=0)
        job.store.flush()
    if failed := judging.failed:
        raise RunFailed(f"{failed[0]}; what was judged before is stored, and not drawn again")
    cut_short = any(ranks.gather([doubt.certain]))
    doubt.share(ranks)
    if doubt.certain:
        judging.give_up()
        raise doubt.error()
    judging.settle(at_most=0)
    job.store.flush()
    rows += ranks.gather(judging.fresh)
    return collect(texts, job) if cut_short else rows  # the judge works, on another rank


class _Judging:
    """Samples on their way to their verdicts and into the store."""

    def __init__(self, job: EvalJob, tally: Tally, rows: list[dict[str, Any]], doubt: _Doubt):
        self.fresh: list[dict[str, Any]] = []
        self.failed: list[BaseException] = []  # of the verifier, which are no verdicts
        self._job, self._tally, self._doubt = job, tally, doubt
        self._solved = {r["problem_id"] for r in rows if r["verdict"] == "correct"}
        self._waiting: list[tuple[dict[str, Any], Future[Verdict]]] = []
        job.watch(tally)

    def take(self, written: Written) -> None:
        """One more sample."""
        problem = self._job.problems[written.index]
        future = self._job.verifier.submit(problem, written.text, written.finished)
        self._waiting.append((_row(problem, written), future))
        self.settle(at_most=_WAITING)

    def settle(self, at_most: int) -> None:
        """Store what is judged, and wait for the oldest while too many are not; no longer where the
        judge is at fault."""
        waiting, tally = self._waiting, self._tally
        while waiting and (len(waiting) > at_most or waiting[0][1].done()):
            if self._doubt.certain:
                break
            row, future = waiting.pop(0)
            if (error := future.exception()) is not None:
                self.failed.append(error)
                continue
            row |= _judgement(future.result())
            self.fresh.append(row)
            self._job.store.append(row)
            self._doubt.see(row)
            tally.done += 1
            tally.tokens += row["length"] or 0
            if row["verdict"] == "correct":
                tally.correct += 1
                self._solved.add(row["problem_id"])
                tally.solved = len(self._solved)
        self._job.watch(tally)

    def give_up(self) -> None:
        """Store what waits without a verdict, so that it is not drawn again."""
        for row, _ in self._waiting:
            self._job.store.append(row | _NOT_JUDGED)
        self._job.store.flush()


def _stored(job: EvalJob) -> list[dict[str, Any]]:
    """What is stored. Where the judge has failed at all of it, it is asked again before."""
    rows = job.store.read()
    return regrade(job)[0] if is_doubtful(rows) else rows


def is_doubtful(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the judge has done nothing but fail at these samples: it is to be asked again."""
    return any(row["verdict"] in FAILED for row in rows) and not any(map(_is_judged, rows))


def regrade(job: EvalJob) -> tuple[list[dict[str, Any]], int]:
    """Judge stored texts again, without drawing any; also how many verdicts changed."""
    known = {p.id: p for p in job.problems}
    stored = job.store.read()
    rows = [row for row in stored if row["problem_id"] in known]
    tally = Tally(len(rows))
    changed, solved = 0, set()
    asked = Counter(row["problem_id"] for row in rows)
    doubt = _Doubt(asked, len(asked), [])
    futures = [
        job.verifier.submit(known[row["problem_id"]], row["text"], row["finished"]) for row in rows
    ]
    for row, future in zip(rows, futures, strict=True):
        fresh = _judgement(future.result())
        changed += fresh["verdict"] != row["verdict"]
        row |= fresh
        doubt.see(row)
        if doubt.certain:
            raise doubt.error()
        tally.done += 1
        if row["verdict"] == "correct":
            tally.correct += 1
            solved.add(row["problem_id"])
            tally.solved = len(solved)
        job.watch(tally)
    job.store.replace(stored)
    return rows, changed


class _Doubt:
    """Whether the judge is at fault, and not the row of a question, or answers of one kind."""

    def __init__(
        self, asked: Mapping[str, int], questions: int, stored: Sequence[Mapping[str, Any]]
    ) -> None:
        self._asked = asked  # how many answers are to come, by question
        self._enough = min(_QUESTIONS, questions)
        self._seen, self._failed = Counter[str](), Counter[str]()
        self._judged = any(map(_is_judged, stored))
        self._failures = self._questions = 0  # questions at whose answers it failed, at all
        self._first = ""

    @property
    def certain(self) -> bool:
        """Whether nothing else explains what was seen."""
        enough = self._failures >= _FAILURES and self._questions >= self._enough
        return enough and not self._judged

    def see(self, row: Mapping[str, Any]) -> None:
        """Take one more verdict."""
        name, kind = row["problem_id"], row["verdict"]
        self._judged |= _is_judged(row)
        self._seen[name] += 1
        if kind in FAILED:
            self._failures += 1
            self._failed[name] += 1
            self._first = self._first or f"{name!r}: {kind}: {row['detail'] or 'no detail'}"
        whole = self._seen[name] == self._asked[name]
        self._questions += whole and self._failed[name] >= min(_EACH, self._asked[name])

    def share(self, ranks: Ranks) -> None:
        """From here on every rank knows what all have seen."""
        told = ranks.gather([(self._judged, self._failures, self._questions, self._first)])
        judged, failures, questions, first = zip(*told, strict=True)
        self._judged, self._first = any(judged), next(filter(None, first), "")
        self._failures, self._questions = sum(failures), sum(questions)

    def error(self) -> JudgeFails:
        """What has happened."""
        return JudgeFails(
            f"the judge failed at all of the first {self._failures} answers that were not cut off, "
            f"first at one to {self._first}"
        )


def _is_judged(row: Mapping[str, Any]) -> bool:
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
