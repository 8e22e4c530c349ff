"""Questions with one mathematical answer each, judged in worker processes (judge.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from sps.data.config import DataConfig
from sps.schema import NonNegative, Seconds, Template
from sps.tasks import Bench, TaskType
from sps.tasks.math.mode import mode
from sps.tasks.prompts import BOXED
from sps.tasks.questions import Questions, bench_problems, preface_of
from sps.types import Finding, Problem, Verdict
from sps.verify import Pool


class MathConfig(DataConfig):
    """Mathematical answers judged by Math-Verify in worker processes."""

    type: Literal["math"] = "math"
    template: Template = "qwen_boxed"
    time_limit: Seconds = 6.0  # seconds a verdict may take
    workers: NonNegative = 0  # 0: one a core


class Mathematics(Questions):
    """Questions with one mathematical answer each."""

    name = "math"

    def __init__(
        self,
        splits: dict[str, list[Problem]],
        template: str = "qwen_boxed",
        instruction: str = BOXED,
        cut: str = "zero",
        seconds: float = 6.0,
        workers: int = 0,
        findings: Callable[[], Sequence[Finding]] = tuple,
    ):
        super().__init__(splits, template, instruction, cut, findings)
        self.seconds = seconds
        self.pool = Pool("sps.tasks.math.judge:make_judge", {"cut": cut}, workers, seconds)

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """See `judge.py`; in this process, so the time limit is a soft one. Use the pool."""
        from sps.tasks.math.judge import judge_within  # sympy

        return judge_within(self.seconds, problem.answer, text, finished, self.cut)

    def mode(self, problem: Problem, text: str) -> str:
        """By its intermediate results; see `mode.py` for what that cannot tell."""
        return mode(problem.answer, text)


def _make(t: MathConfig) -> Mathematics:
    from sps.data.splits import read_questions  # pyarrow

    read, instruction = read_questions(t), t.instruction or BOXED
    how = (t.template, instruction, t.cut, t.time_limit, t.workers)
    task = Mathematics(read.splits, *how, read.findings)
    task.preface = preface_of(t)
    return task


def _bench(asked: Bench) -> Mathematics:
    how = (asked.template, asked.instruction or BOXED, asked.cut, asked.time_limit, asked.workers)
    return Mathematics({"test": bench_problems(asked)}, *how)


TYPE = TaskType(MathConfig, _make, _bench)
