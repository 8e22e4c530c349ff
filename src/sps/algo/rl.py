"""RL from verifiable rewards: advantages, ratios, surrogates, and what an algorithm is made of.

A batch loss is a sum over tokens of weight * term. The weights are set once for the whole batch, so
micro-batches add up to exactly the same gradient, and rows that cannot matter can be left out.
The table of algorithms is in table.py, the equations of SPS's rivals are in rivals.py.

Axes: P problems, G samples a problem, B sequences, T completion tokens, N tokens of a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcomes:
    """What an advantage may read of some groups of rollouts."""

    reward_PG: Tensor
    sum_PG: Tensor  # log-probability of each rollout under the policy that sampled it
    mean_PG: Tensor  # the same, over its length
    length_PG: Tensor

    @property
    def right_PG(self) -> Tensor:
        """Which rollouts are right: those with a reward above 0."""
        return self.reward_PG > 0


def centred(reward_PG: Tensor) -> Tensor:
    """Dr. GRPO's advantage: reward minus the group's mean."""
    # Measured from the first reward: the mean of equal numbers may be off by a rounding error.
    shifted_PG = reward_PG - reward_PG[..., :1]
    return shifted_PG - shifted_PG.mean(-1, keepdim=True)


def normalised(reward_PG: Tensor) -> Tensor:
    """GRPO's advantage (equation 'group-normalize'): divided by the group's standard deviation.

    The 1e-4 keeps a group of equal rewards at zero; the deviation is the sample one (n - 1).
    """
    return centred(reward_PG) / (reward_PG.std(-1, keepdim=True) + 1e-4)


def overlong_penalty(length_B: Tensor, limit: int, cache: int) -> Tensor:
    """DAPO's soft overlong punishment: 0 up to limit - cache, linearly down to -1 at the limit."""
    if cache == 0:
        return torch.zeros_like(length_B, dtype=torch.float32)
    return ((limit - cache - length_B) / cache).clamp(-1, 0)


def overlong_shaping(outcomes: Outcomes, limit: int, cache: int) -> Tensor:
    """Rewards less DAPO's punishment."""
    return outcomes.reward_PG + overlong_penalty(outcomes.length_PG, limit, cache)


