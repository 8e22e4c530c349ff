"""The `rl` and `irl` branches of a recipe: an algorithm, its optimizer, how long it goes on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sps.config.tasks import Node, NonNegative, Positive, Rate


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


class NoGradient(Node):
    """No policy gradient: the control that learns from memory, or IRL phases, alone."""

    type: Literal["none"] = "none"
    eps: Rate = 0.2
    beta: Literal[0] = 0
    steps_per_generation: Positive = 1


def _typed(value: Any) -> Any:
    """A mapping without a type is GRPO, the default."""
    return {"type": "grpo", **value} if isinstance(value, dict) else value


Algorithm = Annotated[
    Grpo | DrGrpo | Dapo | Gspo | PassK | WReinforce | NoGradient,
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

    algorithm: Algorithm = Grpo()
    steps: Positive = 300  # in all, over every RL phase
    lr: Annotated[float, Field(gt=0)] = 1e-4
    entropy: Rate = 0.0  # weight of a bonus for the entropy at each token
    optimizer: Optimizer = Optimizer()
    max_skipped: Positive = 3  # updates in a row (IRL's too) with a loss or gradient that is not
    # finite, which are skipped; after so many the run ends
    micro_tokens: Positive = 16384  # padded tokens in one forward pass; bounds memory


class Selector(Node):
    """Which rollouts of a group the IRL phase keeps. Every ambiguity of the paper is a key here."""

    type: Literal[
        "l2te", "uniform", "low_likelihood", "low_likelihood_positive", "positive", "negative"
    ] = "l2te"
    likelihood: Literal["mean", "sum"] = "mean"  # over the tokens of a trajectory
    under: Literal["sampler", "policy"] = "sampler"  # the policy that drew it, or the one after RL
    quantile: Annotated[float, Field(gt=0, le=1)] = 0.5
    quantile_over: Literal["group", "batch"] = "group"


class Memory(Node):
    """Right rollouts of the whole run, remembered: in each RL step a forward KL towards them."""

    weight: Rate = 0.0  # of that forward KL beside the RL loss; 0: nothing is remembered
    problems: Literal["batch", "all"] = "batch"  # whose rollouts a step recalls: its own, or any
    distinct: bool = True  # one rollout for each distinct solution; false: the last right one alone
    per_problem: Positive = 16  # rollouts recalled of a problem, drawn at random if there are more
    age: NonNegative = 0  # RL steps after which a rollout is forgotten; 0: never
    quantile: Annotated[float, Field(gt=0, le=1)] = 1.0  # of a problem's rollouts the least likely
    share: Annotated[float, Field(gt=0)] = 1.0  # tokens recalled, at most, over those of the batch
    reduce: Literal["token", "sequence"] = "token"  # which of them count alike


class IRL(Node):
    """The inverse-RL side: forward KL towards rollouts of the policy's own, in phases between the
    RL steps (`steps`), beside each of them (`memory`), or both."""

    steps: NonNegative = 4  # optimizer steps a phase; 0 is plain RL
    every: NonNegative = 0  # RL steps between phases; 0: one pass over the training problems
    lr: Rate | None = None  # None: the one that `reach` takes, by rl.lr and the lengths of both
    reach: Annotated[float, Field(gt=0)] = (
        0.35  # way of the weights in an IRL phase, over an RL one
    )
    batch: Positive = 512
    keep: Positive = 3  # rollouts kept of each group
    selector: Selector = Selector()
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    reduce: Literal["token", "sequence"] = "token"
    optimizer: Optimizer = Optimizer()
    memory: Memory = Memory()

    @model_validator(mode="after")
    def _whole(self) -> IRL:
        if self.optimizer.warmup_steps:
            raise ValueError("optimizer.warmup_steps: an IRL phase has no warm-up; leave it out")
        if self.lr is not None and self.reach != IRL.model_fields["reach"].default:
            raise ValueError("reach does nothing where lr is set; set lr: null, or reach: 0.35")
        return self
