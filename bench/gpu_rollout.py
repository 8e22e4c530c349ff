"""Rollout tokens/s on a GPU, log-probabilities included: the native engine, and what it could do."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sps.rollout.cuda import CudaEngine
from sps.types import Request, Sampling

SMOLLM2 = dict(
    model_type="llama", vocab_size=49152, hidden_size=576, num_hidden_layers=30,
    num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
    max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
)  # fmt: skip
QWEN15 = dict(
    model_type="qwen2", vocab_size=151936, hidden_size=1536, num_hidden_layers=28,
    num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
    max_position_embeddings=4096, rope_theta=10000.0, tie_word_embeddings=True,
)  # fmt: skip
WORK = [  # name, shape, prompts, samples, prompt tokens, new tokens
    ("SmolLM2 128", SMOLLM2, 16, 8, 100, 256),
    ("SmolLM2 512", SMOLLM2, 64, 8, 100, 256),
    ("SmolLM2 1024", SMOLLM2, 128, 8, 100, 256),
    ("Qwen2.5-1.5B 128", QWEN15, 16, 8, 200, 512),
]


def build(shape: dict) -> torch.nn.Module:
    """A model of this shape with random weights; speed does not depend on them."""
    torch.manual_seed(0)
    kind = shape["model_type"]
    config = AutoConfig.for_model(kind, **{k: v for k, v in shape.items() if k != "model_type"})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).cuda().eval()
    model.compute_dtype = torch.bfloat16
    return model


def floor_seconds(model, rows: int, groups: int, prompt: int, new: int, bandwidth: float) -> float:  # noqa: ANN001
    """Time to read weights once a step and each key and value that a row sees, bf16."""
    c = model.config
    width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    token = 2 * c.num_hidden_layers * c.num_key_value_heads * width * 2
    weights = 2 * sum(p.numel() for p in model.parameters())
    kv = groups * prompt * token + rows * (new / 2) * token
    return new * (weights + kv) / bandwidth


def main() -> None:
    """All shapes; medians of repeats."""
    copy = torch.empty(2**30, dtype=torch.bfloat16, device="cuda")
    into = torch.empty_like(copy)
    into.copy_(copy)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        into.copy_(copy)
    torch.cuda.synchronize()
    bandwidth = 10 * 2 * copy.nbytes / (time.perf_counter() - began)
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    del copy, into
    made = {}
    for name, shape, groups, n, prompt, new in WORK:
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        key = shape["model_type"]
        if key not in made:
            made = {key: build(shape)}
        model = made[key]
        engine = CudaEngine(model, [-1], 0, max_rows=groups * n)
        rng = np.random.default_rng(0)
        requests = [
            Request(i, tuple(rng.integers(5, 40000, prompt).tolist()), tuple(range(n)))
            for i in range(groups)
        ]
        rates = []
        for turn in range(4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            tokens = sum(len(c.ids) for c in engine.generate(requests, Sampling(n, new, seed=turn)))
            rates.append(tokens / (time.perf_counter() - began))
        seconds = groups * n * new / np.median(rates[1:])
        least = floor_seconds(model, groups * n, groups, prompt, new, bandwidth)
        print(
            f"{name}: {np.median(rates[1:]):,.0f} tok/s, {1e3 * seconds / new:.2f} ms a step, "
            f"{least / seconds:.0%} of the floor {1e3 * least / new:.2f} ms; "
            f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True,
        )  # fmt: skip
        engine.close()


if __name__ == "__main__":
    main()
