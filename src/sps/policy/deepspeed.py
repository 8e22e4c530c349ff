"""Weights sharded over the ranks by DeepSpeed's ZeRO-3, stepped by our own optimizers.

DeepSpeed owns one optimizer, and SPS has two over the same weights. So DeepSpeed gathers weights,
reduces gradients, and is given an optimizer that does nothing; ours step on its float32 parts.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from sps.errors import UserError
from sps.policy.logprobs import Scorer
from sps.ranks import Ranks, materialise

_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,  # it wants one; batches are ours
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def start(scorer: Scorer, ranks: Ranks) -> Any:
    """DeepSpeed's engine around the training pass; called as the pass itself is."""
    device = ranks.accelerator.device.type
    os.environ.setdefault("DS_ACCELERATOR", device)
    try:
        import deepspeed
        from deepspeed.utils import safe_get_local_fp32_param
    except ImportError as error:
        raise UserError(
            f"DeepSpeed is asked for, and {error.name} is missing; install the extra: "
            "sps-rl[deepspeed]"
        ) from None
    deepspeed.init_distributed("nccl" if device == "cuda" else "gloo", auto_mpi_discovery=False)
    # zero.Init sends the first rank's weights and divides them: by layers, so that no other rank
    # ever holds more than its parts and one layer.
    for part in (*scorer.model.base_model.layers, scorer):
        materialise(part, ranks.accelerator.device)
        deepspeed.zero.Init(module=part, config_dict_or_path=_CONFIG)
    weights: list[Any] = [w for w in scorer.parameters() if w.requires_grad]
    idle = torch.optim.SGD(weights, lr=0.0)
    engine, *_ = deepspeed.initialize(
        model=scorer.to(ranks.accelerator.device),
        optimizer=idle,
        config=_CONFIG,
        dist_init_required=False,
    )
    for weight in weights:
        weight.own = safe_get_local_fp32_param(weight).detach()
    return engine


def backward(engine: Any, loss: Tensor, last: bool) -> None:
    """Add to the gradients of this rank's parts."""
    engine.set_gradient_accumulation_boundary(is_boundary=last)
    engine.backward(loss)


def take_gradients(engine: Any, max_norm: float) -> float:
    """Give our optimizers their gradients, clipped; the norm before that, over all ranks."""
    from deepspeed.utils import safe_get_local_grad, safe_set_local_grad

    weights = [w for w in engine.module.parameters() if w.requires_grad]
    grads = [safe_get_local_grad(w) for w in weights]
    square = torch.stack([g.double().square().sum() for g in grads]).sum()
    torch.distributed.all_reduce(square)
    norm = float(square.sqrt())
    for weight, grad in zip(weights, grads, strict=True):
        weight.own.grad = grad * min(1.0, max_norm / (norm + 1e-6))
        if not math.isfinite(norm):  # DeepSpeed's idle step would make NaN of 0 times NaN
            safe_set_local_grad(weight, torch.zeros_like(grad))
    return norm


def finish(engine: Any) -> None:
    """Let the passes use what was stepped, and forget the gradients."""
    engine.step()


def part_of(value: Tensor, weight: Any) -> Tensor:
    """This rank's part of a whole tensor of a weight's shape."""
    size = weight.ds_tensor.numel()
    first = torch.distributed.get_rank() * size
    part = value.flatten()[first : first + size].to(weight.device)
    return torch.nn.functional.pad(part, (0, size - len(part)))
