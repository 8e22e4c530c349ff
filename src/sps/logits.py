"""Models that scale or soft-cap the output of their last layer before it is logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")  # Cohere, Falcon-H1, Muse


def logit_change(config: Any) -> tuple[float, float | None]:
    """The factor, and then the soft cap or None."""
    factor = 1.0
    for name in _FACTORS:
        factor *= getattr(config, name, None) or 1.0
    scaling = getattr(config, "logits_scaling", None) or 1.0
    multiplies = getattr(config, "model_type", "").startswith(
        "hyperclovax"
    )  # Granite, whose key it is, divides
    factor = factor * scaling if multiplies else factor / scaling
    return factor, getattr(config, "final_logit_softcapping", None)


def scaled_logits(raw: Tensor, config: Any) -> Tensor:
    """Logits from what the output layer gives."""
    factor, cap = logit_change(config)
    if factor != 1.0:
        raw = raw * factor
    return torch.tanh(raw / cap) * cap if cap else raw
