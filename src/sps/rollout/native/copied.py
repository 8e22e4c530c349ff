"""An engine over a whole copy of a model whose weights are sharded over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sps.rollout import RolloutEngine
from sps.rollout.adapters import merged_weights
from sps.types import Completion, Request, Sampling


class CopiedEngine:
    """Gathers the weights, one after another, whenever they have changed."""

    def __init__(self, engine: RolloutEngine, copy: Any):
        self.engine, self.copy = engine, copy

    @property
    def max_rows(self) -> int:
        """Of the engine."""
        return self.engine.max_rows

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """As the engine does; ranks need not call it together."""
        return self.engine.generate(requests, sampling)

    @torch.no_grad()
    def load_weights(self, model: Any) -> None:
        """Every rank must call this at the same time."""
        ours = dict(self.copy.named_parameters())
        for name, theirs in merged_weights(model):
            ours.pop(name).copy_(theirs)
        assert not ours, ours.keys()
        self.engine.load_weights(self.copy)

    def shrink(self) -> None:
        """Memory ran out in training: the engine's cache makes way."""
        self.engine.shrink()

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()
