"""Parts of a decode step with long rows on a GPU: are they right, and how near to their floor.

Called by bench/gpu_long.py. A floor is the bytes that must be read over the rate of a large copy.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.gpu_profile import kernels_of, place
from bench.gpu_rollout import bandwidth, build
from sps.policy.logprobs import Scorer, micro_batches, token_logprobs
from sps.rollout.cuda import attention, engine, products, room
from sps.rollout.cuda.device import processors
from sps.rollout.cuda.rows import Rows
from sps.rollout.cuda.state import PAGE, State
from sps.rollout.native.layers import head_width
from sps.types import Request, Sampling

Found = dict[str, Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {
    "model_type": "qwen2", "vocab_size": 2000, "hidden_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 1024, "head_dim": 128,
    "max_position_embeddings": 8192, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


def timed(work: Callable[[], None], repeats: int = 15) -> float:
    """Median microseconds of a captured graph of the work."""
    replay = room.captured(work, None)
    spent = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        spent.append(start.elapsed_time(end) * 1e3)
    return statistics.median(spent[3:])


class Layers:
    """Random caches and queries of a few layers: rows of given lengths, groups sharing a prompt."""

    def __init__(self, config: Any, own: list[int], prompt: int, group: int, layers: int):
        page, rows = PAGE, len(own)
        self.heads, shared = config.num_attention_heads, config.num_key_value_heads
        self.width, self.shared, self.group, self.prompt = head_width(config), shared, group, prompt
        self.own, groups = own, -(-rows // group)
        of_prompt, most = -(-prompt // page), max(own) // page + 1
        pages = groups * of_prompt + sum(o // page + 1 for o in own)
        order = torch.randperm(pages, device=DEVICE).int()
        self.table = torch.zeros(rows, of_prompt + most, dtype=torch.int32, device=DEVICE)
        at = groups * of_prompt
        for row, size in enumerate(own):
            first, count = row // group * of_prompt, size // page + 1
            self.table[row, :of_prompt] = order[first : first + of_prompt]
            self.table[row, of_prompt : of_prompt + count] = order[at : at + count]
            at += count
        shape = (layers, 2, pages, shared, page, self.width)
        self.caches = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        inputs = (layers, rows, (self.heads + 2 * shared) * self.width)
        self.qkv = torch.randn(inputs, device=DEVICE, dtype=torch.bfloat16)
        self.state = State.empty(rows, 1, torch.device(DEVICE))
        self.state.slot.copy_(torch.arange(rows))
        self.state.prompt.copy_(torch.arange(rows) // group)
        self.state.own.copy_(torch.tensor(own))
        self.state.live.fill_(1)
        self.length = torch.full((groups,), prompt, dtype=torch.int32, device=DEVICE)
        angle = torch.rand(prompt + max(own) + 1, self.width // 2, device=DEVICE).repeat(1, 2) * 6
        self.turns = angle.cos().contiguous(), angle.sin().contiguous()

    def attend(self, layer: int, plan: attention.Plan) -> Tensor:
        """The kernel's result."""
        keys, values = self.caches[layer]
        return attention.attend(
            self.qkv[layer], self.turns, self.state, self.length, (keys, values), self.table,
            self.heads, None, 1e-6, plan,
        )  # fmt: skip

    def plain(self, layer: int, row: int) -> Tensor:
        """One row's result by plain torch in float64, from the cache as it is now, [heads, D]."""
        of_prompt, own, prompt = -(-self.prompt // PAGE), self.own[row], self.prompt
        pages = self.table[row].long()
        x = self.qkv[layer, row].view(-1, self.width).double()
        cos, sin = (t[prompt + own].double() for t in self.turns)
        half = self.width // 2
        turned = x * cos + torch.cat([-x[:, half:], x[:, :half]], 1) * sin
        turned = turned.bfloat16().double()
        q, k, v = turned[: self.heads], turned[self.heads :][: self.shared], x[-self.shared :]

        def seen(which: int, new: Tensor) -> Tensor:
            cache = self.caches[layer, which][pages].transpose(0, 1).double()  # [H, M, page, D]
            before = cache[:, :of_prompt].flatten(1, 2)[:, :prompt]
            after = cache[:, of_prompt:].flatten(1, 2)[:, :own]
            every = torch.cat([before, after, new[:, None]], 1)
            return every.repeat_interleave(self.heads // self.shared, 0)

        scores = (seen(0, k) @ q[:, :, None])[..., 0] * self.width**-0.5
        return (scores.softmax(-1)[:, None] @ seen(1, v))[:, 0]

    def bytes(self) -> int:
        """Keys and values of a layer that must be read; a prompt once a group."""
        tokens = sum(self.own) + self.prompt * len(self.length)
        return tokens * self.shared * self.width * 4


def poison(like: Tensor) -> None:
    """Leave NaN where the next result of this size will be."""
    torch.full_like(like, float("nan"))


def check_attention(config: Any) -> Iterator[Found]:
    """The kernel against plain torch, unequal lengths, with and without parts."""
    rng = np.random.default_rng(0)
    tiles = [(64, 2, 4), (128, 4, 2), (32, 4, 3)]
    for (keys, warps, stages), rows, parts in itertools.product(tiles, (8, 24), (1, 3, 16)):
        own = [0, 1, 63, 64, 65, 127, 128, 3000, *rng.integers(0, 3072, rows - 8).tolist()]
        made = Layers(config, own, prompt=int(rng.integers(1, 300)), group=4, layers=1)
        plan = attention.Plan(parts, keys, 1 + parts % 2, warps, stages)
        want = torch.stack([made.plain(0, row) for row in range(rows)])
        poison(want.bfloat16())
        got = made.attend(0, plan).view(want.shape).double()
        error = float((got - want).norm() / want.norm())
        yield {"what": f"{rows} rows, {plan}", "error": error, "ok": error < 1e-2}


def check_products() -> Iterator[Found]:
    """Our products against float64."""
    for rows, parts in itertools.product((5, 16, 40, 200), (1, 2)):
        x = torch.randn(rows, 1536, device=DEVICE).bfloat16()
        weight = torch.randn(768, 1536, device=DEVICE).bfloat16() / 40
        tiles = products.Tiles(64, 128, parts, 4, 4)
        want = x.double() @ weight.double().t()
        got = products.tiled(x, weight, tiles).double()
        got = got if parts == 1 else got.sum(0)
        error = float((got - want).norm() / want.norm())
        yield {"what": f"{rows} rows, {tiles}", "error": error, "ok": error < 1e-2}


class Counted(Rows):
    """Counts the rows that had to wait again."""

    again = 0

    def grow(self, steps: int, waiting: Any) -> None:
        """As ever."""
        before = len(waiting)
        super().grow(steps, waiting)
        Counted.again += len(waiting) - before


def check_engine() -> Iterator[Found]:
    """Log-probabilities of long rows against the trainer's; the last with too few pages for all."""
    model = build(SMALL)
    for p in model.parameters():
        p.data.mul_(2)
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(3, 2000, n).tolist()) for n in (7, 130, 300, 128)]
    requests = [Request(i, t, tuple(range(6))) for i, t in enumerate(texts)]
    usual, engine.Rows = room._SHARE, Counted
    for what, pages in (("all pages", None), ("few pages", 60), ("tiles", 60)):
        Counted.again = 0
        ours = engine.CudaEngine(model, [2, 17, 40, 41], 0, max_rows=64)
        products.tiles_for = small_tiles if what == "tiles" else products.no_tiles
        if pages:
            each = 2 * 3 * 2 * 128 * PAGE * 2
            room._SHARE = (pages + 0.5) * each / room.free_bytes(torch.device(DEVICE))
        done = list(ours.generate(requests, Sampling(6, 1500, seed=3)))
        found, made = distances(model, texts, done), ours.room
        assert made is not None
        found |= {
            "what": what,
            "pages": made.pages,
            "wanted": made.asked.pages,
            "again": Counted.again,
        }
        found["ok"] = len(done) == 24 and found["ours"] < 1.25 * found["training"]
        yield found
        ours.close()
    room._SHARE, engine.Rows = usual, Rows
    products.tiles_for = products.few_rows


