"""Rollout tokens/s of the native engine against `model.generate`, log-probabilities included."""

from __future__ import annotations

import torch

from bench.sides import alternate, report, row
from sps.build import make_policy, make_task
from sps.config.recipe import Recipe
from sps.rollout.native.engine import NativeEngine
from sps.types import Request, Sampling

NEW = 20


def main() -> None:
    """The embedded policy at 128 and 2048 completions."""
    recipe = Recipe()
    policy, problems = make_policy(recipe), make_task(recipe).problems("test")
    engine = NativeEngine(policy.model, policy.eos_ids, policy.pad_id)
    rows = []
    for n, repeats in ((8, 15), (128, 5)):
        prompts = [policy.encode(p.question) for p in problems[:16]]

        def native(prompts=prompts, n=n) -> float:
            requests = [Request(i, ids, tuple(range(n))) for i, ids in enumerate(prompts)]
            done = engine.generate(requests, Sampling(n, NEW, seed=1))
            return float(sum(len(c.ids) for c in done))

        def generate(prompts=prompts, n=n) -> float:
            return _generate(policy, torch.tensor(prompts).repeat_interleave(n, 0))

        rates = alternate({"native": native, "generate": generate}, repeats)
        rows.append(row(f"{16 * n} completions", rates, "tok/s"))
    report("engine", rows)


def _generate(policy, ids) -> float:
    out = policy.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        max_new_tokens=NEW,
        pad_token_id=policy.pad_id,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = out.sequences[:, ids.shape[1] :]
    for at, logits in enumerate(out.logits):
        logits.log_softmax(-1).gather(-1, new[:, at : at + 1])
    return float((new != policy.pad_id).sum())
