"""Questions with one mathematical answer each, judged in worker processes (judge.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

from sps.data.config import DataConfig
from sps.schema import NonNegative, Seconds, Template
from sps.tasks import Bench, TaskType, answers
from sps.tasks.math.mode import mode
from sps.tasks.prompts import BOXED
from sps.tasks.questions import Questions, bench_problems, preface_of
from sps.types import Finding, Problem, Verdict
from sps.verify import Pool, open_verifier


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

    def findings(self) -> Sequence[Finding]:
        """What is wrong with the data, and answers that no completion can have."""
        return [*super().findings(), *self._unreached()]

    def _unreached(self) -> list[Finding]:
        """Answers that are not right in a box: unbalanced ones; sentences, of which a completion's
        box has the answer alone."""
        of = {p.answer_text: p for split in self.splits.values() for p in split}
        with closing(open_verifier(self)) as verifier:
            boxed = {gold: f"\\boxed{{{answers.stated(gold, True) or gold}}}" for gold in of}
            asked = {gold: verifier.submit(of[gold], text, True) for gold, text in boxed.items()}
            lost = [of[gold] for gold, told in asked.items() if told.result().kind != "correct"]
        if not lost:
            return []
        first = lost[0]
        text = (
            f"{len(lost)} of {len(of)} different answers cannot be matched, so no completion is "
            f"right there, such as that of {first.id}: {first.answer_text:.80}. Give the answer "
            "alone, as a box has it"
        )
        return [Finding("answers", "warning", text, [[p.id, p.answer_text] for p in lost])]

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
    task = Mathematics({"test": bench_problems(asked)}, *how)
    for found in task.findings() if asked.rows else ():
        task.warn(f"--bench {asked.name}: {found.text}")
    return task


TYPE = TaskType(MathConfig, _make, _bench)
