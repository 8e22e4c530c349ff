"""Questions from files or benchmarks in a prompt template: what mathematics and choices share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sps.data.config import DataConfig
from sps.tasks import Bench, Task
from sps.tasks.prompts import Preface, Prompt, render
from sps.types import Finding, Problem


class Questions(Task):
    """Problems that were read, and how they are shown."""

    preface = Preface()

    def __init__(
        self,
        splits: dict[str, list[Problem]],
        template: str,
        instruction: str,
        cut: str = "zero",
        findings: Callable[[], Sequence[Finding]] = tuple,
    ):
        self.splits, self.template, self.instruction, self.cut = splits, template, instruction, cut
        self._findings = findings

    def problems(self, split: str) -> list[Problem]:
        """The problems it was given."""
        return self.splits[split]

    def prompt(self, problem: Problem) -> Prompt:
        """The question in the chosen template."""
        return render(self.template, problem.question, self.instruction, problem.meta, self.preface)

    def findings(self) -> Sequence[Finding]:
        """Looked for when asked: it takes a while."""
        return self._findings()


def preface_of(t: DataConfig) -> Preface:
    """What the recipe puts before every question."""
    return Preface(t.system, tuple((e.question, e.answer) for e in t.examples))


def bench_problems(asked: Bench) -> list[Problem]:
    """The questions that are asked for, of a benchmark or of a file of the user's own."""
    from sps.data.benchmarks import load_benchmark  # pyarrow
    from sps.data.load import load_problems

    if asked.rows:
        return load_problems(asked.rows, key=f"--bench {asked.name}")[: asked.limit]
    return load_benchmark(asked.name, asked.data_dir)[: asked.limit]
