"""What the training pass does to a model's layers: recompute them, compile them.

The model stays in evaluation mode throughout. transformers' own checkpointing asks for training
mode, which also switches dropout on and takes the cache away from whoever samples.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from sps.errors import UserError


class _Recomputed:
    """Put in front of a layer's class: activations are computed again in the backward pass."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().__call__  # type: ignore[missing-attribute]
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        # No random numbers are drawn in evaluation mode, so none need to be put back.
        return checkpoint(plain, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def recompute_layers(model: Any) -> None:
    """Hold one layer's activations at a time in passes that have gradients; others are as before.

    The class is changed, not the instance's forward, so that a copy of the model runs its own.
    """
    found = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not found:
        raise UserError(
            f"model.checkpointing: {type(model).__name__} has no layers that can be recomputed; "
            "set it to false"
        )
    for layer in found:
        layer.__class__ = _recomputed(type(layer))


@cache
def _recomputed(kind: type) -> type:
    """One class for all layers of a kind: the compiler makes code for each class that it meets."""
    return kind if issubclass(kind, _Recomputed) else type(kind.__name__, (_Recomputed, kind), {})


def compile_layers(model: Any) -> None:
    """Compile each layer; samplers run the plain ones (`sampling_mode`)."""
    for layer in model.base_model.layers:
        layer.compile(dynamic=True)
