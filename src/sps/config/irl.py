"""The `irl` branch of a recipe: IRL phases, their selector, and memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sps.config.rl import Optimizer
from sps.schema import Node, NonNegative, Positive, Rate

# The keys of SELECTORS in algo/irl.py, which a recipe may name.
SelectorName = Literal[
    "l2te", "uniform", "low_likelihood", "low_likelihood_positive", "positive", "negative"
]


class SelectorConfig(Node):
    """Which rollouts of a group the IRL phase keeps. Every ambiguity of the paper is a key here."""

    type: SelectorName = "l2te"
    likelihood: Literal["mean", "sum"] = "mean"  # over the tokens of a trajectory
    under: Literal["sampler", "policy"] = "sampler"  # the policy that drew it, or the one after RL
    quantile: Annotated[float, Field(gt=0, le=1)] = 0.5
    quantile_over: Literal["group", "batch"] = "group"


class MemoryConfig(Node):
    """Memory: in each RL step, a forward KL towards right rollouts of the whole run."""

    weight: Rate = 0.0  # of the forward KL in loss = RL loss + weight * forward KL; 0: no memory
    problems: Literal["batch", "all"] = "batch"  # recall those of the step's problems, or of any
    distinct: bool = True  # the latest of each distinct solution; false: of each problem
    per_problem: Positive = 16  # rollouts recalled of a problem, at most; drawn at random
    age: NonNegative = 0  # RL steps after which a rollout is no longer recalled; 0: never
    quantile: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of a problem's, the least likely
    share: Annotated[float, Field(gt=0)] = 1.0  # recalled tokens over the batch's, at most
    reduce: Literal["token", "sequence"] = "token"  # mean over tokens, or over sequences


class IRL(Node):
    """Inverse RL: forward KL towards rollouts of the policy itself, in phases between RL phases
    (`steps`), beside each RL step (`memory`), or both."""

    steps: NonNegative = 4  # optimizer steps a phase; 0 is plain RL
    every: NonNegative = 0  # RL steps between phases; 0: one pass over the training problems
    lr: Rate | None = None  # None: from `reach`, rl.lr and the steps of both phases
    # Ratio of weight change, IRL phase to RL phase: sets the learning rate where lr is None.
    reach: Annotated[float, Field(gt=0)] = 0.35
    batch: Positive = 512
    keep: Positive = 3  # rollouts kept of each group
    selector: SelectorConfig = SelectorConfig()
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    reduce: Literal["token", "sequence"] = "token"
    optimizer: Optimizer = Optimizer()
    memory: MemoryConfig = MemoryConfig()

    @model_validator(mode="after")
    def _whole(self) -> IRL:
        if self.optimizer.warmup_steps:
            raise ValueError("optimizer.warmup_steps: an IRL phase has no warm-up; leave it out")
        if self.lr is not None and self.reach != IRL.model_fields["reach"].default:
            raise ValueError("reach does nothing where lr is set; set lr: null, or reach: 0.35")
        return self
