"""How concentrated a policy is, and how far it moved."""

from __future__ import annotations

import torch
from torch import Tensor

from sps.algo.rl import k3


def entropy(logp_V: Tensor) -> Tensor:
    """Entropy of the last axis, in nats."""
    return -torch.where(logp_V > -torch.inf, logp_V.exp() * logp_V, 0.0).sum(-1)


def moved_kl(before_BT: Tensor, after_BT: Tensor, mask_BT: Tensor) -> float:
    """k3 estimate of KL(before || after) per token, on tokens sampled from `before`."""
    gap_BT = (after_BT - before_BT).double()  # in float32 the estimate of a small gap is 0
    kl_BT = k3(torch.zeros_like(gap_BT), gap_BT, mask_BT)
    return float(kl_BT.sum() / mask_BT.sum().clamp(min=1))
