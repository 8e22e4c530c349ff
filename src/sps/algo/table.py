"""The table of RL algorithms: from the settings of a recipe to what runs.

A new algorithm is a class in config/rl.py, one function for what is new, and one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sps.algo import rivals
from sps.algo.rl import (
    Algorithm,
    Outcomes,
    Surrogate,
    centred,
    clipped_surrogate,
    constant_length,
    mean_of_sequence_means,
    normalised,
    overlong_shaping,
    sequence_ratio,
    token_mean,
)
from sps.config.rl import AlgorithmConfig
from sps.errors import row_of


def algorithm_of(settings: AlgorithmConfig) -> Algorithm:
    """The algorithm that a recipe asks for."""
    where = "ALGORITHMS (sps/algo/table.py)"
    return row_of(ALGORITHMS, settings.type, "rl.algorithm.type", where)(settings)


def _by_reward(advantage: Callable[..., Tensor], **settings: float) -> Callable[[Outcomes], Tensor]:
    """An advantage that reads the rewards alone."""
    return lambda outcomes: advantage(outcomes.reward_PG, **settings)


def _clip(s: Any) -> Surrogate:
    return clipped_surrogate(s.eps, s.eps)


def _clip_apart(s: Any) -> Surrogate:
    return clipped_surrogate(s.eps, s.eps_high)


def _grpo(advantage: Callable[[Outcomes], Tensor], s: Any) -> Algorithm:
    """GRPO but for its advantage."""
    return Algorithm(advantage, _clip(s), mean_of_sequence_means)


_normalised = _by_reward(normalised)
_none = Algorithm(_by_reward(torch.zeros_like), clipped_surrogate(0, 0), mean_of_sequence_means)

ALGORITHMS: dict[str, Callable[[Any], Algorithm]] = {
    "grpo": lambda s: _grpo(_normalised, s),
    "dr_grpo": lambda s: Algorithm(_by_reward(centred), _clip(s), constant_length),
    "dapo": lambda s: Algorithm(
        _normalised,
        _clip_apart(s),
        token_mean,
        shape=partial(overlong_shaping, cache=s.soft_cache_length),
        resample=s.max_resample_times,
    ),
    "gspo": lambda s: Algorithm(
        _normalised, _clip_apart(s), mean_of_sequence_means, ratio=sequence_ratio
    ),
    "pass_at_k": lambda s: _grpo(_by_reward(rivals.pass_at_k, k=s.k), s),
    "w_reinforce": lambda s: Algorithm(
        _by_reward(rivals.weighted_reinforce, right=s.right), _clip(s), token_mean
    ),
    "maxrl": lambda s: _grpo(_by_reward(rivals.maxrl), s),
    "differential_smoothing": lambda s: _grpo(
        partial(rivals.differential_smoothing, gamma=s.gamma), s
    ),
    "ucpo": lambda s: _grpo(partial(rivals.uniform_correct, mix=s.mix), s),
    "bbg": lambda s: _grpo(_by_reward(rivals.boundary_gate, k=s.k, floor=s.floor), s),
    "rs_grpo": lambda s: _grpo(_by_reward(rivals.risk_sensitive, beta=s.risk), s),
    "unlikeliness": lambda s: Algorithm(
        _normalised,
        _clip(s),
        mean_of_sequence_means,
        shape=partial(rivals.unlikeliness, penalty=s.penalty),
    ),
    "cispo": lambda s: Algorithm(_normalised, rivals.cispo(s.max_ratio), token_mean),
    "kl_cov": lambda s: Algorithm(
        _normalised,
        rivals.kl_cov(s.coefficient),
        token_mean,
        choose=partial(rivals.largest_covariance, share=s.share),
    ),
    "clip_cov": lambda s: Algorithm(
        _normalised,
        rivals.clip_cov(_clip(s)),
        token_mean,
        choose=partial(rivals.large_covariance, share=s.share, low=s.low, high=s.high),
    ),
    "none": lambda s: _none,
    "raft": lambda s: Algorithm(rivals.right_alone, rivals.likelihood, token_mean),
}
