"""What one RL step learns from: rewards, advantages and weights of the groups at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sps.algo.rl import Algorithm, Outcomes
from sps.algo.table import algorithm_of
from sps.phases.run import Run
from sps.policy.logprobs import Rows
from sps.types import Group, Rollout


@dataclass(frozen=True)
class Batch:
    """What one optimizer step learns from."""

    rollouts: list[Rollout]
    adv_B: Tensor
    weight_B: Tensor  # of each token of a rollout, in the mean over all of them
    used: np.ndarray  # which rollouts have a gradient
    chosen: dict[int, np.ndarray] | None = None  # place among the used -> its tokens of `choose`

    @property
    def learnt(self) -> list[Rollout]:
        """The rollouts with a gradient: an advantage, a chosen token, or any with a KL or bonus."""
        return [self.rollouts[i] for i in self.used]


def make_batch(run: Run, groups: Sequence[Group]) -> Batch:
    """Advantages and weights of some groups, by the recipe's algorithm."""
    recipe, settings = run.recipe, run.recipe.rl.algorithm
    algorithm = algorithm_of(settings)
    rollouts = [rollout for group in groups for rollout in group]
    adv_PG = algorithm.advantage(outcomes(groups, torch.float32))
    shape = (len(groups), len(groups[0]))
    if adv_PG.shape != shape:
        raise ValueError(
            f"rl.algorithm.type: {settings.type}: its advantage has the shape "
            f"{tuple(adv_PG.shape)}, not {shape}, which is (groups, rollouts of a group)"
        )
    adv_B = adv_PG.flatten()
    length_B = torch.tensor([len(r.ids) for r in rollouts])
    weight_B = algorithm.weight(length_B, recipe.rollout.max_new_tokens)
    live = (adv_B != 0).numpy() | (settings.beta > 0) | (recipe.rl.entropy > 0)
    if algorithm.choose is None:
        return Batch(rollouts, adv_B, weight_B, np.flatnonzero(live))
    chosen = _chosen_tokens(algorithm, rollouts, adv_B, recipe.seed)
    used = np.flatnonzero(live | [bool(tokens.any()) for tokens in chosen])
    of_used = {place: chosen[i] for place, i in enumerate(used)}
    return Batch(rollouts, adv_B, weight_B, used, of_used)


def shaped(algorithm: Algorithm, groups: list[Group], limit: int) -> list[Group]:
    """Groups with rewards as the algorithm shapes them."""
    if algorithm.shape is None or not groups:
        return groups
    reward_PG = algorithm.shape(outcomes(groups, torch.float64), limit).tolist()
    return [
        [replace(rollout, reward=reward) for rollout, reward in zip(group, own, strict=True)]
        for group, own in zip(groups, reward_PG, strict=True)
    ]


def unshaped(group: Group) -> Group:
    """A group with the rewards of its verdicts."""
    return [replace(rollout, reward=rollout.verdict.reward) for rollout in group]


def outcomes(groups: Sequence[Group], dtype: torch.dtype) -> Outcomes:
    """What an advantage or a shaping reads of groups of one size."""
    return Outcomes(
        torch.tensor([[r.reward for r in group] for group in groups], dtype=dtype),
        torch.tensor([[r.sum_logprob for r in group] for group in groups], dtype=dtype),
        torch.tensor([[r.mean_logprob for r in group] for group in groups], dtype=dtype),
        torch.tensor([[len(r.ids) for r in group] for group in groups]),
    )


def filled(value_of: Mapping[int, np.ndarray], rows: Rows) -> Tensor:
    """Values of each row's tokens as a rectangle; 0 where a row has none."""
    value_BT = np.zeros(rows.mask_BT.shape, dtype=np.float32)
    for row, place in enumerate(rows.which_B.tolist()):
        known_T = value_of.get(place, value_BT[row, :0])[: value_BT.shape[1]]
        value_BT[row, : len(known_T)] = known_T
    return torch.from_numpy(value_BT).to(rows.mask_BT.device)


def _chosen_tokens(
    algorithm: Algorithm, rollouts: list[Rollout], adv_B: Tensor, seed: int
) -> list[np.ndarray]:
    """For each rollout, which of its tokens the surrogate treats apart."""
    assert algorithm.choose is not None
    length_B = torch.tensor([len(r.logprobs) for r in rollouts])
    logp_N = torch.from_numpy(np.concatenate([r.logprobs for r in rollouts]))
    # From the batch, so that the choice is the same when the batch is remade, or on other ranks.
    seed = (seed * 1_000_003 + rollouts[0].step) * 10_007 + rollouts[0].group
    chosen_N = algorithm.choose(adv_B.repeat_interleave(length_B), logp_N, seed)
    return [tokens.numpy() for tokens in chosen_N.split(length_B.tolist())]
