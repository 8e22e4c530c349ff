"""Verifiers: completions in, verdicts out, whatever a model wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from sps.types import Problem, Verdict

Judge = Callable[[Problem, str, bool], Verdict]


class Verifier(Protocol):
    """Judges in its own time, so that judging overlaps with sampling."""

    def submit(self, problem: Problem, text: str, finished: bool) -> Future[Verdict]:
        """The verdict, now or later; a RunFailed only where the verifier itself has failed."""
        ...

    def close(self) -> None:
        """End every worker."""
        ...


@dataclass(frozen=True)
class Pool:
    """Worker processes for a judge that may hang, or that evaluates what it reads."""

    judge: str  # its factory, `package.module:function`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the factory; plain JSON
    workers: int = 0  # 0: one a core
    time_limit: float = 6.0  # seconds a verdict may take
    fresh: bool = False  # a new process an answer
    locked: bool = True  # it may write no file, start no process, reach no network (sandbox.py)


class Judged(Protocol):
    """What a verifier needs to know of a task."""

    pool: Pool | None

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """The verdict, in this process."""
        ...


def open_verifier(task: Judged) -> Verifier:
    """In worker processes where the task asks for them, else in this one."""
    if task.pool is None:
        return InlineVerifier(task.judge)
    from sps.verify.pool import VerifierPool

    return VerifierPool(**vars(task.pool))


class InlineVerifier:
    """Judges at once, in this process: for judges that are fast and cannot hang."""

    def __init__(self, judge: Judge):
        self.judge = judge

    def submit(self, problem: Problem, text: str, finished: bool) -> Future[Verdict]:
        """A finished future; a judge that raises is a verdict of kind 'crashed'."""
        future: Future[Verdict] = Future()
        try:
            future.set_result(self.judge(problem, text, finished))
        except Exception as error:
            future.set_result(Verdict("crashed", 0.0, f"{type(error).__name__}: {error}"[:200]))
        return future

    def close(self) -> None:
        """Nothing is held."""
