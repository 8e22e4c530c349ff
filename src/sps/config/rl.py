"""The `rl` branch of a recipe: the algorithm with its keys, the optimizer, the steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sps.schema import Node, NonNegative, Positive, Rate, Share


class AlgorithmConfig(Node):
    """What every RL algorithm has."""

    type: str
    beta: Rate = 0.0  # weight of the k3 KL to the reference policy; the paper uses 0.01
    steps_per_generation: Positive = 1  # optimizer steps that share the rollouts of one policy

    def check_group(self, n: int) -> None:
        """Refuse groups of n rollouts that this algorithm cannot learn from."""


class Grpo(AlgorithmConfig):
    """GRPO (arXiv 2402.03300): token ratios, mean of sequence means."""

    type: Literal["grpo"] = "grpo"
    eps: Rate = 0.2


class DrGrpo(AlgorithmConfig):
    """Dr. GRPO (arXiv 2503.20783): no division by the group's spread nor by a sequence's length."""

    type: Literal["dr_grpo"] = "dr_grpo"
    eps: Rate = 0.2


class Dapo(AlgorithmConfig):
    """DAPO (arXiv 2503.14476): clip-higher, token mean, dynamic sampling, overlong punishment."""

    type: Literal["dapo"] = "dapo"
    eps: Rate = 0.2
    eps_high: Rate = 0.28
    max_resample_times: NonNegative = 3
    soft_cache_length: NonNegative = 0  # tokens before the limit where punishment starts; 0: off


class Gspo(AlgorithmConfig):
    """GSPO (arXiv 2507.18071): one ratio a sequence."""

    type: Literal["gspo"] = "gspo"
    eps: Rate = 3e-4
    eps_high: Rate = 4e-4
    steps_per_generation: Positive = 4


class PassK(AlgorithmConfig):
    """Pass@k training (arXiv 2508.10751): GRPO, rewarded for what k samples together solve."""

    type: Literal["pass_at_k"] = "pass_at_k"
    k: Positive = 4  # below rollout.n; 1 is GRPO
    eps: Rate = 0.2

    def check_group(self, n: int) -> None:
        """A group is more than one set of k."""
        if self.k >= n:
            raise ValueError(
                f"rl.algorithm.k ({self.k}) is not below rollout.n ({n}): one set of k has nothing "
                f"to be compared with; set rollout.n above {self.k}, or k below {n}"
            )


class WReinforce(AlgorithmConfig):
    """Weighted REINFORCE (arXiv 2506.01347): -1 for a wrong answer, little for a right one."""

    type: Literal["w_reinforce"] = "w_reinforce"
    right: Rate = 0.1  # reward of a right answer; 0 learns from wrong ones alone
    eps: Rate = 0.2


class MaxRl(AlgorithmConfig):
    """MaxRL (arXiv 2602.02710): advantages divided by the success rate, not by the spread."""

    type: Literal["maxrl"] = "maxrl"
    eps: Rate = 0.2


class DifferentialSmoothing(AlgorithmConfig):
    """Differential smoothing (arXiv 2511.19942): GRPO, and unlikely right answers gain more."""

    type: Literal["differential_smoothing"] = "differential_smoothing"
    # Advantage for each nat of a whole rollout. Its authors tune it to the task; 0.01 suits
    # log-probabilities of some tens of nats, as in Countdown. Longer answers need less.
    gamma: Rate = 0.01
    eps: Rate = 0.2


class Ucpo(AlgorithmConfig):
    """UCPO (arXiv 2605.00365): GRPO, with more of the advantage for unlikely right answers."""

    type: Literal["ucpo"] = "ucpo"
    mix: Share = 0.2  # share of the right answers' advantage that goes by how unlikely they are
    eps: Rate = 0.2


class Bbg(AlgorithmConfig):
    """Bayesian Boundary Gating (arXiv 2606.15455): GRPO on prompts that may still gain Pass@k."""

    type: Literal["bbg"] = "bbg"
    k: Positive = 16  # of the Pass@k to be raised; may be above rollout.n
    floor: Share = 0.01  # weights u(c) / u(1) below this are set to 0
    eps: Rate = 0.2


class RsGrpo(AlgorithmConfig):
    """RS-GRPO (arXiv 2509.24261): a risk-seeking advantage."""

    type: Literal["rs_grpo"] = "rs_grpo"
    risk: Annotated[float, Field(gt=0, le=30)] = 2.0  # its beta; towards 0 it is Dr. GRPO's
    eps: Rate = 0.2


class Unlikeliness(AlgorithmConfig):
    """The unlikeliness reward (arXiv 2506.02355): GRPO, less reward for a group's likelier ones."""

    type: Literal["unlikeliness"] = "unlikeliness"
    # Share of its reward that the likeliest rollout loses, times (G - 1) / G; below 1, so that a
    # right one keeps some.
    penalty: Annotated[float, Field(ge=0, lt=1)] = 0.25
    eps: Rate = 0.2


