"""One optimizer step from a loss that comes in parts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sps.errors import RunFailed, UserError
from sps.policy import deepspeed as zero
from sps.policy.logprobs import Rows, Scorer, token_logprobs
from sps.policy.sharding import local, stepped
from sps.ranks import ALONE, Ranks, whole
from sps.run.gpu import held_by_others

# rows, their log-probabilities and entropies -> this part's share of the loss, and sums to add up
PartLoss = Callable[[Rows, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]
Found = TypeVar("Found")


def make_optimizer(
    model: Any,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    bits: int = 32,
) -> torch.optim.Optimizer:
    """AdamW over every trainable weight, with moments of so many bits."""
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = [stepped(p) for p in trained]
    settings: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    if bits == 32:
        return torch.optim.AdamW(weights, **settings, fused=True)
    if any(local(p) is not p for p in trained):
        raise UserError(
            "optimizer.bits: 8 is for weights that each GPU holds whole. Sharded moments are "
            "divided already: set rl.optimizer.bits and irl.optimizer.bits to 32"
        )
    try:
        from sps.policy import adamw8bit
    except ImportError:
        raise UserError(
            "optimizer.bits: 8 needs torchao, which is not installed: pip install 'sps-rl[8bit]'"
        ) from None
    return adamw8bit.make(weights, **settings)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """From the next step on. Compiled steps read it from a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


@dataclass
class Budget:
    """Padded tokens in one forward pass. Halved for good when memory runs out."""

    tokens: int
    make_way: Callable[[], None] = lambda: None  # what the engine holds shrinks along


def optimizer_step(
    scorer: Scorer,
    optimizer: torch.optim.Optimizer,
    rows_of: Callable[[int], Iterable[Rows]],
    part_loss: PartLoss,
    budget: Budget,
    *,
    temperature: float,
    max_grad_norm: float,
    entropy_grad: bool = False,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Forward and backward each part, then step once; no step where no rank has a part.

    `rows_of` cuts what the step learns from into parts of so many tokens. Out of memory: gradients
    are thrown away, the parts halved, and the step is taken again. A loss or a gradient that is not
    finite: weights and optimizer stay as they are (`skipped`).
    """

    def gradients(tokens: int) -> tuple[dict[str, float], float]:
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        parts = padded_to_equal(rows_of(tokens), ranks, scorer.model.device)
        sums = _accumulate(scorer, parts, part_loss, temperature, entropy_grad, ranks)
        return sums, time.perf_counter() - began  # numbers on the host: the passes are done

    (sums, seconds), halved = in_memory(budget, ranks, gradients)
    sums = ranks.total(sums)
    if sums:
        sums["seconds"] = seconds
        sums["grad_norm"] = _clip(scorer, optimizer, max_grad_norm, ranks)
        # Both are numbers on the host by now, and the same on every rank.
        if math.isfinite(sums["loss"]) and math.isfinite(sums["grad_norm"]):
            # Halfway through its first step, which makes the moments, it could not begin again.
            if not optimizer.state and _free_bytes() < _moments(optimizer):
                budget.make_way()
            optimizer.step()
        else:
            sums["skipped"] = 1
        optimizer.zero_grad(set_to_none=True)
        if ranks.deepspeed:
            zero.finish(scorer)
    if halved:
        sums["out_of_memory"] = halved
    if torch.cuda.is_available():
        sums["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return sums


def _free_bytes() -> float:
    """Memory that many tensors could have."""
    if not torch.cuda.is_available():
        return math.inf
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + held


def _moments(optimizer: torch.optim.Optimizer) -> float:
    """Bytes of an optimizer's two moments on this rank, of 32 or of 8 bits, once it has them."""
    weights = sum(local(p).nbytes for group in optimizer.param_groups for p in group["params"])
    return weights * (2.0 if optimizer.defaults.get("fused") else 0.51)


def _clip(scorer: Any, optimizer: torch.optim.Optimizer, max_norm: float, ranks: Ranks) -> float:
    """Sum the gradients over ranks and clip them; returns the norm before clipping."""
    if ranks.deepspeed:
        return zero.take_gradients(scorer, max_norm)
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    ranks.sum_gradients(weights)
    return float(whole(torch.nn.utils.clip_grad_norm_(weights, max_norm)))


def padded_to_equal(
    parts: Iterable[Rows], ranks: Ranks, device: torch.device | str
) -> Iterator[tuple[Rows, int]]:
    """Each part with how often it counts. Sharded ranks pass forward in step, so those with fewer
    parts are given one that counts 0 times."""
    if not ranks.sharded:
        yield from ((rows, 1) for rows in parts)
        return
    own = list(parts)
    missing = ranks.maximum(len(own)) - len(own)  # asked before the first pass, where all ranks are
    yield from ((rows, 1) for rows in own)
    for _ in range(missing):
        one = torch.zeros((1, 1), dtype=torch.int64, device=device)
        which, length = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
        yield Rows(one, (one[0], one[0]), one[0], one == 0, which, length), 0


def in_memory(budget: Budget, ranks: Ranks, work: Callable[[int], Found]) -> tuple[Found, int]:
    """What `work` finds with so many tokens a pass, and how often memory ran out before it did."""
    halved = 0
    while True:
        try:
            return work(budget.tokens), halved
        except torch.OutOfMemoryError:
            _halve(budget, ranks)
            budget.make_way()
            torch.cuda.empty_cache()
            halved += 1


def _halve(budget: Budget, ranks: Ranks) -> None:
    if ranks.sharded:  # the other ranks are in the middle of a pass that this one has left
        raise RunFailed(
            f"memory ran out on rank {ranks.rank}; set rl.micro_tokens to {budget.tokens // 2}, "
            "model.checkpointing: true or a smaller rollout.max_rows, and go on with --resume"
        )
    budget.tokens //= 2
    if budget.tokens < 1:
        raise RunFailed(
            "not even one sequence fits into memory; use a smaller rollout.max_new_tokens or set "
            f"model.checkpointing: true.{held_by_others()}"
        )


def _accumulate(
    scorer: Scorer,
    parts: Iterable[tuple[Rows, int]],
    part_loss: PartLoss,
    temperature: float,
    entropy_grad: bool,
    ranks: Ranks,
) -> dict[str, float]:
    """Gradients of all parts, and the sums of what they report; one wait for the device."""
    totals: dict[str, Tensor] = {}
    scale = ranks.size if ranks.sharded else 1  # of sharded gradients the mean is taken
    known = (
        list(parts) if ranks.deepspeed else None
    )  # its backward pass wants to know which is the last
    for number, (rows, counts) in enumerate(known or parts, 1):
        logp_BT, entropy_BT = token_logprobs(scorer, rows, temperature, entropy_grad)
        loss, more = part_loss(rows, logp_BT, entropy_BT)
        push = loss * (counts * scale)
        if known is None:
            push.backward()
        else:
            zero.backward(scorer, push, last=number == len(known))
        for name, value in {"loss": loss, "entropy": entropy_BT.sum(), **more}.items():
            value = value.detach().double() * counts
            totals[name] = totals[name] + value if name in totals else value
    return {name: float(value) for name, value in totals.items()}
