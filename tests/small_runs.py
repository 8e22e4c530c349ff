"""Runs at the smallest scale at which something is learnt: two seconds, a few hundred samples."""

from __future__ import annotations

import pytest
import torch

from sps.build import open_run
from sps.config.load import parse_recipe
from sps.loop import train
from sps.policy.checkpoint import latest_checkpoint
from sps.policy.load import load_policy
from sps.run.folder import checkpoint_path
from sps.run.track import read_records
from sps.store.rollouts import RolloutStore

# Two seconds of training; about 40 % of its samples are right.
BASE = {
    "steps": 400,
    "batch": 32,
    "lr": 1e-2,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "ff": 64,
    "solved": 0.8,
}


def recipe_of(**changes):
    """Two numbers, one sign: right answers are frequent enough that groups disagree."""
    tree = {
        "name": "test",
        "seed": 1,
        "model": {"base": BASE, "device": "cpu"},
        "task": {"numbers": 2, "high": 6, "max_value": 36, "train": 24, "validation": 4, "test": 4},
        "rollout": {"prompts": 4, "n": 4, "max_new_tokens": 8},
        "rl": {"algorithm": {"type": "grpo"}, "steps": 6, "lr": 1e-3},
        "irl": {"steps": 2, "every": 3, "lr": 1e-3, "batch": 16, "keep": 2},
        "evaluation": {"n": 4, "validation_n": 4, "every": 0, "final": False},
        "checkpoint": {"every": 2},
        "meter": {"problems": 2, "samples": 2},
    }
    for place, value in changes.items():
        node = tree
        *path, last = place.split("__")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return parse_recipe(tree, "test")


def run(recipe, folder, resume=False, listeners=None):
    this = open_run(recipe, folder, resume, listeners)
    scores = train(this)
    return this, scores


def weights(folder, step=6):
    model = load_policy(str(checkpoint_path(folder, step))).model
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def first_weights(recipe, tmp_path):
    this = open_run(recipe, tmp_path / "first")
    return {name: p.detach().clone() for name, p in this.policy.model.named_parameters()}


def same_weights(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stored(folder):
    """Every rollout, in one order, with its likelihood, reward and mark."""
    rows = RolloutStore(folder / "rollouts").read().to_pylist()
    return sorted(rows, key=lambda r: (r["step"], r["group"], r["sample"]))


def told(folder):
    """The record of a run without what depends on the clock."""
    return [
        {k: v for k, v in r.items() if k != "time" and not k.startswith("seconds/")}
        for r in read_records(folder / "metrics.jsonl")
    ]


ALGORITHMS = {
    "grpo": {"type": "grpo"},
    "grpo_kl": {"type": "grpo", "beta": 0.05},
    "dr_grpo": {"type": "dr_grpo"},
    "dapo": {"type": "dapo", "soft_cache_length": 3},
    "gspo": {"type": "gspo", "steps_per_generation": 2},
    "pass_at_k": {"type": "pass_at_k", "k": 2},
    "w_reinforce": {"type": "w_reinforce"},
}


def learnt(folder):
    return [r for r in told(folder) if r["kind"] in ("rl", "irl")]


class Killed(Exception):
    pass


def kill_at(kind, step, nth=1):
    """A listener that stops the run after the nth record of a kind at a step was written."""
    seen = []

    def listen(record):
        seen.append((record["kind"], record["step"]) == (kind, step))
        if seen[-1] and sum(seen) == nth:
            raise Killed

    return listen


def killed_and_resumed(recipe, folder, kill):
    with pytest.raises(Killed):
        run(recipe, folder, listeners=[kill])
    at = latest_checkpoint(folder / "checkpoints")
    run(recipe, folder, resume=True)
    return at.name if at else None


def adapters(folder, step=6):
    from safetensors.torch import load_file

    return load_file(checkpoint_path(folder, step) / "adapter_model.safetensors")