def token_ratio(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Importance ratio of each token; 1 on padding."""
    # where, not multiply: a padded log-probability may be -inf, and -inf * 0 is nan.
    return torch.where(mask_BT, new_BT - old_BT, 0.0).exp()


def sequence_ratio(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """GSPO's ratio s_i: geometric mean of a sequence's token ratios, for each token."""
    log_ratio_BT = torch.where(mask_BT, new_BT - old_BT, 0.0)
    mean_B1 = log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return mean_B1.exp().expand_as(new_BT)


def clipped(ratio_BT: Tensor, adv_B: Tensor, low: float, high: float) -> Tensor:
    """Minus the clipped surrogate: -min(r A, clip(r, 1 - low, 1 + high) A)."""
    adv_B1 = adv_B[:, None]
    bounded_BT = ratio_BT.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio_BT * adv_B1, bounded_BT * adv_B1)


def clip_binds(ratio_BT: Tensor, adv_B: Tensor, low: float, high: float) -> Tensor:
    """Where `clipped` is constant: no gradient. At the bound itself it is not."""
    up, down = adv_B[:, None] > 0, adv_B[:, None] < 0
    return (up & (ratio_BT > 1 + high)) | (down & (ratio_BT < 1 - low))


def k3(new_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(new || ref) at each token: never negative, unbiased."""
    gap_BT = torch.where(mask_BT, ref_BT - new_BT, 0.0)
    return gap_BT.exp() - gap_BT - 1


def truncated_weight(new_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: w = min(exp(new - engine), cap) at each token, no gradient.

    It corrects for an engine whose probabilities differ from the trainer's: the tokens were sampled
    by the engine, the gradient is the trainer's. The cap bounds the variance; 1 on padding.
    """
    return token_ratio(new_BT.detach(), engine_BT, mask_BT).clamp(max=cap)


def engine_gap(new_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor) -> dict[str, Tensor]:
    """How far trainer and engine disagree on sampled tokens, as sums over them, in nats.

    The absolute gap, its square, and the k3 estimate of KL(engine || trainer).
    """
    new_BT = new_BT.detach()
    gap_BT = torch.where(mask_BT, new_BT - engine_BT, 0.0)
    kl_BT = k3(engine_BT, new_BT, mask_BT)
    return {"gap": gap_BT.abs().sum(), "gap_square": gap_BT.square().sum(), "gap_kl": kl_BT.sum()}


# How a batch is averaged: the weight of each token of a sequence, from the lengths of all of them.


def mean_of_sequence_means(length_B: Tensor, limit: int) -> Tensor:
    """GRPO and GSPO: every sequence counts the same."""
    return 1 / (len(length_B) * length_B.clamp(min=1))


def token_mean(length_B: Tensor, limit: int) -> Tensor:
    """DAPO: every token counts the same."""
    return (1 / length_B.sum().clamp(min=1)).expand(len(length_B))


def constant_length(length_B: Tensor, limit: int) -> Tensor:
    """Dr. GRPO: every token counts the same, and a batch of short answers is not scaled up."""
    return torch.full((len(length_B),), 1 / (len(length_B) * limit))


def entropy_bonus(entropy_BT: Tensor, weight_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The batch's mean entropy at a token, averaged as its loss is."""
    return (torch.where(mask_BT, entropy_BT, 0.0).sum(-1) * weight_B).sum()


@dataclass(frozen=True)
class Terms:
    """What a loss reads of some rows of a batch."""

    new_BT: Tensor  # log-probabilities under the policy being trained, with gradient
    old_BT: Tensor  # under the policy that sampled, or `new` itself when that is the same policy
    ref_BT: Tensor | None  # under the reference policy, when beta > 0
    adv_B: Tensor
    weight_B: Tensor
    mask_BT: Tensor
    correct_BT: Tensor | None = None  # importance weight of the engine: `truncated_weight`
    chosen_BT: Tensor | None = None  # tokens that the algorithm's `choose` picked


# Terms and ratios -> the term of each token, and the tokens whose ratio is out of bounds.
Surrogate = Callable[[Terms, Tensor], tuple[Tensor, Tensor]]


def clipped_surrogate(low: float, high: float) -> Surrogate:
    """PPO's, as GRPO, DAPO and GSPO have it."""

    def surrogate(terms: Terms, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        bounds = (ratio_BT, terms.adv_B, low, high)
        return clipped(*bounds), clip_binds(*bounds)

    return surrogate


@dataclass(frozen=True)
class Algorithm:
    """What sets an RL algorithm apart; its settings are bound in already (table.py)."""

    advantage: Callable[[Outcomes], Tensor]  # -> advantage_PG
    surrogate: Surrogate
    weight: Callable[[Tensor, int], Tensor]  # lengths, limit -> weight_B
    ratio: Callable[[Tensor, Tensor, Tensor], Tensor] = token_ratio  # new, old, mask -> ratio_BT
    # Reward shaping: groups as they were judged, limit -> reward_PG. None: as they were judged.
    shape: Callable[[Outcomes, int], Tensor] | None = None
    # Tokens that the surrogate treats apart: advantages, log-probabilities under the sampler, seed
    # -> chosen_N. From the whole batch, so that micro-batches do not change it.
    choose: Callable[[Tensor, Tensor, int], Tensor] | None = None
    resample: int = 0  # further draws for groups that agree (DAPO's dynamic sampling)


def policy_loss(
    terms: Terms, algorithm: Algorithm, beta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch, and sums to be added up over all of them."""
    mask_BT, new_BT = terms.mask_BT, terms.new_BT
    ratio_BT = algorithm.ratio(new_BT, terms.old_BT, mask_BT)
    term_BT, out_BT = algorithm.surrogate(terms, ratio_BT)
    if terms.correct_BT is not None:
        term_BT = term_BT * terms.correct_BT
    if beta and terms.ref_BT is not None:
        term_BT = term_BT + beta * k3(new_BT, terms.ref_BT, mask_BT)
    loss = (torch.where(mask_BT, term_BT, 0.0).sum(-1) * terms.weight_B).sum()
    with torch.no_grad():
        sums = {
            "clipped": (out_BT & mask_BT).sum(),
            "ratio": torch.where(mask_BT, ratio_BT, 0.0).sum(),
            "tokens": mask_BT.sum(),
        }
        if terms.ref_BT is not None:
            sums["kl"] = torch.where(mask_BT, k3(new_BT, terms.ref_BT, mask_BT), 0.0).sum()
    return loss, sums
