"""The IRL phase: keep unlikely rollouts of the RL phase (L2TE), pull the policy towards them.

Or towards all that is remembered (irl.memory.when).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from sps.algo.irl import forward_kl, irl_weight, select_groups
from sps.config.irl import IRL
from sps.phases.memory import recall_all
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.policy.load import Policy
from sps.policy.logprobs import Rows, micro_batches, token_logprobs
from sps.policy.placement import asleep, put_to_sleep, wake
from sps.policy.update import (
    Budget,
    in_memory,
    make_optimizer,
    optimizer_step,
    padded_to_equal,
    set_lr,
)
from sps.ranks import ALONE, Ranks
from sps.store.rollouts import to_arrays
from sps.types import Metrics

_ALSO = ("out_of_memory", "peak_gib", "skipped")
Key = tuple[int, int, int]  # step, group, sample
Learnt = tuple[list[np.ndarray], list[np.ndarray], Metrics]  # prompts, completions, their counts


def irl_phase(run: Run, phase: Phase) -> Iterator[Metrics]:
    """Select from the phase's rollouts, or take those of memory, and take the IRL steps."""
    settings = run.recipe.irl
    began = time.perf_counter()
    rng = np.random.default_rng([run.recipe.seed, 7919, phase.number])  # its own random stream
    choose = _remembered if settings.memory.in_phases else _selected
    prompts, completions, told = choose(run, phase, rng)
    yield {**told, "lr": phase.irl_lr, "seconds/select": time.perf_counter() - began}
    if not prompts:
        return
    with asleep(run.optimizer, run.policy.model.device):  # the RL phase's
        optimizer = _optimizer(run, phase.irl_lr)
        for batch in batches(len(prompts), settings.batch, settings.steps, rng):
            began = time.perf_counter()
            rollouts = [prompts[i] for i in batch], [completions[i] for i in batch]
            sums = forward_kl_step(
                run.policy,
                optimizer,
                *rollouts,
                run.budget,
                reduce=settings.reduce,
                temperature=run.recipe.rollout.temperature,
                max_grad_norm=settings.optimizer.max_grad_norm,
                ranks=run.ranks,
            )
            run.policy.version += 1
            yield {**sums, "seconds/update": time.perf_counter() - began}
        if optimizer is run.irl_optimizer:
            put_to_sleep(optimizer, run.policy.model.device)
        del optimizer  # one that is not kept is freed before the other comes back
    run.engine.load_weights(run.policy.model)


def _selected(run: Run, phase: Phase, rng: np.random.Generator) -> Learnt:
    """The phase's rollouts that the selector keeps, which are marked in the store."""
    kept = select(run, phase.start, phase.last, rng)
    table = run.ranks.broadcast(lambda: _close(run, phase.start, phase.last, kept))
    return to_arrays(table, "prompt_ids"), to_arrays(table, "ids"), kept_metrics(table)


def _remembered(run: Run, phase: Phase, rng: np.random.Generator) -> Learnt:
    """All that is remembered; in the store nothing is marked."""
    found = recall_all(run, phase.last)
    run.ranks.broadcast(lambda: run.store.close_phase(phase.start, phase.last, kept=set()))
    counts: Metrics = {"kept": len(found), "memory/problems": len({r.problem_id for r in found})}
    return [r.prompt_ids for r in found], [r.ids for r in found], counts


def kept_metrics(table: pa.Table) -> Metrics:
    """What the policy is pulled towards: how many rollouts, how many right, how many cut off."""
    if not len(table):
        return {"kept": 0}
    right, whole = table["reward"].to_numpy() > 0, table["finished"].to_numpy()
    return {
        "kept": len(table),
        "kept_right": float(right.mean()),
        "kept_cut_off": float(1 - whole.mean()),
    }


def select(run: Run, first: int, last: int, rng: np.random.Generator) -> set[Key]:
    """L2TE, or another selector, on every group of the steps first .. last."""
    how = run.recipe.irl.selector
    chosen = (how.type, run.recipe.irl.keep, how.quantile, how.quantile_over)
    column = f"{how.likelihood}_logprob"
    if how.under == "policy":
        table = run.ranks.broadcast(lambda: run.store.read(first, last))
        table = _relikelihood(run, table, column)
    else:
        table = run.ranks.broadcast(lambda: run.store.light(first, last))
    kept: set[Key] = set()
    for step in sorted(set(table["step"].to_pylist())):
        rows = table.filter(pc.field("step") == step).sort_by(
            [("group", "ascending"), ("sample", "ascending")]
        )
        shape = (-1, run.recipe.rollout.n)
        reward_PG = rows["reward"].to_numpy().reshape(shape)
        likelihood_PG = rows[column].to_numpy().reshape(shape)
        keep_PG = select_groups(reward_PG, likelihood_PG, *chosen, rng)
        keys = zip(rows["group"].to_pylist(), rows["sample"].to_pylist(), strict=True)
        kept |= {(step, *key) for key, keep in zip(keys, keep_PG.flatten(), strict=True) if keep}
    return kept


