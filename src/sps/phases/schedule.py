"""When a run does what, from the recipe alone: its phases, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sps.algo.reach import lr_of_reach
from sps.config.irl import IRL
from sps.config.recipe import Recipe


@dataclass(frozen=True)
class Phase:
    """RL steps start .. last, and the IRL phase that follows them, if one does."""

    number: int  # from 1
    start: int
    first: int  # step to take now: after `start` where the run was resumed in mid-phase
    last: int
    irl: bool = False  # whether an IRL phase follows
    irl_lr: float = 0.0  # its learning rate


def irl_lr(settings: IRL, rl_lr: float, rl_steps: int) -> float:
    """As set, or the rate that moves the weights `irl.reach` times as far as the RL phase does."""
    if settings.lr is not None:
        return settings.lr
    return lr_of_reach(settings.reach, settings.steps, rl_lr, rl_steps)


@dataclass(frozen=True)
class Schedule:
    """The schedule of a recipe. Steps are RL steps, from 1."""

    recipe: Recipe
    problems: int = 0  # to train on; 0: not known, and a pass over them is then the whole run

    @property
    def phase_steps(self) -> int:
        """Steps in a phase: as set, or one pass over the training problems."""
        recipe, rounds = self.recipe, self.recipe.rl.algorithm.steps_per_generation
        every = recipe.irl.every or -(-self.problems // recipe.rollout.prompts) or recipe.rl.steps
        if recipe.irl.steps:
            return every
        # Plain RL: a phase must not end between steps that share a generation.
        return -(-every // rounds) * rounds

    def phases(self, done: int = 0) -> Iterator[Phase]:
        """All phases, or those left after `done` steps: the one they end in is finished first."""
        total, rl, irl = self.recipe.rl.steps, self.recipe.rl, self.recipe.irl
        for number, before in enumerate(range(0, total, self.phase_steps), 1):
            last = min(before + self.phase_steps, total)
            if last > done:
                lr = irl_lr(irl, rl.lr, last - before) if irl.steps else 0.0
                first = max(before, done) + 1
                yield Phase(number, before + 1, first, last, irl.steps > 0, lr)

    def draws(self, done: int, all_phases: bool = False) -> list[int]:
        """Steps that drew rollouts, of the phase that `done` steps end in or of all up to it."""
        rounds, found = self.recipe.rl.algorithm.steps_per_generation, list[int]()
        for start in range(1, done + 1, self.phase_steps):
            steps = range(start, min(start + self.phase_steps, done + 1), rounds)
            found = [*found, *steps] if all_phases else [*steps]
        return [] if not all_phases and done % self.phase_steps == 0 else found

    def evaluates(self, step: int, before: int) -> bool:
        """Whether validation is due after a step, `before` being the last one it was asked for."""
        every = self.recipe.evaluation.every
        return every > 0 and self._due(every, step, before)

    def saves(self, step: int, before: int) -> bool:
        """Whether a checkpoint is due after a step, `before` as in `evaluates`."""
        return self._due(self.recipe.checkpoint.every, step, before)

    def evaluated(self) -> list[int]:
        """Every step whose policy is validated; 0 is the base."""
        found = [step for before, step in self._settled() if self.evaluates(step, before)]
        return [0, *found] if found else []

    def saved(self) -> list[int]:
        """Every step whose checkpoint is saved, also those that checkpoint.keep forgets."""
        return [step for before, step in self._settled() if self.saves(step, before)]

    def _due(self, every: int, step: int, before: int) -> bool:
        return step == self.recipe.rl.steps or (every > 0 and step // every > before // every)

    def _settled(self) -> Iterator[tuple[int, int]]:
        """Consecutive pairs of the steps that end a generation, 0 first."""
        rounds = self.recipe.rl.algorithm.steps_per_generation
        ends = [
            step
            for phase in self.phases()
            for step in (*range(phase.start + rounds - 1, phase.last, rounds), phase.last)
        ]
        return pairwise([0, *ends])
