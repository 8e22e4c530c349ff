"""How far a phase moved the policy, in weights and in behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sps.algo.squeeze import moved_kl
from sps.policy.logprobs import Scorer, micro_batches, token_logprobs
from sps.policy.shard import whole
from sps.types import Metrics


@dataclass(frozen=True)
class Probe:
    """Held-out rollouts whose likelihood tells how the policy moved."""

    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    pad_id: int
    budget: int


class Meter:
    """Take it before a phase; `read` it after."""

    def __init__(self, scorer: Scorer, probe: Probe | None):
        self.scorer, self.model, self.probe = scorer, scorer.model, probe
        self.weights = {n: p.detach().clone() for n, p in _trained(self.model)}
        self.before = self._likelihoods()

    def read(self) -> Metrics:
        """Share of stored weights changed, relative size of the change, KL a held-out token."""
        changed = count = 0
        moved = size = 0.0
        for name, now in _trained(self.model):
            then = self.weights[name]
            changed += int(whole((now != then).sum()))
            count += now.numel()
            moved += float(whole((now.detach().double() - then.double()).square().sum()))
            size += float(whole(then.double().square().sum()))
        out = {"weights_changed": changed / count, "relative_update": (moved / size) ** 0.5}
        if self.before:
            pairs = zip(self.before, self._likelihoods(), strict=True)
            parts = [(moved_kl(b, a, m), int(m.sum())) for (b, m), (a, _) in pairs]
            out["kl"] = sum(kl * n for kl, n in parts) / sum(n for _, n in parts)
        return out

    @torch.no_grad()
    def _likelihoods(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if self.probe is None:
            return []
        probe = self.probe
        parts = micro_batches(
            probe.prompts, probe.completions, probe.pad_id, probe.budget, self.model.device
        )
        return [(token_logprobs(self.scorer, rows)[0], rows.mask_BT) for rows in parts]


def stood_still(phase: str, metrics: Metrics, lr: float, dtype: str, still: float) -> str | None:
    """A warning when a phase did not move the policy, with what to do about it."""
    if metrics["relative_update"] >= still:
        return None
    return (
        f"the {phase} phase moved the policy by {metrics['relative_update']:.1e} of its size "
        f"({metrics['weights_changed']:.1%} of its {dtype} weights changed, KL "
        f"{metrics.get('kl', 0.0):.1e} a token): at lr {lr:g} it does nothing. Raise {phase}.lr"
    )


def _trained(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