def forward_kl_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    prompts: list,
    completions: list,
    budget: Budget,
    *,
    reduce: str = "token",
    temperature: float = 1.0,
    max_grad_norm: float = 1.0,
    ranks: Ranks = ALONE,
) -> Metrics:
    """One optimizer step towards these completions, by cross-entropy: an IRL step, or SFT."""
    weight_B = irl_weight(torch.tensor([len(c) for c in completions]), reduce)

    def part_loss(rows: Rows, new_BT: Tensor, entropy_BT: Tensor) -> tuple[Tensor, dict]:
        loss = forward_kl(new_BT, weight_B[rows.which_B].to(new_BT.device), rows.mask_BT)
        return loss, {"tokens": rows.mask_BT.sum()}

    sums = optimizer_step(
        policy.scorer,
        optimizer,
        lambda tokens: _rows(policy, prompts, completions, tokens, ranks),
        part_loss,
        budget,
        temperature=temperature,
        max_grad_norm=max_grad_norm,
        ranks=ranks,
    )
    entropy = sums["entropy"] / sums["tokens"]
    metrics = {"loss": sums["loss"], "grad_norm": sums["grad_norm"], "entropy": entropy}
    return metrics | {name: sums[name] for name in _ALSO if name in sums}


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


def _rows(
    policy: Policy, prompts: list, completions: list, tokens: int, ranks: Ranks
) -> Iterator[Rows]:
    device = policy.model.device
    return micro_batches(prompts, completions, policy.pad_id, tokens, device, ranks)


def _close(run: Run, first: int, last: int, kept: set[Key]) -> pa.Table:
    """Mark the kept rollouts in the store, and read them back in a fixed order."""
    run.store.close_phase(first, last, kept)
    table = run.store.read(first, last)
    order = [(c, "ascending") for c in ("step", "group", "sample")]
    return table.filter(table["kept"]).sort_by(order)


def make_irl_optimizer(model: Any, settings: IRL, lr: float) -> torch.optim.Optimizer:
    """AdamW with the IRL phase's own settings and no history."""
    own = settings.optimizer
    return make_optimizer(model, lr, own.betas, own.eps, own.weight_decay, own.bits)


def _optimizer(run: Run, lr: float) -> torch.optim.Optimizer:
    model, settings = run.policy.model, run.recipe.irl
    if settings.optimizer_state == "fresh":
        return make_irl_optimizer(model, settings, lr)
    if run.irl_optimizer is None:
        run.irl_optimizer = make_irl_optimizer(model, settings, lr)
    wake(run.irl_optimizer, model.device)
    set_lr(run.irl_optimizer, lr)
    return run.irl_optimizer


def _relikelihood(run: Run, table: pa.Table, column: str) -> pa.Table:
    """The same rollouts with their likelihood under the policy after the RL phase."""
    rollouts = to_arrays(table, "prompt_ids"), to_arrays(table, "ids")
    how, temperature = run.recipe.irl.selector, run.recipe.rollout.temperature
    value_B = likelihoods(run.policy, *rollouts, how.likelihood, run.budget, temperature, run.ranks)
    return table.set_column(table.schema.get_field_index(column), column, pa.array(value_B))


@torch.no_grad()
def likelihoods(
    policy: Policy,
    prompts: list,
    completions: list,
    how: str,
    budget: Budget,
    temperature: float,
    ranks: Ranks = ALONE,
) -> np.ndarray:
    """Log-likelihood of each rollout under the policy as it is: 'mean' or 'sum' of its tokens."""

    def score(tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
        own = _rows(policy, prompts, completions, tokens, ranks)
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for rows, counts in padded_to_equal(own, ranks, policy.model.device):
            logp_BT, _ = token_logprobs(policy.scorer, rows, temperature)
            sums = logp_BT.sum(-1)
            if how == "mean":
                sums = sums / rows.mask_BT.sum(-1).clamp(min=1)
            found += [(rows.which_B, sums.cpu().numpy())] * counts
        return found

    found, _ = in_memory(budget, ranks, score)
    value_B = np.zeros(len(prompts), dtype=np.float32)
    for which_B, sums_B in ranks.gather(found):
        value_B[which_B] = sums_B
    return value_B
