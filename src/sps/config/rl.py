"""The `rl` branch of a recipe: an algorithm, its optimizer, how long it goes on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sps.config.node import Node, NonNegative, Positive, Rate


class Grpo(Node):
    """GRPO: token ratios, mean of sequence means."""

    type: Literal["grpo"] = "grpo"
    eps: Rate = 0.2
    beta: Rate = 0.0  # weight of the k3 KL to the reference policy; the paper uses 0.01
    steps_per_generation: Positive = 1


class DrGrpo(Node):
    """Dr. GRPO: no division by the group's spread nor by each sequence's length."""

    type: Literal["dr_grpo"] = "dr_grpo"
    eps: Rate = 0.2
    beta: Rate = 0.0
    steps_per_generation: Positive = 1


class Dapo(Node):
    """DAPO: clip-higher, token mean, dynamic sampling, soft overlong punishment."""

    type: Literal["dapo"] = "dapo"
    eps: Rate = 0.2
    eps_high: Rate = 0.28
    beta: Rate = 0.0
    steps_per_generation: Positive = 1
    max_resample_times: NonNegative = 3
    soft_cache_length: NonNegative = 0  # tokens before the limit where punishment starts; 0: off


class Gspo(Node):
    """GSPO: one ratio a sequence."""

    type: Literal["gspo"] = "gspo"
    eps: Rate = 3e-4
    eps_high: Rate = 4e-4
    beta: Rate = 0.0
    steps_per_generation: Positive = 4


class PassK(Node):
    """Pass@k training (arXiv 2508.10751): GRPO, rewarded for what k samples together solve."""

    type: Literal["pass_at_k"] = "pass_at_k"
    k: Positive = 4  # below rollout.n; 1 is GRPO
    eps: Rate = 0.2
    beta: Rate = 0.0
    steps_per_generation: Positive = 1


class WReinforce(Node):
    """Weighted REINFORCE (arXiv 2506.01347): -1 for a wrong answer, little for a right one."""

    type: Literal["w_reinforce"] = "w_reinforce"
    right: Rate = 0.1  # reward of a right answer; 0 learns from wrong ones alone
    eps: Rate = 0.2
    beta: Rate = 0.0
    steps_per_generation: Positive = 1


def _typed(value: Any) -> Any:
    """A mapping without a type is GRPO, the default."""
    return {"type": "grpo", **value} if isinstance(value, dict) else value


AlgorithmSettings = Annotated[
    Grpo | DrGrpo | Dapo | Gspo | PassK | WReinforce,
    Field(discriminator="type"),
    BeforeValidator(_typed),
]

Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Node):
    """AdamW."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Rate = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: NonNegative = 0


class RL(Node):
    """The RL phases."""

    algorithm: AlgorithmSettings = Grpo()
    steps: Positive = 300  # in all, over every RL phase
    lr: Annotated[float, Field(gt=0)] = 1e-4
    entropy: Rate = 0.0  # weight of a bonus for the entropy at each token
    optimizer: Optimizer = Optimizer()
    max_skipped: Positive = 3  # updates in a row (IRL's too) with a loss or gradient that is not
    # finite, which are skipped; after so many the run ends
    micro_tokens: Positive = 16384  # padded tokens in one forward pass; bounds memory
