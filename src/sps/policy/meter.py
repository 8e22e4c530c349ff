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

_PIECE = 2**24  # weights compared at once


@dataclass(frozen=True)
class Probe:
    """Held-out rollouts of the base; how their likelihood changes shows how the policy moved."""

    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    pad_id: int
    budget: int


class Meter:
    """Take it before a phase; `read` it after. `memory` are remembered rollouts, if there are any.

    Every rank passes forward over all of both, so that sharded ranks are always in step. A shelf is
    host memory for one meter after another: to get new pages takes far longer than to copy.
    """

    def __init__(
        self,
        scorer: Scorer,
        probe: Probe | None,
        memory: Probe | None = None,
        shelf: dict[str, torch.Tensor] | None = None,
    ):
        self.scorer, self.model, self.probe, self.memory = scorer, scorer.model, probe, memory
        # On the host: 4 bytes a weight that nothing looks at until the phase is over.
        self.weights = {} if shelf is None else shelf
        for name, weight in _trained(self.model):
            _put(self.weights, name, local(weight).detach())
        self.before = self._likelihoods(probe)
        self.greedy = [greedy_probs(self.scorer, rows) for rows in self._rows(probe)]
        self.remembered = self._mean_logprob(memory)

    def read(self) -> Metrics:
        """Share of stored weights changed, relative size of the change; on held-out tokens the KL
        a token and what the phase gave to the token that was greedy before it; of remembered
        rollouts the mean log-probability of a token, and by how much it rose."""
        count, sums = 0, torch.zeros(3, dtype=torch.float64, device=self.model.device)
        for name, now in _trained(self.model):
            pairs = zip(_pieces(local(now)), _pieces(self.weights[name]), strict=True)
            for own, then in ((a.double(), b.to(a.device).double()) for a, b in pairs):
                gap = own - then
                sums += torch.stack([(own != then).sum(), gap.square().sum(), then.square().sum()])
            count += getattr(now, "ds_numel", now.numel())
        changed, moved, size = sum_of_shards(sums, self.model).tolist()
        out = {"weights_changed": changed / count, "relative_update": (moved / size) ** 0.5}
        if self.before:
            pairs = zip(self.before, self._likelihoods(self.probe), strict=True)
            parts = [(moved_kl(b, a, m), int(m.sum())) for (b, m), (a, _) in pairs]
            out["kl"] = sum(kl * n for kl, n in parts) / sum(n for _, n in parts)
            out["to_greedy"] = self._to_greedy()
        if self.remembered is not None:
            now = self._mean_logprob(self.memory)
            assert now is not None
            out |= {"memory_gain": now - self.remembered, "memory_logprob": now}
        return out

    def _to_greedy(self) -> float:
        """Mean change in the probability of the earlier greedy tokens: above 0 is squeezing."""
        gains = []
        for rows, (token_N, then_N) in zip(self._rows(self.probe), self.greedy, strict=True):
            now_N = greedy_probs(self.scorer, rows, token_N)[1]
            gains.append(now_N.double() - then_N.double())
        return float(torch.cat(gains).mean())

    def _mean_logprob(self, probe: Probe | None) -> float | None:
        """Of a token, over all tokens; None where there are none."""
        found = self._likelihoods(probe)
        tokens = sum(int(mask_BT.sum()) for _, mask_BT in found)
        return (
            sum(float(logp_BT.double().sum()) for logp_BT, _ in found) / tokens if found else None
        )

    @torch.no_grad()
    def _likelihoods(self, probe: Probe | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows_of = self._rows(probe)
        return [(token_logprobs(self.scorer, rows)[0], rows.mask_BT) for rows in rows_of]

    def _rows(self, probe: Probe | None) -> Iterator[Rows]:
        if probe is None:
            return iter(())
        return micro_batches(
            probe.prompts, probe.completions, probe.pad_id, probe.budget, self.model.device
        )


def _put(shelf: dict[str, torch.Tensor], name: str, weight: torch.Tensor) -> None:
    if name not in shelf:
        shelf[name] = torch.empty_like(weight, device="cpu")
    shelf[name].copy_(weight)


def _pieces(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In double precision an embedding would take gigabytes at once."""
    return weight.detach().flatten().split(_PIECE)


def _trained(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
