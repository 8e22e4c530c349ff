"""A task is problems, a prompt for each, and a judge of answers. TASKS in table.py lists them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sps.schema import Node
from sps.types import Finding, Problem, Verdict
from sps.verify import Pool


class Task(Protocol):
    """What is known of a task. Subclass it: what has a body here need not be said again."""

    name: str
    pool: Pool | None = None  # worker processes for its judge; None: it runs in this one
    source: Path | None = None  # the user's own file whose code it runs; a run keeps a copy
    warn: Callable[[str], None] = logging.getLogger("sps").warning  # a run puts it on record

    def problems(self, split: str) -> list[Problem]:
        """The problems of 'train', 'validation' or 'test', always in the same order."""
        ...

    def prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        """What the policy is shown: plain text, or chat messages for its tokenizer's template."""
        ...

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """The verdict on one completion. Never raises on what a model may write."""
        ...

    def mode(self, problem: Problem, text: str) -> str | None:
        """Which of a problem's distinct solutions a right answer is; None: they are not told apart.

        Asked of right answers alone; equal solutions have equal modes.
        """
        return None

    def findings(self) -> Sequence[Finding]:
        """What is wrong with the data: repeated questions, overlap with a benchmark."""
        return ()


@dataclass(frozen=True)
class Bench:
    """What `sps eval` asks of a task."""

    name: str  # a benchmark, or TASK, or TASK:ARGUMENT
    template: str = "chat"
    instruction: str | None = None  # None: the usual sentence
    cut: str = "zero"
    limit: int | None = None  # questions, the first ones
    data_dir: str | None = None  # local copies of the benchmarks; None: from the hub
    workers: int = 0
    time_limit: float = 6.0
    unsafe: tuple[str, ...] = ()
    right: float = 1.0  # reward that counts as right, where a judge gives rewards

    @property
    def rows(self) -> str:
        """ARGUMENT: of math and choice a file of the user's own questions."""
        return self.name.partition(":")[2]


@dataclass(frozen=True)
class TaskType:
    """A row of TASKS; the default of its config's `type` is its name."""

    config: type[Node]  # its keys under `task` in a recipe
    make: Callable[[Any], Task]  # from its config
    bench: Callable[[Bench], Task]  # for sps eval: its 'test' problems are the benchmark
    generates: bool = False  # its own problems, so that sps eval needs no file of rows
    embedded: tuple[str, ...] = ()  # keys that the embedded policy depends on; (): not made for it
    needs: tuple[str, ...] = ()  # packages that are not installed with sps

    @property
    def name(self) -> str:
        """`task.type` in a recipe."""
        if "type" not in self.config.model_fields:
            raise TypeError(f'{self.config.__name__} needs a key `type: Literal["NAME"] = "NAME"`')
        return self.config.model_fields["type"].default
