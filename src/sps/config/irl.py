"""The `irl` branch of a recipe: IRL phases, their selector, and memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sps.config.rl import Optimizer
from sps.schema import Node, NonNegative, Positive, Rate, Share

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
    """Memory: right rollouts, and a divergence from them beside each RL step, or in IRL phases."""

    weight: Rate = 0.0  # of it in loss = RL loss + weight * divergence; 0: none beside RL steps
    when: Literal["step", "phase", "both"] = "step"  # beside RL steps; in IRL phases; or both
    source: Literal["run", "base"] = "run"  # rollouts of the whole run, or of the first policy
    solved: Share = 0.0  # base: the least success rate of a problem under it to be remembered
    divergence: Literal["forward_kl", "js"] = "forward_kl"  # js: of the base's rollouts alone
    problems: Literal["batch", "all"] = "batch"  # recall those of the step's problems, or of any
    distinct: bool = True  # the latest of each distinct solution; false: of each problem, or all
    # of the base's
    per_problem: Positive = 16  # rollouts recalled of a problem, at most; drawn at random
    age: NonNegative = 0  # RL steps after which a rollout is no longer recalled; 0: never
    quantile: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of a problem's, the least likely
    share: Annotated[float, Field(gt=0)] = 1.0  # recalled tokens over the batch's, at most
    reduce: Literal["token", "sequence"] = "token"  # mean over tokens, or over sequences

    @property
    def on(self) -> bool:
        """Whether anything is remembered."""
        return self.weight > 0 or self.in_phases

    @property
    def in_phases(self) -> bool:
        """Whether IRL phases learn from it, instead of from what the selector keeps."""
        return self.when != "step"

    @model_validator(mode="after")
    def _whole(self) -> MemoryConfig:
        if self.when == "phase" and self.weight:
            raise ValueError("weight is of memory beside RL steps; set when: both, or weight: 0")
        if self.when == "both" and not self.weight:
            raise ValueError("when: both needs a weight beside RL steps, such as weight: 1")
        if self.source == "run" and self.solved:
            raise ValueError(
                "solved is a rate under the base policy; set source: base, or leave it"
            )
        if self.source == "run" and self.divergence == "js":
            raise ValueError(
                "divergence: js is from one policy, the base, on its rollouts; set source: base, "
                "or divergence: forward_kl"
            )
        if self.divergence == "js" and self.in_phases:
            raise ValueError("IRL phases take a forward KL; with divergence: js set when: step")
        if self.source == "base" and self.age:
            raise ValueError(
                "age would forget all that the base drew; with source: base set age: 0"
            )
        if self.source == "base" and not self.on:
            raise ValueError(
                "source: base draws what nothing learns from; set a weight, such as 0.05"
            )
        return self


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
        if self.memory.in_phases:
            if not self.steps:
                raise ValueError(f"memory.when: {self.memory.when} needs IRL phases; set steps: 4")
            if self.selector != SelectorConfig() or self.keep != IRL.model_fields["keep"].default:
                raise ValueError(
                    f"selector and keep do nothing with memory.when: {self.memory.when}, as IRL "
                    "phases learn from memory; leave them out, or set memory.when: step"
                )
        return self
