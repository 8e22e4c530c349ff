"""How far a policy moved."""

from __future__ import annotations

import torch
from torch import Tensor


def moved_kl(before_BT: Tensor, after_BT: Tensor, mask_BT: Tensor) -> float:
    """k2 estimate of KL(before || after) per token: half the square of the log-ratio.

    The tokens are the first policy's. One that `before` hardly knew any more and `after` knows
    again would be e to the gap in the k3 estimate: billions, for one token.
    """
    gap_BT = torch.where(mask_BT, after_BT - before_BT, 0.0).double()
    return float(gap_BT.square().sum() / 2 / mask_BT.sum().clamp(min=1))
