"""Verifiers: completions in, verdicts out, whatever a model wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

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
