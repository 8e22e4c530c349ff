"""The IRL phase: keep unlikely rollouts of the RL phase (L2TE), pull the policy towards them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from sps.algo.irl import SELECTORS, forward_kl, irl_weight, lower_quantile
from sps.phases import Parts
from sps.phases.schedule import Phase
from sps.policy.logprobs import Rows, micro_batches, token_logprobs
from sps.policy.update import make_optimizer, optimizer_step
from sps.store.rollouts import to_arrays
from sps.types import Metrics

Key = tuple[int, int, int]  # step, group, sample


def irl_phase(parts: Parts, phase: Phase) -> Iterator[Metrics]:
    """Select from the phase's rollouts, mark them in the store, and take the IRL steps."""
    settings = parts.recipe.irl
    began = time.perf_counter()
    first = 1 + (phase.number - 1) * irl_every(parts)
    rng = np.random.default_rng([parts.recipe.seed, 7919, phase.number])  # its own random stream
    kept = select(parts, first, phase.last, rng)
    parts.store.close_phase(first, phase.last, kept)
    table = parts.store.read(first, phase.last)
    table = table.filter(table["kept"]).sort_by(
        [(c, "ascending") for c in ("step", "group", "sample")]
    )
    yield {"kept": len(table), "seconds/select": time.perf_counter() - began}
    if not len(table):
        return
    prompts, completions = to_arrays(table, "prompt_ids"), to_arrays(table, "ids")
    optimizer = _optimizer(parts)
    for batch in batches(len(table), settings.batch, settings.steps, rng):
        began = time.perf_counter()
        sums = irl_step(
            parts, optimizer, [prompts[i] for i in batch], [completions[i] for i in batch]
        )
        parts.policy.version += 1
        yield {**sums, "seconds/update": time.perf_counter() - began}
    parts.engine.load_weights(parts.policy.model)


def irl_every(parts: Parts) -> int:
    """RL steps in a phase: as set, or one pass over the training problems."""
    recipe = parts.recipe
    every = recipe.irl.every or max(1, -(-len(parts.train) // recipe.rollout.prompts))
    if recipe.irl.steps:
        return every
    # Plain RL: where a phase ends must not cut short what is drawn for several steps at once.
    rounds = recipe.rl.algorithm.steps_per_generation
    return -(-every // rounds) * rounds


def select(parts: Parts, first: int, last: int, rng: np.random.Generator) -> set[Key]:
    """L2TE, or another selector, on every group of the steps first .. last."""
    settings = parts.recipe.irl
    table = parts.store.light(first, last)
    column = f"{settings.selector.likelihood}_logprob"
    if settings.selector.under == "policy":
        table = _relikelihood(parts, parts.store.read(first, last), column)
    kept: set[Key] = set()
    for step in sorted(set(table["step"].to_pylist())):
        rows = table.filter(pc.field("step") == step).sort_by(
            [("group", "ascending"), ("sample", "ascending")]
        )
        shape = (-1, parts.recipe.rollout.n)
        reward_PG = rows["reward"].to_numpy().reshape(shape)
        likelihood_PG = rows[column].to_numpy().reshape(shape)
        low_PG = lower_quantile(
            likelihood_PG, settings.selector.quantile, settings.selector.quantile_over
        )
        chosen = SELECTORS[settings.selector.type]
        keep_PG = chosen(reward_PG, likelihood_PG, low_PG, settings.keep, rng)
        keys = zip(rows["group"].to_pylist(), rows["sample"].to_pylist(), strict=True)
        kept |= {(step, *key) for key, keep in zip(keys, keep_PG.flatten(), strict=True) if keep}
    return kept


def irl_step(
    parts: Parts, optimizer: torch.optim.Optimizer, prompts: list, completions: list
) -> Metrics:
    """One optimizer step of forward KL on these rollouts."""
    settings = parts.recipe.irl
    weight_B = irl_weight(torch.tensor([len(c) for c in completions]), settings.reduce)

    def part_loss(rows: Rows, new_BT: Tensor, entropy_BT: Tensor) -> tuple[Tensor, dict]:
        loss = forward_kl(new_BT, weight_B[rows.which_B].to(new_BT.device), rows.mask_BT)
        return loss, {"tokens": rows.mask_BT.sum()}

    sums = optimizer_step(
        parts.policy.model,
        optimizer,
        lambda budget: _rows(parts, prompts, completions, budget),
        parts.budget,
        part_loss,
        temperature=parts.recipe.rollout.temperature,
        max_grad_norm=settings.optimizer.max_grad_norm,
    )
    entropy = sums["entropy"] / sums["tokens"]
    return {"loss": sums["loss"], "grad_norm": sums["grad_norm"], "entropy": entropy}


def batches(size: int, batch: int, steps: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Shuffled passes over the kept rollouts, cut into batches; a small set is passed again."""
    batch = min(batch, size)
    order = rng.permutation(size)
    at = 0
    for _ in range(steps):
        if at + batch > size:
            order, at = rng.permutation(size), 0
        yield order[at : at + batch]
        at += batch


def _rows(parts: Parts, prompts: list, completions: list, budget: int) -> Iterator[Rows]:
    return micro_batches(
        prompts, completions, parts.policy.pad_id, budget, parts.policy.model.device
    )


def make_irl_optimizer(parts: Parts) -> torch.optim.Optimizer:
    """AdamW with the IRL phase's own settings and no history."""
    settings = parts.recipe.irl
    own = settings.optimizer
    return make_optimizer(parts.policy.model, settings.lr, own.betas, own.eps, own.weight_decay)


def _optimizer(parts: Parts) -> torch.optim.Optimizer:
    if parts.recipe.irl.optimizer_state == "fresh":
        return make_irl_optimizer(parts)
    if parts.irl_optimizer is None:
        parts.irl_optimizer = make_irl_optimizer(parts)
    return parts.irl_optimizer


@torch.no_grad()
def _relikelihood(parts: Parts, table: pa.Table, column: str) -> pa.Table:
    """The same rollouts with their likelihood under the reinforced policy."""
    value_B = np.zeros(len(table), dtype=np.float32)
    prompts, completions = to_arrays(table, "prompt_ids"), to_arrays(table, "ids")
    for rows in _rows(parts, prompts, completions, parts.budget.tokens):
        logp_BT, _ = token_logprobs(parts.policy.model, rows, parts.recipe.rollout.temperature)
        sums = logp_BT.sum(-1)
        if column == "mean_logprob":
            sums = sums / rows.mask_BT.sum(-1).clamp(min=1)
        value_B[rows.which_B] = sums.cpu().numpy()
    return table.set_column(table.schema.get_field_index(column), column, pa.array(value_B))
