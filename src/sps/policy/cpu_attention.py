"""Attention over short sequences on a CPU, in a third to two thirds of the time of torch's kernel.

Axes: B sequences, H heads, L tokens, D width of a head.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sps_short"
# They take attention from outside, whatever its name, and compute the same with it.
_FAMILIES = {"llama", "qwen2", "qwen3", "mistral", "smollm3", "phi3", "olmo2", "granite"}
_LONGEST = 128  # tokens; beyond, torch's kernel is as fast and holds no [L, L] scores


def use_short(model: Any) -> None:
    """For a model on a CPU that would use torch's kernel; longer sequences still do. One without
    weights computes as that of the rank which will send them."""
    config = model.config
    plain = config.model_type in _FAMILIES and config._attn_implementation == "sdpa"
    if model.device.type in ("cpu", "meta") and plain:
        config._attn_implementation = NAME


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: plain causal attention here, all else as `sdpa` does it.

    Else is also a model that was loaded on a CPU and moved to a GPU, to be divided, and bf16, whose
    scores torch's kernel does not round.
    """
    length = query.shape[2]
    odd = any(rest.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    odd = odd or bool(rest.get("dropout")) or attention_mask is not None
    exact = query.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    whole = key.shape[2] == length <= _LONGEST and rest.get("is_causal") in (None, True)
    causal = whole and getattr(module, "is_causal", True)
    if query.device.type != "cpu" or odd or not exact or not causal:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    scores = torch.baddbmm(_future(length), q, k.transpose(1, 2), alpha=scaling)
    out_BHLD = (scores.softmax(-1) @ v).unflatten(0, query.shape[:2])
    return out_BHLD.transpose(1, 2), None


@lru_cache(maxsize=_LONGEST)
def _future(length: int) -> Tensor:
    """[L, L] with -inf where a token would see later ones."""
    with torch.inference_mode(False):
        return torch.full((length, length), -torch.inf).triu(1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
