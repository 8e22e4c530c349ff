"""One optimizer step from a loss that comes in parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sps.policy.logprobs import Rows, token_logprobs

# rows, their log-probabilities and entropies -> this part's share of the loss, and sums to add up
PartLoss = Callable[[Rows, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


def make_optimizer(
    model: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over every trainable weight."""
    weights = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        weights, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True
    )


def optimizer_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    parts: Iterable[Rows],
    part_loss: PartLoss,
    *,
    temperature: float,
    max_grad_norm: float,
    entropy_grad: bool = False,
) -> dict[str, float]:
    """Forward and backward each part, then step once. No part at all is no step."""
    sums: dict[str, float] = defaultdict(float)
    worked = False
    for rows in parts:
        logp_BT, entropy_BT = token_logprobs(model, rows, temperature, entropy_grad)
        loss, more = part_loss(rows, logp_BT, entropy_BT)
        loss.backward()
        worked = True
        sums["loss"] += loss.item()
        sums["entropy"] += float(entropy_BT.detach().sum())
        for name, value in more.items():
            sums[name] += float(value)
    if worked:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        sums["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(weights, max_grad_norm))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return dict(sums)
