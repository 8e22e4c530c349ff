"""How much the rewards of each training problem differ: what difficulty-aware sampling goes by.

A problem that is always or never solved gives groups of equal rewards, which have no advantage.
As a memory, this is a function of the rollout store alone: it is filled while the run draws, or
read back from the store when the run is resumed, and both give the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sps.types import Metrics, Rollout

COLUMNS = ["step", "group", "sample", "problem_id", "reward", "verdict"]


class Difficulty:
    """Mean and mean square of each problem's rewards, in which its latest group counts as much as
    all groups before, and the mean of that group; NaN where it was never drawn."""

    def __init__(self, problems: Sequence[str], floor: float):
        self.place = {problem: i for i, problem in enumerate(problems)}
        self.floor = floor
        self.mean_N, self.square_N, self.latest_N = np.full((3, len(problems)), np.nan)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Learn from the rollouts of one step, group by group as they were drawn."""
        self._learn(
            [(r.step, r.group) for r in rollouts],
            [r.problem_id for r in rollouts],
            [r.verdict.kind == "correct" for r in rollouts],
            [r.reward for r in rollouts],
        )

    def read(self, table: pa.Table) -> None:
        """Learn from a store's rollouts, as `add` did when they were drawn."""
        table = table.sort_by([(name, "ascending") for name in ("step", "group", "sample")])
        groups = zip(table["step"].to_pylist(), table["group"].to_pylist(), strict=True)
        right = [kind == "correct" for kind in table["verdict"].to_pylist()]
        self._learn([*groups], table["problem_id"].to_pylist(), right, table["reward"].to_pylist())

    def _learn(
        self,
        groups: list[tuple[int, int]],
        problems: list[str],
        right: list[bool],
        rewards: list[float],
    ) -> None:
        # A right answer counts as 1 however its reward was shaped, others as what a judge gave.
        # In float32, as the store has it.
        reward_B = np.where(right, np.float32(1), np.clip(np.asarray(rewards, np.float32), 0, 1))
        reward_B = reward_B.astype(np.float64)
        problem_of = dict(zip(groups, problems, strict=True))
        number = {group: i for i, group in enumerate(problem_of)}
        of_B = [number[group] for group in groups]
        # bincount adds in order, whatever else is in the batch.
        count_P = np.bincount(of_B)
        mean_P, square_P = (np.bincount(of_B, x_B) / count_P for x_B in (reward_B, reward_B**2))
        for problem, mean, square in zip(problem_of.values(), mean_P, square_P, strict=True):
            i = self.place[problem]
            self.latest_N[i] = mean
            if not np.isnan(self.mean_N[i]):
                mean, square = (self.mean_N[i] + mean) / 2, (self.square_N[i] + square) / 2
            self.mean_N[i], self.square_N[i] = mean, square

    @property
    def weight_N(self) -> np.ndarray:
        """floor + (1 - floor) * 4 * variance, with rewards of 0 and 1 that is 4p(1 - p); 1 for
        problems that were never drawn."""
        spread_N = np.clip(4 * (self.square_N - self.mean_N**2), 0.0, 1.0)
        weight_N = self.floor + (1 - self.floor) * spread_N
        return np.where(np.isnan(weight_N), 1.0, weight_N)

    def metrics(self, source_N: np.ndarray) -> Metrics:
        """Shares of the training problems that were never drawn, or always or never solved in their
        latest group; and the effective number of problems, 1 / sum of squared chances."""
        weight_N = self.weight_N
        of_source, size = np.bincount(source_N, weight_N), np.bincount(source_N)
        chance_N = weight_N / of_source[source_N] * size[source_N] / len(source_N)
        return {
            "sampling/problems": 1 / float((chance_N**2).sum()),
            "sampling/unseen": float(np.isnan(self.mean_N).mean()),
            "sampling/always": float((self.latest_N == 1).mean()),
            "sampling/never": float((self.latest_N == 0).mean()),
        }
