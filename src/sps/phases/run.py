"""`Run`: the parts of a run, its data, its folder and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sps.config.recipe import Recipe
from sps.data.sampler import Sampler
from sps.evaluation.scores import Scores
from sps.phases.schedule import Schedule
from sps.policy.load import Policy
from sps.policy.logprobs import Scorer
from sps.policy.meter import Probe
from sps.policy.sharding import optimizer_state
from sps.policy.update import Budget
from sps.ranks import ALONE, Ranks
from sps.rollout import RolloutEngine
from sps.run.health import Health
from sps.run.stop import Stop
from sps.run.track import Track
from sps.store.difficulty import Difficulty
from sps.store.memory import Memory
from sps.store.rollouts import RolloutStore
from sps.tasks import Task
from sps.types import Problem
from sps.verify import Verifier


@dataclass
class Run:
    """Everything the phases work with; put together in build.py."""

    recipe: Recipe
    policy: Policy
    reference: Scorer | None  # the frozen base when beta > 0
    engine: RolloutEngine
    verifier: Verifier
    task: Task
    sampler: Sampler
    store: RolloutStore
    optimizer: torch.optim.Optimizer
    budget: Budget
    folder: Path
    track: Track
    load: Callable[[str | None], Policy]  # a checkpoint, or the base, into the host's memory
    train: list[Problem]
    validation: list[Problem] = field(default_factory=list)
    test: list[Problem] = field(default_factory=list)
    irl_optimizer: torch.optim.Optimizer | None = None  # carried over: irl.optimizer_state: kept
    probe: Probe | None = None
    memory: Memory | None = None  # right rollouts of the whole run: irl.memory
    difficulty: Difficulty | None = None  # what problems are drawn by: rl.sampling
    ranks: Ranks = ALONE
    stop: Stop = field(default_factory=Stop)
    base_apart: bool = False  # the base's other temperatures are measured once for several runs
    health: Health = field(default_factory=lambda: Health(1))
    data: str = ""  # a digest of all questions and answers; empty: not known
    judge_failed: str = ""  # what the first verdict says that the last step's judge failed at
    # How far it is, in RL steps. A checkpoint holds all but `start`.
    start: int = 0  # done before this process
    done: int = 0  # whose updates are in the weights, the IRL phase after the last one included
    settled: int = 0  # whose evaluation and checkpoint are made; a stop may come between
    cursor: int = 0  # of the sampler after `done`; during a step the sampler itself is ahead
    scores: dict[int, Scores] = field(default_factory=dict)  # validation scores by step
    shelf: dict[str, torch.Tensor] = field(default_factory=dict)  # host memory of the meters
    prompts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """Its phases, evaluations and checkpoints."""
        return Schedule(self.recipe, len(self.train))

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """Token ids of a problem's prompt, encoded once."""
        if problem.id not in self.prompts:
            self.prompts[problem.id] = self.policy.encode(self.task.prompt(problem))
        return self.prompts[problem.id]

    def trainer_state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the weights. Random numbers need no state: all are drawn
        from counters, so the step and the sampler's cursor are enough."""
        probe = self.probe
        return {
            "optimizer": optimizer_state(self.policy.model, self.optimizer, self.ranks.main),
            "irl_optimizer": optimizer_state(
                self.policy.model, self.irl_optimizer, self.ranks.main
            ),
            "probe": None
            if probe is None
            else [[torch.tensor(x) for x in part] for part in (probe.prompts, probe.completions)],
        }

    def close(self) -> None:
        """Give back what engines and verifiers hold."""
        self.verifier.close()
        self.engine.close()
