"""RL steps on a GPU: seconds a step, where they go, peak memory, and what an IRL phase adds."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from bench.gpu_rollout import QWEN15, SMOLLM2, build
from sps.build import make_engine
from sps.config.load import parse_recipe
from sps.data.sampler import Sampler
from sps.phases.irl import irl_phase
from sps.phases.rl import rl_phase
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.policy.load import Policy, prepare_training
from sps.policy.update import Budget, make_optimizer
from sps.run.track import Track
from sps.store.rollouts import RolloutStore
from sps.types import Problem, Verdict
from sps.verify import InlineVerifier


def make_run(
    model, folder: Path, prompt: int, new: int, micro_tokens: int, ends: Sequence[int] = (-1,)
) -> Run:
    """A run over random prompts of one length; half of the completions count as correct.

    `ends` are the tokens that end one: by default none does.
    """
    rng = np.random.default_rng(0)
    problems = [Problem(str(i), "", "") for i in range(512)]
    recipe = parse_recipe(
        {
            "rollout": {"prompts": 16, "n": 8, "max_new_tokens": new},
            "rl": {"lr": 5e-7, "micro_tokens": micro_tokens},
            "irl": {"lr": 5e-7, "every": 188},
        },
        "bench",
    )
    tokenizer = SimpleNamespace(
        decode=lambda ids, **_: str(ids[-1] % 2), pad_token_id=0, eos_token_id=ends[0]
    )
    model.config.eos_token_id, model.generation_config.eos_token_id = ends[0], list(ends)
    policy = Policy(model, tokenizer, "bench")

    def judge(problem: Problem, text: str, finished: bool) -> Verdict:
        return Verdict("correct", 1.0) if text == "1" else Verdict("wrong", 0.0)

    run = Run(
        recipe=recipe,
        policy=policy,
        reference=None,
        engine=make_engine(policy, 1024),
        verifier=InlineVerifier(judge),
        task=None,
        train=problems,
        sampler=Sampler(len(problems), 0),
        store=RolloutStore(folder),
        optimizer=make_optimizer(model, 5e-7, (0.9, 0.999), 1e-8, 0.0),
        budget=Budget(micro_tokens),
        folder=folder,
        track=Track(folder / "metrics.jsonl"),
    )
    for p in problems:
        run.prompts[p.id] = tuple(
            rng.integers(5, min(40000, model.config.vocab_size), prompt).tolist()
        )
    return run


def sync_seconds(run: Run) -> float:
    """Median time for the engine to follow the trainer's weights."""
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run.engine.load_weights(run.policy.model)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def measure(
    name: str, shape: dict, prompt: int, new: int, steps: int, micro: int, compiled: bool
) -> dict:
    """Median seconds of a step after two of warm-up, and of an IRL phase."""
    model = build(shape)
    prepare_training(model, checkpointing=False, compiled=compiled)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(model, Path(folder), prompt, new, micro)
        phase = Phase(1, 1, 1, steps, irl=True, irl_lr=run.recipe.irl.lr)
        draws, updates, whole, peaks = [], [], [], []
        began = time.perf_counter()
        for step, metrics, _ in rl_phase(run, phase):
            torch.cuda.synchronize()
            if step > 2:
                whole.append(time.perf_counter() - began)
                draws.append(metrics["seconds/generate"] + metrics["seconds/verify"])
                updates.append(metrics["seconds/update"])
                peaks.append(metrics["peak_gib"])
            began = time.perf_counter()
        torch.cuda.synchronize()
        began = time.perf_counter()
        irl = list(irl_phase(run, phase))
        torch.cuda.synchronize()
        irl_seconds = time.perf_counter() - began
        sync = sync_seconds(run)
    step = float(np.median(whole))
    out = {
        "what": name,
        "step": step,
        "draw": float(np.median(draws)),
        "update": float(np.median(updates)),
        "irl_phase": irl_seconds,
        "irl_rollouts": irl[0]["kept"],
        "irl_share_at_188_steps": irl_seconds / (188 * step + irl_seconds),
        "weight_sync": sync,
        "peak_gib": max(peaks),
        "steps": len(whole),
    }
    print(json.dumps(out), flush=True)
    return out


def main() -> None:
    """SmolLM2 and Qwen2.5-1.5B shapes."""
    which = sys.argv[1] if len(sys.argv) > 1 else ""
    for compiled in (False, True):
        how = ", compiled" if compiled else ""
        if which in ("", "smollm2"):
            name = f"SmolLM2 shape, 16 x 8, prompt 100, 256 new{how}"
            measure(name, SMOLLM2, 100, 256, 12, 49152, compiled)
        if which in ("", "qwen"):
            name = f"Qwen2.5-1.5B shape, 16 x 8, prompt 200, 512 new{how}"
            measure(name, QWEN15, 200, 512, 5, 16384, compiled)


if __name__ == "__main__":
    main()
