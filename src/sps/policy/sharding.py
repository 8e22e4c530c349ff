"""Weights sharded over the ranks, and gathered where they are needed whole."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from sps.errors import UserError
from sps.policy import deepspeed as zero
from sps.policy.load import Policy
from sps.policy.logprobs import Scorer
from sps.ranks import Ranks, joined, materialise, whole


def shard(scorer: Scorer, ranks: Ranks) -> Any:
    """Each rank keeps its part of every weight; a layer is whole only while it computes.

    Returns what to call for the training pass: the scorer, or DeepSpeed's engine around it. FSDP2's
    settings come from accelerate's configuration: fsdp_reshard_after_forward.
    """
    if not ranks.sharded:
        return scorer
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if ranks.deepspeed:
        if getattr(scorer.model, "_hf_peft_config_loaded", False):
            raise UserError("model.lora: use launch/ddp.yaml, or launch/fsdp2.yaml")
        return zero.start(scorer, ranks)
    kind = getattr(scorer.model, "compute_dtype", torch.float32)
    rounded = MixedPrecisionPolicy(
        param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    how: dict[str, Any] = {
        "mp_policy": rounded if kind != torch.float32 else MixedPrecisionPolicy(),
        "mesh": init_device_mesh(ranks.accelerator.device.type, (ranks.size,)),
    }
    again = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() == "true"
    for layer in scorer.model.base_model.layers:
        receive(layer, ranks)
        fully_shard(layer, reshard_after_forward=again, **how)
    # Embeddings, norm and head, which may share weights.
    receive(scorer, ranks)
    fully_shard(scorer, reshard_after_forward=True, **how)
    return scorer


@torch.no_grad()
def receive(module: Any, ranks: Ranks) -> None:
    """The first rank's weights of a module, on every rank. Called for one layer after another as
    they are sharded, so that no other rank ever holds more than its shards and one layer."""
    device = ranks.accelerator.device
    materialise(module, device)
    for weight in module.parameters():
        if local(weight) is weight:  # not of a layer that is sharded already
            weight.data = weight.data.to(device)
            torch.distributed.broadcast(weight.data, src=0)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a weight, or all of it where it is not sharded."""
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def sum_of_shards(sums: Tensor, model: Any) -> Tensor:
    """Sums over the parts of weights, as sums over whole weights."""
    if any(local(weight) is not weight for weight in model.parameters()):
        torch.distributed.all_reduce(sums)
    return sums


def whole_weights(policy: Policy, ranks: Ranks) -> dict[str, Tensor] | None:
    """Weights by name as a file should hold them, on the first rank; None: just save the model."""
    if not ranks.sharded:
        return None
    found = {}
    adapted = getattr(policy.model, "_hf_peft_config_loaded", False)
    for name, weight in policy.model.named_parameters():  # tied ones once, as files hold them
        if adapted and not weight.requires_grad:  # adapters alone are saved
            continue
        value = whole(weight).detach()
        if ranks.main:
            found[name] = value.cpu()
    stored = policy.model.state_dict().keys()  # not every buffer is
    return found | {n: b.cpu() for n, b in policy.model.named_buffers() if n in stored}


@torch.no_grad()
def put_weights(model: Any, weights: dict[str, Tensor], source: str) -> None:
    """Whole weights by name into a model, sharded or not; tied ones are there once. A name that
    only one of both has is an error: the model would be a mixture of two."""
    own = dict(model.named_parameters())
    if odd := sorted(own.keys() ^ weights.keys()):
        shown = ", ".join(odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")
        raise UserError(f"{source}: weights that only it or only the model has: {shown}")
    for name, weight in own.items():
        put_weight(weight, weights[name], f"{source}: {name}")


@torch.no_grad()
def put_weight(weight: Any, value: Tensor, name: str) -> None:
    """A whole weight into its place; nothing where another rank has it, and will send its shard."""
    if weight.is_meta:
        return
    shape = getattr(weight, "ds_shape", weight.shape)  # DeepSpeed's shard has another
    if value.shape != shape:
        raise UserError(f"{name} has the shape {[*value.shape]}, not {[*shape]}")
    local(weight).copy_(local(_like(value, weight)))


def finite_weights(model: Any) -> bool:
    """Whether no weight is NaN or infinite, on any rank. A collective where they are sharded."""
    kept = [torch.isfinite(local(weight)).all() for weight in model.parameters()]
    odd = (~torch.stack(kept)).sum().double()
    return not float(sum_of_shards(odd, model))


def optimizer_state(
    model: Any, optimizer: torch.optim.Optimizer | None, main: bool = True
) -> dict[str, Any] | None:
    """State by weight name on the host, the same however many ranks there are; ranks that are not
    `main` take part and keep nothing. A collective where weights are sharded."""
    if optimizer is None or not optimizer.state:
        return None
    state: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        sharded = local(weight) is not weight
        for key, value in optimizer.state.get(stepped(weight), {}).items():
            if sharded:  # one that sleeps is on the host, where ranks gather nothing
                value = _whole_state(value.to(weight.device) if value.dim() else value, weight)
            if main:
                state.setdefault(name, {})[key] = value.cpu()
    return state


def stepped(weight: Any) -> Tensor:
    """What an optimizer steps on for this weight."""
    return getattr(weight, "own", weight)


def _whole_state(value: Tensor, weight: Any) -> Tensor:
    if value.dim() and hasattr(weight, "ds_tensor"):
        return joined(value, weight)
    return whole(value)


def set_optimizer_state(
    model: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any] | None
) -> None:
    """What `optimizer_state` gave, back in its place."""
    weights = dict(model.named_parameters())
    on_device = optimizer.defaults.get("fused")  # others count their steps on the host
    for name, of in (state or {}).items():
        weight = weights[name]
        where = weight.device if on_device else "cpu"
        optimizer.state[stepped(weight)] = {
            key: value.to(where, copy=True) if value.dim() == 0 else _like(value, weight)
            for key, value in of.items()
        }


def _like(value: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor, placed and divided as its weight is: a copy, since its own memory may be a
    file's."""
    if hasattr(weight, "ds_tensor"):
        return zero.part_of(value, weight)
    mesh = getattr(weight, "device_mesh", None)
    if mesh is None:
        return value.to(weight.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(weight.device), mesh, weight.placements)  # type: ignore
