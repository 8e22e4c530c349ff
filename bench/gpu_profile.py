"""Where the time of a decode step goes: each kernel's share, and a whole generation's pace.

python -m bench.gpu_profile [smollm2|qwen]   (the work of bench/gpu_rollout.py, native engine alone)
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from bench.gpu_rollout import WORK, build, floor_seconds
from sps.rollout.cuda.engine import CudaEngine
from sps.rollout.cuda.room import Room
from sps.rollout.cuda.state import pages_of
from sps.types import Request, Sampling

REPLAYS, SHOWN = 5, 14


def requests_of(groups: int, n: int, prompt: int) -> list[Request]:
    """Random prompts of one length."""
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(5, 40000, prompt).tolist()) for _ in range(groups)]
    return [Request(i, ids, tuple(range(n))) for i, ids in enumerate(texts)]


def place(room: Room, groups: int, n: int, prompt: int, own: int) -> None:
    """n rows of each prompt, all `own` tokens long, each with pages of its own after the prompt."""
    state, rows = room.state, groups * n
    every = torch.arange(rows, device=state.slot.device)
    shared, each = pages_of(prompt), pages_of(room.asked.new)
    prompts = 1 + (every // n)[:, None] * shared + torch.arange(shared, device=every.device)
    owns = 1 + groups * shared + every[:, None] * each + torch.arange(each, device=every.device)
    room.pages_SM[:rows, : shared + each] = torch.cat([prompts, owns], 1).int()
    state.slot[:rows], state.prompt[:rows] = every.int(), (every // n).int()
    state.live[:rows], state.own[:rows], state.limit[:rows] = 1, own, room.asked.new
    room.length_P[:groups] = prompt


def captured(engine: CudaEngine, groups: int, n: int, prompt: int, sampling: Sampling) -> Any:
    """The step for all rows, each half way to its end."""
    assert engine.room is not None  # the engine has generated
    place(engine.room, groups, n, prompt, sampling.max_new_tokens // 2)
    return engine.room.graph(engine.step, groups * n, sampling)


def kernels_of(replay: Any) -> dict[str, tuple[float, float]]:
    """Microseconds and launches a step, by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            sums[event.name][0] += event.device_time / REPLAYS
            sums[event.name][1] += 1 / REPLAYS
    return {name: (us, count) for name, (us, count) in sums.items()}


def profile(model: Any, name: str, work: tuple[int, int, int, int]) -> None:
    """One table."""
    groups, n, prompt, new = work
    engine = CudaEngine(model, [-1], 0, max_rows=groups * n)
    requests, sampling = requests_of(groups, n, prompt), Sampling(n, new, seed=0)
    for _ in range(2):  # the first captures
        torch.cuda.synchronize()
        began = time.perf_counter()
        tokens = sum(len(c.ids) for c in engine.generate(requests, sampling))
        seconds = time.perf_counter() - began
    share = floor_seconds(model, groups * n, groups, prompt, new) / seconds
    print(f"\n{name} {groups * n}: {tokens / seconds:,.0f} tok/s, {share:.0%} of the floor")
    with torch.inference_mode():
        found = kernels_of(captured(engine, groups, n, prompt, sampling))
    print(f"a step at half length: {sum(us for us, _ in found.values()):.0f} us of kernels")
    for kernel, (us, count) in sorted(found.items(), key=lambda item: -item[1][0])[:SHOWN]:
        print(f"{us:8.1f} us {count:6.1f} x {us / count:7.2f}  {kernel[:90]}")
    sys.stdout.flush()
    engine.close()


def main() -> None:
    """All work of the shapes asked for."""
    for name in sys.argv[1:] or list(WORK):
        shape, works = WORK[name]
        model = build(shape)
        for work in works:
            profile(model, name, work)


if __name__ == "__main__":
    main()
