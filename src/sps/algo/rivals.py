"""The equations of SPS's rivals: other ways to keep Pass@k while Pass@1 rises.

Rewards are 1 for a right answer and 0 for a wrong one; c of a group's G rollouts are right, and
p = c / G. Log-probabilities are those of the policy that sampled, and carry no gradient.

Axes as in rl.py: P problems, G samples a problem, B sequences, T tokens, N tokens of a batch.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from sps.algo.rl import Outcomes, Surrogate, Terms, centred, normalised

# Advantages.


def pass_at_k(reward_PG: Tensor, k: int) -> Tensor:
    """Pass@k training (arXiv 2508.10751): the mean GRPO advantage of the sets of k it belongs to.

    A set is right when any of it is. With w wrong of n, a share C(w, k) / C(n, k) of the sets is
    wrong; a right rollout's sets are all right, and of a wrong one's C(w-1, k-1) / C(n-1, k-1) are
    not. k = 1 is GRPO, but for the spread of the population in place of the sample's.
    """
    right_PG = reward_PG > 0
    n, wrong_P1 = reward_PG.shape[-1], (~right_PG).sum(-1, keepdim=True)
    chance = torch.tensor([1 - comb(w, k) / comb(n, k) for w in range(n + 1)])
    own = torch.tensor([comb(max(w - 1, 0), k - 1) / comb(n - 1, k - 1) for w in range(n + 1)])
    mean_P1 = chance.to(reward_PG)[wrong_P1]
    spread_P1 = (mean_P1 * (1 - mean_P1)).sqrt()
    gain_PG = 1 - mean_P1 - torch.where(right_PG, 0.0, own.to(reward_PG)[wrong_P1])
    return torch.where(spread_P1 > 0, gain_PG / spread_P1, 0.0)


def weighted_reinforce(reward_PG: Tensor, right: float) -> Tensor:
    """Weighted REINFORCE (arXiv 2506.01347): `right` if right, -1 if wrong, whatever the group."""
    return torch.where(reward_PG > 0, right, -1.0)


def maxrl(reward_PG: Tensor) -> Tensor:
    """MaxRL (arXiv 2602.02710): (r - p) / (p + 1e-6), which climbs log p in place of p.

    Without the 1e-6 it is r/p - 1, the advantage of mode replay's Re:Max; Re:Dr has `centred`.
    """
    return centred(reward_PG) / (reward_PG.mean(-1, keepdim=True) + 1e-6)


def differential_smoothing(outcomes: Outcomes, gamma: float) -> Tensor:
    """Differential smoothing (arXiv 2511.19942): A - gamma log pi(y) if right, A + ... if wrong.

    Of the right ones the unlikely gain; of the wrong ones the unlikely lose. Also in groups that
    agree, where A is 0. The likelihood is that of the whole rollout.
    """
    bonus_PG = gamma * outcomes.sum_PG
    return normalised(outcomes.reward_PG) + torch.where(outcomes.right_PG, -bonus_PG, bonus_PG)


def uniform_correct(outcomes: Outcomes, mix: float) -> Tensor:
    """UCPO (arXiv 2605.00365): the advantage of the right ones, moved to the unlikely among them.

    With q the softmax of mean log-probabilities over the right ones, each right one's share is
    w = (1 - mix) / c + mix (1/q) / sum(1/q), and its advantage A c w: their sum stays.
    """
    right_PG, adv_PG = outcomes.right_PG, normalised(outcomes.reward_PG)
    count_P1 = right_PG.sum(-1, keepdim=True)
    # 1/q over its sum is the softmax of minus the log-probability: no overflow.
    unlikely_PG = torch.where(right_PG, -outcomes.mean_PG, -torch.inf).softmax(-1)
    factor_PG = (1 - mix) + mix * (count_P1 * unlikely_PG)
    return torch.where(right_PG, adv_PG * factor_PG, adv_PG)


def boundary_gate(reward_PG: Tensor, k: int, floor: float) -> Tensor:
    """Bayesian Boundary Gating (arXiv 2606.15455): GRPO, weighted by what a prompt adds to Pass@k.

    The weight is u(c) / u(1), with u(c) = k prod_{j < k} (G - c + j) / (G + 1 + j), the posterior
    mean of the slope of Pass@k under a uniform prior; 0 where it is below `floor`.
    """
    n = reward_PG.shape[-1]
    weight = torch.ones(n + 1, dtype=torch.float64)
    for right in range(n + 1):
        for j in range(k):
            weight[right] *= (n - right + j) / (n - 1 + j)  # the denominators of u cancel
    weight[weight < floor] = 0
    return normalised(reward_PG) * weight.to(reward_PG)[(reward_PG > 0).sum(-1, keepdim=True)]


def risk_sensitive(reward_PG: Tensor, beta: float) -> Tensor:
    """RS-GRPO (arXiv 2509.24261): (e^(beta r) / mean(e^(beta r)) - 1) / beta."""
    risk_PG = (beta * reward_PG).exp()
    return centred(risk_PG) / risk_PG.mean(-1, keepdim=True) / beta


def right_alone(outcomes: Outcomes) -> Tensor:
    """RAFT, expert iteration (arXiv 2304.06767, 2504.11343): the same for every right rollout.

    Over the batch's right tokens in place of all its tokens: with `token_mean` and `likelihood` the
    loss is the mean cross-entropy of a token of a right rollout.
    """
    right_PG, length_PG = outcomes.right_PG, outcomes.length_PG.to(outcomes.reward_PG)
    learnt = length_PG[right_PG].sum().clamp(min=1)
    return torch.where(right_PG, length_PG.sum() / learnt, 0.0)


# Reward shaping.


def unlikeliness(outcomes: Outcomes, limit: int, penalty: float) -> Tensor:
    """The unlikeliness reward (arXiv 2506.02355): r (1 - penalty rank / G).

    Rank 0 is the group's least likely rollout by mean log-probability, G - 1 its likeliest.
    """
    rank_PG = torch.argsort(outcomes.mean_PG, stable=True).argsort(-1)
    share_PG = rank_PG.to(outcomes.reward_PG) / rank_PG.shape[-1]
    return outcomes.reward_PG * (1 - penalty * share_PG)


# Surrogates.


def cispo(max_ratio: float) -> Surrogate:
    """CISPO (arXiv 2506.13585): -sg(min(r, max_ratio)) A log pi: every token has a gradient."""

    def surrogate(terms: Terms, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        factor_BT = ratio_BT.detach().clamp(max=max_ratio) * terms.adv_B[:, None]
        return -factor_BT * terms.new_BT, ratio_BT > max_ratio

    return surrogate


def likelihood(terms: Terms, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
    """No surrogate: -A log pi, weighted cross-entropy."""
    return -terms.adv_B[:, None] * terms.new_BT, torch.zeros_like(terms.mask_BT)


def kl_cov(coefficient: float) -> Surrogate:
    """KL-Cov (arXiv 2505.22617): -r A, and on the chosen tokens + coefficient |log r|.

    Where the policy is still the one that sampled, |log r| is 0 and has no gradient.
    """

    def surrogate(terms: Terms, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        gap_BT = torch.where(terms.mask_BT, terms.new_BT - terms.old_BT, 0.0).abs()
        penalty_BT = coefficient * gap_BT * _chosen(terms)
        return penalty_BT - ratio_BT * terms.adv_B[:, None], torch.zeros_like(terms.mask_BT)

    return surrogate


def clip_cov(of_the_others: Surrogate) -> Surrogate:
    """Clip-Cov (arXiv 2505.22617): the chosen tokens have no gradient, the others as always."""

    def surrogate(terms: Terms, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        term_BT, out_BT = of_the_others(terms, ratio_BT)
        chosen_BT = _chosen(terms)
        return torch.where(chosen_BT, 0.0, term_BT), out_BT | chosen_BT

    return surrogate


def _chosen(terms: Terms) -> Tensor:
    return torch.zeros_like(terms.mask_BT) if terms.chosen_BT is None else terms.chosen_BT


# Which tokens: by the covariance of advantage and log-probability over a batch (arXiv 2505.22617).
# The authors take the log-probabilities of the policy as it is, a micro-batch at a time; here they
# are the sampler's, of the whole batch, so that the choice does not depend on micro-batches.


def _covariance(adv_N: Tensor, logp_N: Tensor) -> Tensor:
    adv_N, logp_N = adv_N.double(), logp_N.double()
    return (adv_N - adv_N.mean()) * (logp_N - logp_N.mean())


def largest_covariance(adv_N: Tensor, logp_N: Tensor, seed: int, share: float) -> Tensor:
    """KL-Cov's: the `share` with the largest covariance, at least one; positive ones only."""
    cov_N = _covariance(adv_N, logp_N)
    chosen_N = torch.zeros_like(cov_N, dtype=torch.bool)
    # stable: equal rollouts have equal covariances, and the earlier one is chosen.
    order = torch.argsort(cov_N, descending=True, stable=True)
    chosen_N[order[: max(1, int(share * len(cov_N)))]] = True
    return chosen_N & (cov_N > 0)


def large_covariance(
    adv_N: Tensor, logp_N: Tensor, seed: int, share: float, low: float, high: float
) -> Tensor:
    """Clip-Cov's: at random `share` of all tokens, from those with a covariance in (low, high)."""
    cov_N = _covariance(adv_N, logp_N)
    within = ((cov_N > low) & (cov_N < high)).nonzero().flatten()
    order = torch.randperm(len(within), generator=torch.Generator().manual_seed(seed))
    chosen_N = torch.zeros_like(cov_N, dtype=torch.bool)
    chosen_N[within[order[: max(1, int(share * len(cov_N)))]]] = True
    return chosen_N
