"""Memory inside TRL: beside each optimizer step, a forward KL towards right rollouts of the run.

As `irl.memory` in `sps train`, with a prompt for a problem. Every rank remembers the same, so all
recall the same, and each computes its share of the gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sps.algo.irl import irl_weight
from sps.config.irl import MemoryConfig
from sps.errors import UserError
from sps.integrations.trl.record import Batch
from sps.phases.memory import Recalled, choose
from sps.policy.load import Policy
from sps.policy.logprobs import micro_batches, token_logprobs
from sps.policy.update import Budget, in_memory
from sps.ranks import Ranks
from sps.store.memory import Memory, Remembered
from sps.store.rollouts import to_arrays
from sps.types import Metrics

FILE = "sps_memory.parquet"  # in a checkpoint of TRL's
Mode = Callable[[str], str]  # text of a completion -> which solution it is
_TOKENS = pa.large_list(pa.int32())
_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("mean_logprob", pa.float32()),
        ("prompt_ids", _TOKENS),
        ("ids", _TOKENS),
    ]
)


def as_settings(memory: float | Mapping[str, Any]) -> dict[str, Any]:
    """A weight alone, or keys of irl.memory, as the latter."""
    return dict(memory) if isinstance(memory, Mapping) else {"weight": memory}


def check_memory(settings: MemoryConfig, mode: Mode | None) -> None:
    """Refuse what `sps train` has and TRL has not."""
    for key, only in (("when", "step"), ("source", "run")):
        if getattr(settings, key) != only:
            raise UserError(
                f"SPSCallback: memory.{key}: inside TRL it can only be {only!r}; train with SPS "
                "itself for the rest: sps train"
            )
    if mode is not None and not (settings.weight and settings.distinct):
        raise UserError(
            "SPSCallback: mode says which rollouts are the same solution, and nothing asks for it; "
            "set memory=1.0 and leave memory.distinct as it is, or leave mode out"
        )


class StepMemory:
    """What a run of TRL remembers, and the prompts that it is learning from."""

    def __init__(self, settings: MemoryConfig, policy: Policy, ranks: Ranks, mode: Mode | None):
        self.settings, self.policy, self.ranks = settings, policy, ranks
        of_text = mode or (lambda text: text)
        self.memory = Memory(lambda _, ids: of_text(policy.decode(ids)), settings.distinct)
        self.prompts: list[str] = []  # of the latest draw, by their ids
        self.tokens = 0  # of its completions

    def remember(self, fresh: list[Batch], step: int, likelihood: str) -> None:
        """What the ranks drew for a step, with likelihoods as the mean or sum of their tokens.
        Where nothing is new, TRL learns from the latest draw again."""
        own = [
            (prompt, ids if reward > 0 else None, len(ids), mean)
            for batch in fresh
            for (prompt, ids), reward, mean in zip(
                batch.rollouts, batch.reward_B.tolist(), _means(batch, likelihood), strict=True
            )
        ]
        drawn = self.ranks.gather(own)
        if not drawn:
            return
        names = [_name(prompt) for prompt, *_ in drawn]
        self.prompts, self.tokens = list(dict.fromkeys(names)), sum(n for _, _, n, _ in drawn)
        for name, (prompt, ids, _, mean) in zip(names, drawn, strict=True):
            if ids is not None:
                self.memory.keep(Remembered(name, prompt, ids, step, mean))

    def add_gradient(self, budget: Budget, temperature: float, step: int, seed: int) -> Metrics:
        """Add to the weights' gradients those of the forward KL towards what a step recalls."""
        settings = self.settings
        rng = np.random.default_rng([seed, 104729, step])  # as sps.phases.memory has it
        tokens = int(settings.share * self.tokens)
        found = choose(self.memory, settings, self.prompts, step, tokens, rng)
        counts: Metrics = {"size": len(self.memory), "recalled": len(found)}
        if not found:
            return counts
        length_B = torch.tensor([len(r.ids) for r in found])
        weight_B = settings.weight * irl_weight(length_B, settings.reduce)
        nll, halved = self._add(Recalled(found, weight_B), budget, temperature)
        counts |= {"problems": len({r.problem_id for r in found}), "tokens": int(length_B.sum())}
        counts["nll"] = self.ranks.total({"nll": nll})["nll"] / counts["tokens"]
        return counts | ({"out_of_memory": halved} if halved else {})

    def _add(self, recalled: Recalled, budget: Budget, temperature: float) -> tuple[float, int]:
        policy, rollouts = self.policy, recalled.rollouts
        weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
        trls = [weight.grad for weight in weights]  # by now the mean over the ranks, on each

        def gradients(tokens: int) -> float:
            for weight in weights:
                weight.grad = None
            columns = [r.prompt_ids for r in rollouts], [r.ids for r in rollouts]
            where = (policy.pad_id, tokens, policy.model.device, self.ranks)
            nll = 0.0
            for rows in micro_batches(*columns, *where):
                logp_BT, _ = token_logprobs(policy.scorer, rows, temperature)
                loss, sums = recalled.loss(rows, logp_BT)
                loss.backward()
                nll += float(sums["memory_nll"].detach())
            return nll

        nll, halved = in_memory(budget, self.ranks, gradients)
        self.ranks.sum_gradients(weights)
        for weight, own in zip(weights, trls, strict=True):
            if own is not None:
                weight.grad = own if weight.grad is None else own.add_(weight.grad)
        return nll, halved

    def save(self, checkpoint: Path) -> None:
        """Into a checkpoint of TRL's; there whole or not at all."""
        known = list(self.memory)
        columns = {
            "step": [r.step for r in known],
            "mean_logprob": [r.mean_logprob for r in known],
            "prompt_ids": [r.prompt_ids for r in known],
            "ids": [r.ids for r in known],
        }
        checkpoint.mkdir(parents=True, exist_ok=True)
        draft = checkpoint / f"{FILE}.draft"
        pq.write_table(pa.table(columns, schema=_SCHEMA), draft, compression="zstd")
        draft.rename(checkpoint / FILE)

    def load(self, checkpoint: Path) -> bool:
        """What a checkpoint of TRL's holds; False where it holds no memory."""
        table = self.ranks.broadcast(lambda: _read(checkpoint / FILE))
        if table is None:
            return False
        arrays = to_arrays(table, "prompt_ids"), to_arrays(table, "ids")
        of_rows = (table[name].to_pylist() for name in ("step", "mean_logprob"))
        for prompt, ids, step, mean in zip(*arrays, *of_rows, strict=True):
            self.memory.keep(Remembered(_name(prompt), prompt, ids, step, mean))
        return True


def _read(path: Path) -> pa.Table | None:
    if not path.is_file():
        return None
    try:
        return pq.read_table(path).cast(_SCHEMA)
    except (OSError, ValueError, pa.ArrowException) as error:
        said = (str(error).strip().splitlines() or [repr(error)])[0][:200]
        raise UserError(
            f"{path}: SPSCallback's memory cannot be read ({said}). Put the file back from a copy, "
            "or remove it to begin with an empty memory"
        ) from None


def _name(prompt: np.ndarray) -> str:
    return hashlib.sha256(prompt.astype(np.int32).tobytes()).hexdigest()


def _means(batch: Batch, likelihood: str) -> list[float]:
    """Mean log-probability of a token of each rollout; 0 where nobody asks for it."""
    if batch.likelihood_B is None:
        return [0.0] * len(batch.rollouts)
    values = batch.likelihood_B.tolist()
    if likelihood == "mean":
        return values
    return [value / len(ids) for value, (_, ids) in zip(values, batch.rollouts, strict=True)]
