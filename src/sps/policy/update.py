"""One optimizer step from a loss that comes in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sps.errors import RunFailed
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


@dataclass
class Budget:
    """Padded tokens in one forward pass. Halved for good when memory runs out."""

    tokens: int


def optimizer_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    rows_of: Callable[[int], Iterable[Rows]],
    budget: Budget,
    part_loss: PartLoss,
    *,
    temperature: float,
    max_grad_norm: float,
    entropy_grad: bool = False,
) -> dict[str, float]:
    """Forward and backward each part, then step once. No part at all is no step.

    Out of memory: gradients are thrown away, the parts halved, and the step is taken again.
    """
    halved = 0
    while True:
        try:
            sums = _accumulate(model, rows_of(budget.tokens), part_loss, temperature, entropy_grad)
            break
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            budget.tokens //= 2
            halved += 1
            if budget.tokens < 1:
                raise RunFailed(
                    "not even one sequence fits into memory; use a smaller rollout.max_new_tokens "
                    "or set model.checkpointing: true"
                ) from None
    if sums:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        sums["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(weights, max_grad_norm))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if halved:
        sums["out_of_memory"] = halved
    if torch.cuda.is_available():
        sums["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return sums


def _accumulate(
    model: Any, parts: Iterable[Rows], part_loss: PartLoss, temperature: float, entropy_grad: bool
) -> dict[str, float]:
    """Gradients of all parts, and the sums of what they report; one wait for the device."""
    totals: dict[str, Tensor] = {}
    for rows in parts:
        logp_BT, entropy_BT = token_logprobs(model, rows, temperature, entropy_grad)
        loss, more = part_loss(rows, logp_BT, entropy_BT)
        loss.backward()
        for name, value in {"loss": loss, "entropy": entropy_BT.sum(), **more}.items():
            value = value.detach().double()
            totals[name] = totals[name] + value if name in totals else value
    return {name: float(value) for name, value in totals.items()}
