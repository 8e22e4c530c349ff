"""AdamW with moments in 8 bits, by torchao: a quarter of the memory (extra `8bit`).

Each block of 256 numbers has a scale of its own. Weights and gradients stay in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torchao.optim import AdamW8bit


class Plain(AdamW8bit):
    """On a CPU: the same arithmetic, without a compiler."""

    def step(self, closure: Any = None) -> Any:
        """One step."""
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)


def make(weights: list[torch.Tensor], **settings: Any) -> torch.optim.Optimizer:
    """Over these weights; compiled for a GPU."""
    kind = AdamW8bit if weights and weights[0].is_cuda else Plain
    return kind(weights, **settings)