class Cispo(AlgorithmConfig):
    """CISPO (arXiv 2506.13585): capped ratios weight the gradient, and no token is left out."""

    type: Literal["cispo"] = "cispo"
    # Its authors bound the ratio from above alone and do not print the bound; 5 is ScaleRL's
    # (arXiv 2510.13786).
    max_ratio: Annotated[float, Field(ge=1)] = 5.0


class KlCov(AlgorithmConfig):
    """KL-Cov (arXiv 2505.22617): a KL to the sampler on tokens that would cost most entropy."""

    type: Literal["kl_cov"] = "kl_cov"
    share: Annotated[float, Field(gt=0, lt=1)] = 2e-4  # of the batch's tokens; at least one
    coefficient: Rate = 1.0
    steps_per_generation: Positive = 2

    @model_validator(mode="after")
    def _later_steps(self) -> KlCov:
        if self.steps_per_generation == 1:
            raise ValueError(
                "steps_per_generation: 1 leaves kl_cov without effect, since its KL to the policy "
                "that sampled has no gradient in the first step; set steps_per_generation to 2 or "
                "more, or type: clip_cov"
            )
        return self


class ClipCov(AlgorithmConfig):
    """Clip-Cov (arXiv 2505.22617): no gradient at some of the tokens that cost most entropy."""

    type: Literal["clip_cov"] = "clip_cov"
    share: Annotated[float, Field(gt=0, lt=1)] = 2e-4  # of the batch's tokens; at least one
    low: float = 1.0  # bounds of the covariance of advantage and log-probability
    high: float = 5.0
    eps: Rate = 0.2

    @model_validator(mode="after")
    def _bounds(self) -> ClipCov:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) is not below high ({self.high}): set it below")
        return self


class Raft(AlgorithmConfig):
    """RAFT, or expert iteration (arXiv 2304.06767): cross-entropy on the batch's right rollouts."""

    type: Literal["raft"] = "raft"


class NoGradient(AlgorithmConfig):
    """No policy gradient: with memory it is rejection sampling fine-tuning (arXiv 2308.01825)."""

    type: Literal["none"] = "none"


def _typed(value: Any) -> Any:
    """A mapping without a type is GRPO, the default."""
    return {"type": "grpo", **value} if isinstance(value, dict) else value


AnyAlgorithm = Annotated[
    Grpo
    | DrGrpo
    | Dapo
    | Gspo
    | PassK
    | WReinforce
    | MaxRl
    | DifferentialSmoothing
    | Ucpo
    | Bbg
    | RsGrpo
    | Unlikeliness
    | Cispo
    | KlCov
    | ClipCov
    | Raft
    | NoGradient,
    Field(discriminator="type"),
    BeforeValidator(_typed),
]

Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Node):
    """AdamW."""

    bits: Literal[32, 8] = 32  # of its moments: 8 or 2 bytes a weight (8: extra `8bit`)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Rate = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: NonNegative = 0


class SamplingConfig(Node):
    """Which training problems a step draws."""

    # difficulty: problems that were always or never solved of late are drawn less
    by: Literal["uniform", "difficulty"] = "uniform"
    # weight of a problem whose rewards no longer differ, over one solved half the time or unseen
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _has_weights(self) -> SamplingConfig:
        if self.by == "uniform" and self.floor != SamplingConfig.model_fields["floor"].default:
            raise ValueError(
                "floor does nothing with by: uniform; set by: difficulty, or leave it out"
            )
        return self


class RL(Node):
    """The RL phases."""

    algorithm: AnyAlgorithm = Grpo()
    sampling: SamplingConfig = SamplingConfig()
    steps: Positive = 300  # in all, over every RL phase
    lr: Annotated[float, Field(gt=0)] = 1e-4
    entropy: Rate = 0.0  # weight of a bonus for the entropy at each token
    optimizer: Optimizer = Optimizer()
    max_skipped: Positive = 3  # updates in a row, RL's and IRL's, skipped because loss or gradient
    # were not finite, after which the run ends
    micro_tokens: Positive = 16384  # padded tokens in one forward pass; bounds memory