def small_tiles(count: int, size: int, depth: int, kind: str) -> products.Tiles | None:
    """For SMALL: our own products, those that a norm adds up in two parts."""
    if size % 128 or depth % 256 or kind == "bias":
        return None
    return products.Tiles(64, 128, 2 if kind == "parts" else 1, 4, 4)


def distances(model: Any, texts: list, done: list) -> Found:
    """Mean distance to float32 log-probabilities, of the engine and of training in bf16."""

    def scored(dtype: torch.dtype) -> np.ndarray:
        model.compute_dtype, out = dtype, []
        with torch.no_grad():
            for c in done:
                rows = next(micro_batches([np.array(texts[c.index])], [c.ids], 0, 8192, DEVICE))
                out.append(token_logprobs(Scorer(model), rows)[0][0].float().cpu().numpy())
        model.compute_dtype = torch.bfloat16
        return np.concatenate(out)

    exact = scored(torch.float32)
    ours = np.concatenate([c.logprobs for c in done])
    return {
        "ours": float(np.abs(ours - exact).mean()),
        "training": float(np.abs(scored(torch.bfloat16) - exact).mean()),
        "gap": float(np.abs(ours - scored(torch.bfloat16)).mean()),
        "tokens": len(exact),
        "longest": max(len(c.ids) for c in done),
    }


