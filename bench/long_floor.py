"""Rollouts at the lengths of reasoning: the work that bench.gpu_long measures, and the least time.

python -m bench.long_floor 1.5b:16x8 7b:24x32:256

7b:24x32:256 is 24 prompts, 32 samples each, 256 rows at once, as in bench.gpu_long. The products of
a step take the time to read all weights once, at 4.3 TB/s (a copy on an H200), or that of their
operations at 790 TFLOP/s (a square product of 8192 there), whichever is longer. Attention, which
waits for them, reads the keys and values of each prompt once and those of each row's own tokens.
Embedding, norms, drawing, and what prompts cost to compute are left out.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.gpu_rollout import QWEN15
from bench.sides import RESULTS

QWEN7 = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
SHAPES = {"1.5b": QWEN15, "7b": QWEN7}
PROMPT, MOST, MEAN = 200, 3072, 900
BANDWIDTH, PRODUCTS = 4.3e12, 790e12  # bytes and operations a second


def lengths_of(groups: int, n: int) -> np.ndarray:
    """[groups, n], the same for every side and turn."""
    drawn = np.random.default_rng(0).geometric(1 / MEAN, (groups, n))
    return np.minimum(drawn, MOST)


def work_of(asked: str) -> tuple[str, tuple[int, int, int]]:
    """The shape, and prompts, samples of each and rows at once."""
    shape, size, *more = asked.split(":")
    groups, n = (int(x) for x in size.split("x"))
    return shape, (groups, n, int(more[0]) if more else groups * n)


@dataclass(frozen=True)
class Floor:
    """Seconds to the last row."""

    steps: int
    products: float  # which read their weights meanwhile: the longer of the two
    attention: float  # reading of keys and values

    @property
    def whole(self) -> float:
        """Attention waits for products."""
        return self.products + self.attention


def matrices(shape: dict) -> int:
    """Weights that a step multiplies with: all but the norms, the biases and the embedding."""
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    heads = shape["num_attention_heads"]
    both = 2 * shape["num_key_value_heads"] * width // heads
    layer = width * (width + both) + width * width + 3 * width * inner
    return shape["num_hidden_layers"] * layer + width * shape["vocab_size"]


def floor(shape: dict, length_PG: np.ndarray, rows: int, prompt: int = PROMPT) -> Floor:
    """The least time for answers of these lengths; a row that ends gives way to the next."""
    head = shape["hidden_size"] // shape["num_attention_heads"]
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head * 2  # bytes
    weights = matrices(shape)
    waiting = [(group, int(size)) for group, own in enumerate(length_PG) for size in own][::-1]
    live: list[
        tuple[int, int, int]
    ] = []  # group, and the steps at which a row begins and has ended
    steps, products, attention = 0, 0.0, 0.0
    while live or waiting:
        while waiting and len(live) < rows:
            group, size = waiting.pop()
            live.append((group, steps, steps + size))
        own = sum(steps - began for _, began, _ in live)
        prompts = len({group for group, *_ in live})
        products += 2 * weights * max(1 / BANDWIDTH, len(live) / PRODUCTS)
        attention += token * (own + prompts * prompt) / BANDWIDTH
        steps += 1
        live = [row for row in live if row[2] > steps]
    return Floor(steps, products, attention)


def measured(asked: str, folder: Path = RESULTS) -> dict[str, float]:
    """Median seconds of the sides that are stored, the first turn left out."""
    path = folder / f"gpu_long_{asked.replace(':', '_')}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    sides = {row["side"] for row in rows}
    turns = {s: [r["seconds"] for r in rows if r["side"] == s and r["turn"]] for s in sides}
    return {side: statistics.median(own) for side, own in turns.items() if own}


def table(works: list[str]) -> list[str]:
    """One row a work: the floor, what was measured, and how much of the lead the floor allows."""
    heads = ["work", "products, s", "attention, s", "ours, s", "floor over ours", "vLLM, s"]
    heads.append("ratio; at the floor")
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for asked in works:
        shape, (groups, n, at_once) = work_of(asked)
        least = floor(SHAPES[shape], lengths_of(groups, n), at_once)
        whole, found = least.whole, measured(asked)
        ours, other = found.get("ours"), found.get("vllm")
        cells = [f"{ours:.1f}", f"{100 * whole / ours:.0f} %"] if ours else ["", ""]
        cells.append(f"{other:.1f}" if other else "")
        both = ours and other
        cells.append(f"{other / ours:.1f}; {other / whole:.1f}" if both else "")
        rows.append([f"`{asked}`", f"{least.products:.1f}", f"{least.attention:.1f}", *cells])
    return [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1:])))
