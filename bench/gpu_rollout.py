"""Rollout tokens/s on a GPU, log-probabilities included: native, vLLM, transformers, and the floor.

python -m bench.gpu_rollout [smollm2|qwen|smollm2:1024 ...] [--against vllm,transformers]

:1024 asks for that many sequences alone. vLLM is left out, and said, where it is not installed.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.sides import alternate, report, row
from sps.rollout.native.layers import head_width
from sps.types import Request, Sampling

SMOLLM2 = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
    "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": True,
}  # fmt: skip
QWEN15 = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
# prompts, samples of each, prompt tokens, new tokens
WORK = {
    "smollm2": (SMOLLM2, [(16, 8, 100, 256), (64, 8, 100, 256), (128, 8, 100, 256)]),
    "qwen": (QWEN15, [(16, 8, 200, 512)]),
}


def build(shape: dict) -> Any:
    """A model of this shape with random weights; speed does not depend on them."""
    torch.manual_seed(0)
    kind = shape["model_type"]
    config = AutoConfig.for_model(kind, **{k: v for k, v in shape.items() if k != "model_type"})
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.compute_dtype = torch.bfloat16
    return model


def floor_seconds(model: Any, rows: int, groups: int, prompt: int, new: int) -> float:
    """Time to read the weights once a step, and every key and value that some row sees, in bf16."""
    c = model.config
    token = 2 * c.num_hidden_layers * c.num_key_value_heads * head_width(c) * 2
    weights = 2 * sum(p.numel() for p in model.parameters())
    once = groups * prompt * token + rows * (new / 2) * token  # a prompt is read once a group
    return new * (weights + once) / bandwidth()


def bandwidth() -> float:
    """Bytes a second of a large copy, reads and writes counted."""
    one = torch.empty(2**29, dtype=torch.bfloat16, device="cuda")
    two = torch.empty_like(one)
    two.copy_(one)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        two.copy_(one)
    torch.cuda.synchronize()
    return 10 * 2 * one.nbytes / (time.perf_counter() - began)


def native_side(model: Any, prompts: list, n: int, new: int) -> Callable[[], float]:
    """Ours."""
    from sps.rollout.cuda.engine import CudaEngine  # needs triton

    engine = CudaEngine(model, [-1], 0, max_rows=len(prompts) * n)
    requests = [Request(i, tuple(ids), tuple(range(n))) for i, ids in enumerate(prompts)]
    seeds = iter(range(10**9))

    def work() -> float:
        sampling = Sampling(n, new, seed=next(seeds))
        return float(sum(len(c.ids) for c in engine.generate(requests, sampling)))

    return work


def vllm_side(llm: Any, prompts: list, n: int, new: int) -> Callable[[], float]:
    """vLLM, tokens in and out, the chosen tokens' log-probabilities on."""
    from vllm import SamplingParams

    how = SamplingParams(
        n=n, max_tokens=new, min_tokens=new, ignore_eos=True, logprobs=0, detokenize=False
    )
    inputs = [{"prompt_token_ids": ids} for ids in prompts]

    def work() -> float:
        done = llm.generate(inputs, how, use_tqdm=False)
        return float(sum(len(c.token_ids) for d in done for c in d.outputs))

    return work


def transformers_side(model: Any, prompts: list, n: int, new: int) -> Callable[[], float]:
    """model.generate in bf16, log-probabilities left out: it is far behind without them."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    ids = torch.tensor(prompts, device="cuda").repeat_interleave(n, 0)

    def work() -> float:
        out = half.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
            max_new_tokens=new, min_new_tokens=new, pad_token_id=0,
        )  # fmt: skip
        return float((out.shape[1] - ids.shape[1]) * len(ids))

    return work


def main() -> None:
    """All work of the shapes asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", nargs="*", default=list(WORK))
    parser.add_argument("--against", default="vllm,transformers")
    asked_for = parser.parse_args()
    against = asked_for.against.split(",")
    for asked in asked_for.work:
        rows: list[dict[str, Any]] = []
        name, _, only = asked.partition(":")
        shape, works = WORK[name]
        works = [w for w in works if not only or w[0] * w[1] == int(only)]
        model = build(shape)
        llm = _vllm(model) if "vllm" in against else None
        for groups, n, prompt, new in works:
            rng = np.random.default_rng(0)
            prompts = [rng.integers(5, 40000, prompt).tolist() for _ in range(groups)]
            sides = {"native": native_side(model, prompts, n, new)}
            if llm is not None:
                sides["vllm"] = vllm_side(llm, prompts, n, new)
            if "transformers" in against:
                sides["transformers"] = transformers_side(model, prompts, n, new)
            rates = alternate(sides, repeats=3)
            found = row(f"{name} {groups * n}", rates, "tok/s")
            seconds = groups * n * new / found["median"]["native"]
            found["floor"] = floor_seconds(model, groups * n, groups, prompt, new)
            found["share_of_floor"] = found["floor"] / seconds
            rows.append(found)
            print(f"{found['what']}: {found['share_of_floor']:.0%} of the floor", flush=True)
            report(f"gpu_rollout_{asked.replace(':', '_')}", rows)
            sys.stdout.flush()


def _vllm(model: Any) -> Any:
    try:
        from vllm import LLM
    except ImportError:
        print("vLLM is not installed: its side is left out", flush=True)
        return None
    folder = tempfile.mkdtemp()
    model.to(torch.bfloat16).save_pretrained(folder)
    model.to(torch.float32)
    return LLM(
        model=folder, skip_tokenizer_init=True, dtype="bfloat16", gpu_memory_utilization=0.3,
        max_num_seqs=1024, max_model_len=1024, attention_config={"backend": "FLASH_ATTN"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