def sweep_attention(config: Any, rows: int, own: list[int], until: float) -> Iterator[Found]:
    """Microseconds a layer and share of the floor of many plans; the engine's own first."""
    layers = max(2, min(28, int(4e8 // max(1, 2048 * sum(own)))))
    made = Layers(config, own, prompt=200, group=8, layers=layers)
    floor = made.bytes() / bandwidth() * 1e6
    longest = made.table.shape[1] * PAGE
    usual = attention.plan_for(rows, made.shared, made.width, longest)
    deep = attention.Plan(usual.parts, 64, 2, 2, 4)  # more loads under way, fewer programs
    counts = sorted(
        {max(1, min(48, n * processors() // (rows * made.shared))) for n in (2, 4, 5, 8)}
    )
    tiles = [(64, 2, 2), (64, 4, 2), (32, 1, 2), (32, 2, 2), (64, 2, 3), (32, 2, 3), (32, 1, 3)]
    plans = [usual, deep, *(attention.Plan(p, k, 2, w, s) for k, w, s in tiles for p in counts)]
    for plan in dict.fromkeys(plans):
        if time.monotonic() > until:
            return
        work = [lambda i=i, plan=plan: made.attend(i, plan) for i in range(layers)]
        us = timed(lambda work=work: [w() for w in work] and None) / layers
        yield {"what": f"{rows} rows {plan}", "us": us, "share": floor / us, "usual": plan == usual}


def shapes_of(config: Any) -> dict[str, tuple[int, int]]:
    """The products of a step: name -> weight rows, and length of the sum."""
    width, hidden = head_width(config), config.hidden_size
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    return {
        "qkv": ((heads + 2 * shared) * width, hidden), "out": (hidden, heads * width),
        "gate_up": (2 * config.intermediate_size, hidden),
        "down": (hidden, config.intermediate_size),
        "head": (config.vocab_size, hidden),
    }  # fmt: skip


TILES = {
    16: [
        (64, 128, 4, 4), (64, 128, 4, 6), (32, 128, 4, 6), (32, 256, 4, 4), (128, 64, 4, 5),
        (16, 256, 4, 5),
    ],
    64: [(64, 128, 4, 4), (64, 64, 4, 6), (128, 64, 4, 5), (32, 128, 4, 5)],
    128: [(64, 64, 4, 5), (128, 64, 4, 4), (128, 64, 8, 4)],
}  # fmt: skip


def sweep_products(config: Any, rows: int, until: float) -> Iterator[Found]:
    """cuBLAS and our tiles for each product: microseconds and share of the floor."""
    rate = bandwidth()
    tiles = TILES[max(16, 64 if 16 < rows <= 64 else rows)]
    for name, (size, depth) in shapes_of(config).items():
        copies = max(1, min(8, int(3e8 // (2 * size * depth))))
        weights = torch.randn(copies, size, depth, device=DEVICE, dtype=torch.bfloat16) / depth**0.5
        x = torch.randn(rows, depth, device=DEVICE, dtype=torch.bfloat16)
        floor = 2 * size * depth / rate * 1e6

        def spent(one: Callable[[Tensor], Any], w: Tensor = weights, c: int = copies) -> float:
            return timed(lambda: [one(w[i]) for i in range(c)] and None) / c

        silu = name == "gate_up"
        products.tiles_for = products.no_tiles
        usual = spent(
            lambda w, x=x, s=silu: (
                products.silu_product(x, w) if s else torch.nn.functional.linear(x, w)
            )
        )
        yield {"what": f"{name} {rows}", "us": usual, "share": floor / usual, "tiles": None}
        for wide, deep, warps, stages in tiles:
            for parts in (1, 2, 4, 7, 8) if name in ("out", "down") else (1,):
                if time.monotonic() > until:
                    return
                if size % (2 * wide if silu else wide) or depth % (parts * deep):
                    continue
                how = products.Tiles(wide, deep, parts, warps, stages)
                found = {
                    "what": f"{name} {rows} {how}",
                    "tiles": [wide, deep, parts, warps, stages],
                }
                try:
                    if silu:
                        products.tiles_for = lambda *_, how=how: how
                        us = spent(lambda w, x=x: products.silu_product(x, w))
                    else:
                        us = spent(lambda w, x=x, how=how: products.tiled(x, w, how))
                    yield found | {"us": us, "share": floor / us}
                except Exception as error:  # too much shared memory, and the like
                    yield found | {"failed": f"{type(error).__name__}: {error}"[:200]}
                products.tiles_for = products.few_rows
        del weights


def time_step(ours: engine.CudaEngine, rows: int, own: int, shown: int = 0) -> Found:
    """One step with this many rows, all `own` tokens long: milliseconds, and share of the floor.

    With `shown`, also microseconds and launches of as many kernels.
    """
    config, prompt = ours.model.config, 200
    groups = max(1, rows // 8)
    requests = [Request(i, (5,) * prompt, tuple(range(rows // groups))) for i in range(groups)]
    sampling = Sampling(rows // groups, 3072, seed=0)
    with torch.inference_mode():
        made = ours._make_room(requests, sampling)
        made.graphs.clear()
        replay = made.graph(ours.step, rows, sampling)
        place(made, groups, rows // groups, prompt, own)
        spent = []
        for _ in range(40):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            end.synchronize()
            spent.append(start.elapsed_time(end))
        kernels = kernels_of(replay) if shown else {}
    ms = statistics.median(spent[5:])
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_width(config) * 2
    read = 2 * (sum(p.numel() for p in ours.model.parameters()))
    if not config.tie_word_embeddings:
        read -= 2 * config.vocab_size * config.hidden_size  # of the embedding only a few rows
    cache = (rows * own + groups * prompt) * token
    floor = (read + cache) / bandwidth() * 1e3
    found = {"ms": ms, "floor_ms": floor, "share": floor / ms, "rows": rows, "own": own}
    if shown:
        slowest = sorted(kernels.items(), key=lambda item: -item[1][0])[:shown]
        found["kernels"] = {name[:70]: (round(us, 1), n) for name, (us, n) in slowest}
    return found
