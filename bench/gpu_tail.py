"""Guessed tokens in the tail of real rollouts: the same samples, and in which time.

Called by bench/gpu_long.py: python -m bench.gpu_long spec:MODEL --questions FILE --tail 32x3

--tail is rows that are left at most and guesses for each. With --float32 log-probabilities must be
the same up to where two samples part, and samples part where rounding tips a draw (bench/tips.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.sides import wait
from sps.policy.load import load_policy
from sps.rollout.cuda import attention, decoder, engine, room, tail
from sps.rollout.cuda.rows import Wanted
from sps.tasks.prompts import BOXED, chat
from sps.types import Completion, Request, Sampling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Watched(tail.Tail):
    """Notes when the tail begins, and what its steps take."""

    last: Watched

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.began, self.before, self.steps, self.row_steps, self.taken = 0.0, 0, 0, 0, 0
        Watched.last = self

    def begins(self, waiting: deque[Wanted]) -> bool:
        """As ever."""
        rows = self.rows
        if not self.began and not waiting and rows.count <= tail.ROWS:
            wait()
            self.began = time.perf_counter()
            self.before = rows.tokens + int(rows.age_B.sum()) + rows.count
        return super().begins(waiting)

    def advance(self, replay: Callable[[], None]) -> list[Completion]:
        """As ever."""
        rows = self.rows
        self.steps, self.row_steps = self.steps + 1, self.row_steps + rows.count
        self.taken -= rows.tokens + int((rows.age_B - self.reach + 1).sum())
        done = super().advance(replay)
        self.taken += rows.tokens + int((rows.age_B + 1).sum())
        return done


def requests_of(policy: Any, options: argparse.Namespace) -> list[Request]:
    """The first questions of the file, as recipes with template: chat ask them."""
    lines = options.questions.read_text(encoding="utf-8").splitlines()[: options.groups]
    texts = [chat(json.loads(line)["problem"], BOXED, "") for line in lines]
    every = tuple(range(options.n))
    return [Request(i, policy.encode(text), every) for i, text in enumerate(texts)]


def in_float32() -> None:
    """Slower, so that guesses are seen to change nothing; tiles are twice as large, so fewer."""
    decoder.Decoder.kind = torch.float32
    usual = attention.plan_for

    def plan_for(*shape: int) -> attention.Plan:
        return attention.Plan(usual(*shape).parts, 32, 2, 2, 2)

    attention.plan_for = plan_for


def drawn(ours: engine.CudaEngine, requests: list[Request], sampling: Sampling) -> dict[str, Any]:
    """Seconds of all and of the tail, and what was drawn."""
    wait()
    start = time.perf_counter()
    done = list(ours.generate(requests, sampling))
    wait()
    end, seen = time.perf_counter(), Watched.last
    tokens = sum(len(c.ids) for c in done)
    return {
        "done": {(c.index, c.sample): c for c in done},
        "seconds": end - start,
        "tail_seconds": end - seen.began,
        "tokens": tokens,
        "tail_tokens": tokens - seen.before,
        "guessed_steps": seen.steps,
        "tokens_a_row_and_step": seen.taken / max(1, seen.row_steps),
    }


def compared(plain: dict[Any, Completion], guessed: dict[Any, Completion]) -> dict[str, float]:
    """The share of samples that are the same, how often one parts in a token up to there, and the
    largest difference of log-probabilities before."""
    same, parts, tokens, gap = 0, 0, 0, 0.0
    for key, one in plain.items():
        other, size = guessed[key], min(len(one.ids), len(guessed[key].ids))
        apart = np.flatnonzero(one.ids[:size] != other.ids[:size])
        until = int(apart[0]) if apart.size else size
        parts += bool(apart.size)
        same += not apart.size and len(one.ids) == len(other.ids)
        tokens += until + bool(apart.size)
        if until:
            gap = max(gap, float(np.abs(one.logprobs[:until] - other.logprobs[:until]).max()))
    return {"same": same / len(plain), "parts_a_token": parts / max(1, tokens), "gap": gap}


def measure(path: str, options: argparse.Namespace, add: Callable[[dict], None]) -> None:
    """Plain and guessed in turns; turn 0, which captures graphs, does not count."""
    tail.ROWS, tail.DEPTH = options.tail
    if options.float32:
        in_float32()
    if DEVICE == "cpu":  # under TRITON_INTERPRET=1, to try this very code
        room.captured, room.new_pool = (lambda step, pool: step), (lambda: None)
    engine.Tail = Watched  # type: ignore[misc]
    policy = load_policy(path, dtype="float32" if options.float32 else "bfloat16", device=DEVICE)
    requests = requests_of(policy, options)
    how = (policy.model, policy.eos_ids, policy.pad_id, options.groups * options.n)
    sides = {"plain": engine.CudaEngine(*how), "guessed": engine.CudaEngine(*how, speculate=True)}
    spent: dict[str, list[dict]] = {name: [] for name in sides}
    for turn in range(options.turns + 1):
        sampling = Sampling(options.n, options.tokens, options.temperature, seed=turn)
        found = {name: drawn(ours, requests, sampling) for name, ours in sides.items()}
        plain, guessed = (found[name].pop("done") for name in sides)
        apart = compared(plain, guessed)
        for name, row in found.items():
            add({"what": f"{name} {turn}", "side": name, "turn": turn} | apart | row)
            spent[name] += [row] if turn else []
        if options.float32:
            assert apart["gap"] < 2e-4, apart
    for what in ("seconds", "tail_seconds"):
        plain, guessed = (statistics.median(r[what] for r in spent[n]) for n in sides)
        print(f"{Path(path).name} {what}: {plain:.3f} plain, {guessed:.3f} guessed, "
              f"{plain / guessed:.2f} times as fast", flush=True)  # fmt: skip
