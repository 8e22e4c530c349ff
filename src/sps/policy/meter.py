"""How far a phase moved the policy, in weights and in behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sps.algo.squeeze import moved_kl
from sps.policy.logprobs import Rows, Scorer, greedy_probs, micro_batches, token_logprobs
from sps.policy.sharding import local, sum_of_shards
from sps.types import Metrics


@dataclass(frozen=True)
class Probe:
    """Held-out rollouts of the base; how their likelihood changes shows how the policy moved."""

    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    pad_id: int
    budget: int


class Meter:
    """Take it before a phase; `read` it after."""

    def __init__(self, scorer: Scorer, probe: Probe | None):
        self.scorer, self.model, self.probe = scorer, scorer.model, probe
        self.weights = {n: local(p).detach().clone() for n, p in _trained(self.model)}
        self.before = self._likelihoods()
        self.greedy = [greedy_probs(self.scorer, rows) for rows in self._rows()]

    def read(self) -> Metrics:
        """Share of stored weights changed, relative size of the change; on held-out tokens the KL
        a token and what the phase gave to the token that was greedy before it."""
        count, sums = 0, torch.zeros(3, dtype=torch.float64, device=self.model.device)
        for name, now in _trained(self.model):
            own, then = local(now).detach().double(), self.weights[name].double()
            gap = own - then
            sums += torch.stack([(own != then).sum(), gap.square().sum(), then.square().sum()])
            count += getattr(now, "ds_numel", now.numel())
        changed, moved, size = sum_of_shards(sums, self.model).tolist()
        out = {"weights_changed": changed / count, "relative_update": (moved / size) ** 0.5}
        if self.before:
            pairs = zip(self.before, self._likelihoods(), strict=True)
            parts = [(moved_kl(b, a, m), int(m.sum())) for (b, m), (a, _) in pairs]
            out["kl"] = sum(kl * n for kl, n in parts) / sum(n for _, n in parts)
            out["to_greedy"] = self._to_greedy()
        return out

    def _to_greedy(self) -> float:
        """Mean change in the probability of the earlier greedy tokens: above 0 is squeezing."""
        gains = []
        for rows, (token_N, then_N) in zip(self._rows(), self.greedy, strict=True):
            now_N = greedy_probs(self.scorer, rows, token_N)[1]
            gains.append(now_N.double() - then_N.double())
        return float(torch.cat(gains).mean())

    @torch.no_grad()
    def _likelihoods(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(token_logprobs(self.scorer, rows)[0], rows.mask_BT) for rows in self._rows()]

    def _rows(self) -> Iterator[Rows]:
        if self.probe is None:
            return iter(())
        probe = self.probe
        return micro_batches(
            probe.prompts, probe.completions, probe.pad_id, probe.budget, self.model.device
        )


def _trained(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
