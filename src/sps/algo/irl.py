"""Inverse RL on the policy's own rollouts: which to keep (L2TE), and the forward KL towards them.

Axes: P groups, G rollouts a group, B sequences, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sps.algo.rl import mean_of_sequence_means, token_mean
from sps.errors import row_of

if TYPE_CHECKING:
    from sps.config.irl import SelectorName


def forward_kl(new_BT: Tensor, weight_B: Tensor, mask_BT: Tensor) -> Tensor:
    """KL(kept rollouts || policy) up to a constant: the kept rollouts' weighted cross-entropy.

    The empirical target is degenerate, so its entropy does not depend on the policy, and minimising
    the KL is minimising -log pi(y'|x). (The paper prints a minus sign more; see docs/algorithm.md.)
    """
    return -(torch.where(mask_BT, new_BT, 0.0).sum(-1) * weight_B).sum()


def js_divergence(new_BT: Tensor, base_BT: Tensor, weight_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Twice the Jensen-Shannon divergence from the base, on tokens that the base drew.

    DPH-RL's generator (arXiv 2509.07430): f(u) = u log u - (u + 1) log((u + 1) / 2), where u is the
    policy's probability of a token over the base's. It is 0, and so is its slope, where they agree.
    """
    log_u_BT = torch.where(mask_BT, new_BT - base_BT, 0.0)
    u_BT = log_u_BT.exp()
    log_mean_BT = torch.nn.functional.softplus(log_u_BT) - math.log(2)  # of u and 1
    f_BT = u_BT * log_u_BT - (u_BT + 1) * log_mean_BT
    return (torch.where(mask_BT, f_BT, 0.0).sum(-1) * weight_B).sum()


_MEANS = {"token": token_mean, "sequence": mean_of_sequence_means}


def irl_weight(length_B: Tensor, reduce: str) -> Tensor:
    """Weight of each token in a mean over tokens ('token') or over sequences ('sequence')."""
    return _MEANS[reduce](length_B, 0)  # neither uses the limit


# Selectors: reward_PG, likelihood_PG, low_PG (in the lower quantile), k, rng -> keep_PG.
Selector = Callable[[np.ndarray, np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]


def lower_quantile(likelihood_PG: np.ndarray, quantile: float, over: str) -> np.ndarray:
    """Which rollouts are in the lower quantile of likelihood, of their group or of the batch.

    By rank, the lowest ceil(quantile * count): a quantile of values would lose ties.
    """
    if over == "batch":
        flat = likelihood_PG.reshape(1, -1)
        return lower_quantile(flat, quantile, "group").reshape(likelihood_PG.shape)
    rank_PG = likelihood_PG.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    # Minus 1e-9, so that 0.07 of 100, which is 7.000000000000001, counts as 7 and not 8.
    return rank_PG < np.ceil(quantile * likelihood_PG.shape[1] - 1e-9)


def l2te(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """Low-Likelihood Trajectory Emphasis: negatives of the lower quantile first, topped up.

    Order: negatives in the lower quantile, positives in it, then the other negatives and positives;
    within each, the least likely first.
    """
    negative_PG = reward_PG <= 0
    tier_PG = np.where(low_PG, 0, 2) + np.where(negative_PG, 0, 1)
    return _lowest(tier_PG, likelihood_PG, k)


def uniform(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """Any k of the group: section 4.1 of the paper."""
    return _lowest(np.zeros_like(reward_PG), rng.random(reward_PG.shape), k)


def low_likelihood(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """The k least likely, right or wrong."""
    return _lowest(np.zeros_like(reward_PG), likelihood_PG, k)


def low_likelihood_positive(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """The least likely of the correct ones, at most k; none of a group without any."""
    positive_PG = reward_PG > 0
    return _lowest(np.where(positive_PG, 0, 1), likelihood_PG, k) & positive_PG


def positive(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """At most k of the correct ones, at random."""
    positive_PG = reward_PG > 0
    return _lowest(np.where(positive_PG, 0, 1), rng.random(reward_PG.shape), k) & positive_PG


def negative(reward_PG, likelihood_PG, low_PG, k, rng) -> np.ndarray:
    """At most k of the wrong ones, the least likely first."""
    negative_PG = reward_PG <= 0
    return _lowest(np.where(negative_PG, 0, 1), likelihood_PG, k) & negative_PG


SELECTORS: dict[SelectorName, Selector] = {
    "l2te": l2te,
    "uniform": uniform,
    "low_likelihood": low_likelihood,
    "low_likelihood_positive": low_likelihood_positive,
    "positive": positive,
    "negative": negative,
}


def selector_of(name: str) -> Selector:
    """The selector that a recipe asks for."""
    return row_of(SELECTORS, name, "irl.selector.type", "SELECTORS (sps/algo/irl.py)")


def select_groups(
    reward_PG: np.ndarray,
    likelihood_PG: np.ndarray,
    selector: SelectorName,
    keep: int,
    quantile: float,
    over: str,
    rng: np.random.Generator,
) -> np.ndarray:
    """Which rollouts of some groups are kept: `keep` of each, or fewer, as keep_PG."""
    low_PG = lower_quantile(likelihood_PG, quantile, over)
    return selector_of(selector)(reward_PG, likelihood_PG, low_PG, keep, rng)


def _lowest(tier_PG: np.ndarray, value_PG: np.ndarray, k: int) -> np.ndarray:
    """The k of each row that come first by tier and then by value; ties by position."""
    order_PG = np.lexsort((value_PG, tier_PG), axis=1)
    keep_PG = np.zeros(tier_PG.shape, dtype=bool)
    np.put_along_axis(keep_PG, order_PG[:, :k], True, axis=1)
    return keep_PG
