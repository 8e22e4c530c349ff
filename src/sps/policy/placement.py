"""What need not be on the GPU, or not in float32, and changes no bit of any result.

Optimizer moments of a phase that sleeps are on the host. Frozen weights of linear layers are held
as autocast would round them in every pass; embeddings and norms, which it leaves alone, are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Optimizer = torch.optim.Optimizer


def has_host(device: torch.device) -> bool:
    """Whether the host's memory is another than that of the device."""
    return device.type != "cpu"


@contextmanager
def asleep(optimizer: Optimizer, device: torch.device) -> Iterator[None]:
    """The moments of an optimizer are on the host meanwhile."""
    put_to_sleep(optimizer, device)
    yield
    wake(optimizer, device)


def put_to_sleep(optimizer: Optimizer, device: torch.device) -> None:
    """Its moments go to the host; steps that were taken are numbers, and stay."""
    if has_host(device):
        _move(optimizer, torch.device("cpu"))


def wake(optimizer: Optimizer, device: torch.device) -> None:
    """Its moments come back to where its weights are."""
    if has_host(device):
        _move(optimizer, device)


@torch.no_grad()
def _move(optimizer: Optimizer, device: torch.device) -> None:
    # One after another, each freed before the next is copied.
    for of in optimizer.state.values():
        for key, value in of.items():
            if value.dim():
                of[key] = value.to(device, copy=True)


@torch.no_grad()
def round_frozen(model: Any) -> None:
    """Hold frozen weights of linear layers in the dtype of the computation."""
    kind = getattr(model, "compute_dtype", torch.float32)
    if kind == torch.float32:
        return
    embedding = model.get_input_embeddings().weight
    for layer in model.modules():
        if not isinstance(layer, nn.Linear) or layer.weight is embedding:  # a tied output layer
            continue
        for weight in (layer.weight, layer.bias):
            if weight is not None and not weight.requires_grad:
                weight.data = weight.data.to(kind)


def share_frozen(model: Any, reference: Any) -> None:
    """What is frozen in a model is held once for it and for its reference."""
    own = dict(model.named_parameters())
    for name, weight in reference.named_parameters():
        if name in own and not own[name].requires_grad:
            weight.data = own[name].data
