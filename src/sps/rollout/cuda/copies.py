"""The trainer's weights in bf16, joined where projections share their input.

Nothing here needs a GPU or triton.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sps.rollout.adapters import is_adapted, merged


class Copies:
    """Room that a captured graph keeps reading; `refresh` fills it again."""

    def __init__(self, kind: torch.dtype = torch.bfloat16) -> None:
        self.kind = kind
        self.plain: list[tuple[Tensor, Tensor]] = []  # (ours, the trainer's)
        self.adapted: list[tuple[Tensor, Any]] = []  # (ours, the layer whose adapters go in)

    @torch.no_grad()
    def refresh(self) -> None:
        """Follow the trainer's weights: one rounding copy, no other synchronisation."""
        if self.plain:
            torch._foreach_copy_([ours for ours, _ in self.plain], [t for _, t in self.plain])
        for ours, layer in self.adapted:
            ours.copy_(merged(layer))

    def weights(self, layers: list[Any]) -> Tensor:
        """The weights of linear layers, one after another, with their adapters merged."""
        room = self._room([layer.weight for layer in layers])
        for ours, layer in zip(room.split([len(p.weight) for p in layers]), layers, strict=True):
            if is_adapted(layer):
                self.adapted.append((ours, layer))
            else:
                self._follow(ours, layer.weight)
        return room

    def biases(self, layers: list[Any]) -> Tensor:
        """The same of their biases, which no adapter changes."""
        room = self._room([layer.bias for layer in layers])
        for ours, layer in zip(room.split([len(p.bias) for p in layers]), layers, strict=True):
            self._follow(ours, layer.bias)
        return room

    def _follow(self, ours: Tensor, theirs: Tensor) -> None:
        """A weight that is frozen, and in bf16 itself, moves in: held once, not twice."""
        if theirs.dtype == ours.dtype and not theirs.requires_grad:
            ours.copy_(theirs)
            theirs.data = ours
        else:
            self.plain.append((ours, theirs))

    def _room(self, parts: list[Tensor]) -> Tensor:
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        return torch.empty(shape, dtype=self.kind, device=parts[0].device)
