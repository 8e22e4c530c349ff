"""LoRA adapters, merged into the weights that they change: engines sample from plain weights.

W + scale * B A, in float32. Whoever keeps it in bf16 rounds it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sps.ranks import whole


def has_adapters(model: Any) -> bool:
    """Whether transformers put adapters into it."""
    return getattr(model, "_hf_peft_config_loaded", False)


def mergeable(model: Any) -> bool:
    """Whether every adapter adds a product of two matrices to a linear layer, and no more."""
    return all(_plain(layer) for layer in model.modules() if _changed(layer))


def is_adapted(layer: Any) -> bool:
    """Whether a linear layer has adapters."""
    return hasattr(layer, "lora_A")


@torch.no_grad()
def merged(layer: Any) -> Tensor:
    """The weight of a linear layer with its adapters in it, whole. A collective where sharded."""
    if not is_adapted(layer):
        return whole(layer.weight)
    weight = whole(layer.base_layer.weight).float()
    for name in layer.active_adapters:
        if name in layer.lora_A:
            first, second = (whole(part[name].weight) for part in (layer.lora_A, layer.lora_B))
            weight = torch.addmm(weight, second.float(), first.float(), alpha=layer.scaling[name])
    return weight


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight by the name it has without adapters, whole, one after another."""
    adapted = {f"{name}.": layer for name, layer in model.named_modules() if is_adapted(layer)}
    for name, weight in model.named_parameters():
        at = next((place for place in adapted if name.startswith(place)), "")
        if not at:
            yield name, whole(weight).detach()
        elif name == f"{at}base_layer.weight":
            yield f"{at}weight", merged(adapted[at])
        elif name.startswith(f"{at}base_layer."):
            yield name.replace(f"{at}base_layer.", at), whole(weight).detach()


class Merged:
    """A model as an engine should see it: its weights are those with the adapters merged."""

    def __init__(self, model: Any):
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Merged while one goes through them."""
        return merged_weights(self._model)


def without_adapters(model: Any) -> Any:
    """The same model, its adapters thrown away."""
    for layer in list(model.modules()):
        for name, part in list(layer.named_children()):
            if is_adapted(part):
                setattr(layer, name, part.base_layer)
    model._hf_peft_config_loaded = False
    vars(model).pop("peft_config", None)
    return model


def _changed(layer: Any) -> bool:
    return any(hasattr(layer, name) for name in ("base_layer", "modules_to_save"))


def _plain(layer: Any) -> bool:
    if not (is_adapted(layer) and isinstance(getattr(layer, "base_layer", None), nn.Linear)):
        return False
    odd = (layer.lora_embedding_A, layer.lora_variant, layer.fan_in_fan_out)
    return not any(map(bool, (*odd, *layer.lora_bias.values())))
