"""What a run remembers: its right rollouts, by problem and by distinct solution.

A memory is a function of the rollout store alone: it is filled while the run draws, or read back
from the store when the run is resumed, and both give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sps.store.rollouts import to_arrays
from sps.types import Rollout


@dataclass(frozen=True)
class Remembered:
    """A right rollout of an earlier step, or of this one."""

    problem_id: str
    prompt_ids: np.ndarray  # int32
    ids: np.ndarray  # int32
    step: int  # that drew it
    mean_logprob: float  # under the policy that drew it
    logprobs: np.ndarray | None = None  # float32, of its tokens under that policy, where needed


ModeOf = Callable[[str, np.ndarray], str]  # problem id, token ids -> which solution it is


class Memory:
    """The latest right rollout of each distinct solution (`distinct`), or of each problem."""

    def __init__(self, mode_of: ModeOf, distinct: bool):
        self.mode_of, self.distinct = mode_of, distinct
        self.of: dict[str, dict[str, Remembered]] = {}  # problem -> mode -> rollout

    def add(self, rollouts: Iterable[Rollout]) -> None:
        """Remember the right ones, given in the order in which they were drawn."""
        for r in rollouts:
            if r.verdict.kind == "correct":
                self.keep(Remembered(r.problem_id, r.prompt_ids, r.ids, r.step, r.mean_logprob))

    def read(self, table: pa.Table) -> None:
        """Remember the right rollouts of a store, as `add` did when they were drawn."""
        table = table.sort_by([(name, "ascending") for name in ("step", "group", "sample")])
        columns = [table[name].to_pylist() for name in ("problem_id", "step", "mean_logprob")]
        arrays = to_arrays(table, "prompt_ids"), to_arrays(table, "ids")
        has = "logprobs" in table.column_names
        of_tokens = to_arrays(table, "logprobs") if has else [None] * len(table)
        for problem, step, mean, prompt, ids, own in zip(*columns, *arrays, of_tokens, strict=True):
            self.keep(Remembered(problem, prompt, ids, step, mean, own))

    def keep(self, rollout: Remembered) -> None:
        """Remember this one, instead of an earlier one of the same solution."""
        known = self.of.setdefault(rollout.problem_id, {})
        mode = self.mode_of(rollout.problem_id, rollout.ids) if self.distinct else ""
        known.pop(mode, None)  # the newest last
        known[mode] = rollout

    def __len__(self) -> int:
        return sum(len(known) for known in self.of.values())

    def __iter__(self) -> Iterator[Remembered]:
        """All rollouts, by problem id: an order that resuming does not change."""
        for problem in sorted(self.of):
            yield from self.of[problem].values()

    def of_problem(self, problem: str) -> list[Remembered]:
        """What is remembered of a problem, the oldest first."""
        return list(self.of.get(problem, {}).values())
