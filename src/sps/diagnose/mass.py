"""Where checkpoints moved the probability: top-1 mass, entropy, and mass moved to the greedy token.

Measured token by token on held-out rollouts that every checkpoint of a run carries (its probe), so
all checkpoints are looked at in the same places. Axes: N tokens, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sps.algo.squeeze import entropy
from sps.config.load import load_recipe
from sps.diagnose.read import RunFolder
from sps.errors import UserError
from sps.logits import scaled_logits
from sps.policy import embedded
from sps.policy.checkpoint import load_trainer
from sps.policy.load import best_threads, load_policy
from sps.policy.logprobs import Rows, micro_batches
from sps.run.folder import RECIPE

_LARGEST = 2 * 2**30  # bytes of weights; larger checkpoints are loaded only when asked for
_BUDGET = 8192  # padded tokens at once


@dataclass(frozen=True)
class Look:
    """A policy at N places."""

    top_N: Tensor  # the greedy token
    mass_N: Tensor  # its probability
    entropy_N: Tensor
    earlier_N: Tensor | None  # probability of what was the greedy token of the policy before


def look(logits_NV: Tensor, earlier_top_N: Tensor | None = None) -> Look:
    """Top-1 mass and entropy of logits, and what is left for another policy's greedy tokens."""
    logp_NV = logits_NV.float().log_softmax(-1)
    best = logp_NV.max(-1)
    kept = None
    if earlier_top_N is not None:
        kept = logp_NV.gather(-1, earlier_top_N[:, None])[:, 0].exp()
    return Look(best.indices, best.values.exp(), entropy(logp_NV), kept)


def mass_moved(before: Look, after: Look) -> dict[str, float]:
    """What an update did at the places where the earlier policy had a greedy token.

    moved: mean change in the probability of the earlier greedy token; positive is squeezing.
    gaining: share of places where it gained. changed: share where another token is greedy now.
    """
    if after.earlier_N is None:
        raise ValueError("the later policy was not asked about the earlier greedy tokens")
    gain_N = after.earlier_N - before.mass_N
    return {
        "moved": float(gain_N.mean()),
        "gaining": float((gain_N > 0).float().mean()),
        "changed": float((after.top_N != before.top_N).float().mean()),
    }


def checkpoint_squeeze(run: RunFolder, large: bool = False) -> list[dict[str, Any]]:
    """The base, where it is at hand, and each checkpoint: how peaked, what was moved since."""
    stages = [*base_folder(run), *run.checkpoints()]
    probe = _probe(run)
    if probe is None or not stages:
        return []
    rows, before = [], None
    for step, folder in stages:
        if not large and _bytes(folder) > _LARGEST:
            run.note(f"checkpoint {folder.name} is large and was not loaded: no top-1 mass")
            continue
        now = _look_at(run, folder, probe, None if before is None else before.top_N)
        if now is None:
            continue
        row = {"step": step, "top1": float(now.mass_N.mean())}
        row["entropy"] = float(now.entropy_N.mean())
        rows.append(row | (mass_moved(before, now) if before is not None else {}))
        before = now
    return rows


@torch.no_grad()
def _look_at(
    run: RunFolder, folder: Path, probe: list[list], earlier: Tensor | None
) -> Look | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            policy = load_policy(str(folder))
    except (UserError, RuntimeError, OSError, ValueError) as error:
        run.note(f"checkpoint {folder.name} cannot be loaded ({str(error)[:160]})")
        return None
    looks, at = [], 0
    with fitting_threads(policy.model):
        for rows in micro_batches(probe[0], probe[1], policy.pad_id, _BUDGET):
            logits_NV = logits_of(policy.model, rows)
            size = len(logits_NV)
            looks.append(look(logits_NV, None if earlier is None else earlier[at : at + size]))
            at += size
    earlier_N = None if earlier is None else torch.cat([x.earlier_N for x in looks])
    return Look(
        torch.cat([x.top_N for x in looks]),
        torch.cat([x.mass_N for x in looks]),
        torch.cat([x.entropy_N for x in looks]),
        earlier_N,
    )


@contextmanager
def fitting_threads(model: Any) -> Iterator[None]:
    """As many as suit the model, for as long as this lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(best_threads(model))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def logits_of(model: Any, rows: Rows) -> Tensor:
    """At each completion token, as the model itself would give them."""
    hidden_BLD = model.base_model(input_ids=rows.ids_BL, use_cache=False).last_hidden_state
    return scaled_logits(model.get_output_embeddings()(hidden_BLD[rows.place]), model.config)


def _probe(run: RunFolder) -> list[list] | None:
    for _, folder in reversed(run.checkpoints()):
        try:
            probe = load_trainer(folder)[1]["probe"]
            return [[t.numpy() for t in part] for part in probe]
        except (UserError, KeyError, TypeError, AttributeError) as error:
            run.note(f"checkpoint {folder.name} has no held-out rollouts ({str(error)[:160]})")
        except Exception as error:  # a damaged pickle raises anything at all
            run.note(f"checkpoint {folder.name} is damaged ({type(error).__name__})")
    return None


def base_folder(run: RunFolder) -> Iterator[tuple[int, Path]]:
    """The policy the run began with, when it is a folder on this machine."""
    try:
        recipe = load_recipe(run.folder / RECIPE)
    except UserError:
        return
    if recipe.model.path:
        folder = Path(recipe.model.path)
        if folder.is_dir() and not recipe.model.gguf:
            yield 0, folder
        return
    fields = {"numbers", "low", "high", "max_value", "seed"}
    shape = recipe.task.model_dump(include=fields)
    found = embedded.find_base(embedded.base_hash(recipe.model.base.model_dump(), shape))
    if found:
        yield 0, found
    else:
        run.note(
            "the base policy is not on this machine: the squeeze starts at the first checkpoint"
        )


def _bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))
