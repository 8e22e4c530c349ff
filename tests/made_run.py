"""A run over a random Llama, with a judge and an engine that tests can see into."""

from __future__ import annotations

from zlib import crc32

import torch
from conftest import make_policy

from sps.build import open_run
from sps.config.load import parse_recipe
from sps.types import Verdict
from sps.verify import InlineVerifier


def recipe_of(path, **changes):
    """A step of 4 groups of 4; AdamW so damped that the size of a gradient shows in the weights."""
    tree = {
        "name": "test",
        "seed": 1,
        "model": {"path": str(path), "device": "cpu"},
        "task": {"numbers": 2, "high": 9, "max_value": 81, "train": 24, "validation": 4, "test": 4},
        "rollout": {"prompts": 4, "n": 4, "max_new_tokens": 8, "temperature": 0.7},
        "rl": {
            "algorithm": {"type": "grpo"},
            "steps": 8,
            "lr": 2e-2,
            "optimizer": {
                "betas": [0.8, 0.95],
                "eps": 1e-2,
                "weight_decay": 0.1,
                "max_grad_norm": 100.0,
            },
        },
        "irl": {
            "steps": 3,
            "every": 2,
            "lr": 5e-3,
            "batch": 6,
            "keep": 2,
            "optimizer": {
                "betas": [0.7, 0.9],
                "eps": 2e-2,
                "weight_decay": 0.05,
                "max_grad_norm": 100.0,
            },
        },
        "evaluation": {"n": 4, "validation_n": 4, "every": 0, "final": False},
        "meter": {"problems": 2, "samples": 2},
    }
    for place, value in changes.items():
        node = tree
        *path, last = place.split("__")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return parse_recipe(tree, "test"), tree


def save_model(folder) -> None:
    """A random Llama that ends its texts at many words, so that they are of many lengths."""
    policy = make_policy()
    policy.model.generation_config.eos_token_id = [*range(1, 20), policy.tokenizer.eos_token_id]
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def judge(problem, text, finished) -> Verdict:
    """Right, wrong, or wrong in another way, by problem and text; a third of problems is dull."""
    mixed = crc32(f"{problem.id} {text}".encode())
    if crc32(problem.id.encode()) % 3 == 0:
        return Verdict("wrong", 0.0, "dull")
    if not finished and mixed % 2:
        return Verdict("truncated", 0.0)
    kind = ("correct", "unparsed", "correct", "wrong")[mixed % 4]
    return Verdict(kind, float(kind == "correct"), f"d{mixed % 7}", text[:3])


def size_of(model) -> float:
    """A number that tells its weights from those a step later."""
    return sum(float(p.detach().double().square().sum()) for p in model.parameters())


class Watched:
    """An engine that keeps what it was asked and gave, and gives it in an order of its own."""

    def __init__(self, engine, shift: float = 0.0):
        self.engine, self.calls, self.shift = engine, [], shift
        self.given = None  # the model of the last load_weights, and its weights at that time

    def generate(self, requests, sampling):
        # Some engines hold a copy: what was learnt since would be missing from it.
        assert self.given is None or self.given[1] == size_of(self.given[0])
        drawn = list(self.engine.generate(requests, sampling))
        drawn.sort(key=lambda c: (crc32(bytes(c.ids)), c.sample, c.index))
        for number, c in enumerate(drawn):
            c.logprobs[:] += self.shift * (number % 3 - 1)  # an engine that rounds in its own way
        self.calls.append((list(requests), sampling, drawn))
        yield from drawn

    @property
    def max_rows(self):
        return self.engine.max_rows

    def load_weights(self, model):
        self.engine.load_weights(model)
        self.given = model, size_of(model)

    def shrink(self):
        self.engine.shrink()

    def close(self):
        self.engine.close()


def open_made_run(model_folder, folder, moved=0.05, shift=0.0, listeners=None, **changes):
    """The run and the recipe's tree; the policy has moved away from its reference."""
    recipe, tree = recipe_of(model_folder, **changes)
    run = open_run(recipe, folder, listeners=listeners)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in run.policy.model.parameters():
            p.add_(moved * torch.randn(p.shape, generator=rng))
    run.engine.load_weights(run.policy.model)
    run.engine = Watched(run.engine, shift)
    run.verifier = InlineVerifier(judge)
    return run, tree
