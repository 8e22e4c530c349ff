"""Peak memory and time of a training step at Qwen2.5-1.5B shape: ours and TRL's.

128 sequences of 1024 tokens (24 of prompt) in passes of 16, vocabulary 151,936, float32 weights,
bf16 computation, AdamW. Counted: the peak of the whole step, and of a pass above what rests between
passes (weights, gradients, moments). One side a call:

python -m bench.gpu_memory sps | sps checkpointing [eager] | trl [liger] [checkpointing]
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch

from bench.gpu_rollout import QWEN15, build
from bench.sides import machine
from sps.algo.rl import Terms, policy_loss
from sps.algo.table import algorithm_of
from sps.config.rl import Grpo
from sps.policy.load import prepare_training
from sps.policy.logprobs import Scorer, micro_batches, token_logprobs

ROWS, PASSES, PROMPT, NEW = 16, 8, 24, 1000


def peak(work: Any, weights: list) -> dict[str, float]:
    """GiB in all and of a pass, and seconds, of the third step."""
    optimizer = torch.optim.AdamW(weights, lr=1e-6, fused=True)
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for number in range(PASSES):
            work()
            if number == 0:  # gradients and moments are there from now on
                rests = torch.cuda.memory_allocated()
        passes = torch.cuda.max_memory_allocated()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    whole = max(passes, torch.cuda.max_memory_allocated())
    return {
        "gib": round(whole / 2**30, 2),
        "pass_gib": round((passes - rests) / 2**30, 2),
        "seconds": round(seconds, 3),
    }


def ours(checkpointing: bool, compiled: bool) -> dict[str, float]:
    """Right-padded rows, fused head."""
    model = build(QWEN15)
    scorer = Scorer(model)
    prepare_training(model, checkpointing, compiled)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 40000, PROMPT) for _ in range(ROWS)]
    completions = [rng.integers(5, 40000, NEW) for _ in range(ROWS)]
    parts = list(micro_batches(prompts, completions, 0, ROWS * (PROMPT + NEW), "cuda"))
    adv_B = torch.randn(ROWS, device="cuda")
    weight_B = torch.full((ROWS,), 1 / (ROWS * NEW), device="cuda")

    def work() -> None:
        for rows in parts:
            new_BT, _ = token_logprobs(scorer, rows)
            terms = Terms(new_BT, new_BT.detach(), None, adv_B, weight_B, rows.mask_BT)
            policy_loss(terms, algorithm_of(Grpo()), 0.0)[0].backward()

    return peak(work, list(model.parameters()))


def trl(liger: bool, checkpointing: bool) -> dict[str, float]:
    """GRPOTrainer's own compute_loss on the same batch."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    from sps.policy.embedded import make_tokenizer

    core = make_tokenizer(["a", "."])
    assert isinstance(core, PreTrainedTokenizerFast)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build(QWEN15),
            processing_class=core,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder, per_device_train_batch_size=ROWS, num_generations=ROWS,
                max_completion_length=NEW, bf16=True, beta=0.0, loss_type="grpo", report_to=[],
                use_liger_kernel=liger, gradient_checkpointing=checkpointing,
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * ROWS),
        )  # fmt: skip
    model = trainer.accelerator.prepare(trainer.model)
    model.train()
    if checkpointing:  # what train() would do
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer.current_gradient_accumulation_steps = PASSES
    rng = np.random.default_rng(0)
    ids = torch.tensor(rng.integers(5, 40000, (ROWS, PROMPT + NEW)), device="cuda")
    ones = torch.ones_like(ids)
    inputs = {
        "prompt_ids": ids[:, :PROMPT], "prompt_mask": ones[:, :PROMPT],
        "completion_ids": ids[:, PROMPT:], "completion_mask": ones[:, PROMPT:],
        "advantages": torch.randn(ROWS, device="cuda"),
        "num_items_in_batch": torch.tensor(float(ROWS * NEW), device="cuda"),
    }  # fmt: skip

    def work() -> None:
        trainer.compute_loss(model, inputs).backward()

    return peak(work, list(model.parameters()))


def main() -> None:
    """One side a process: memory of one must not be counted for another."""
    sides = {
        "sps": lambda: ours(False, True),
        "sps checkpointing": lambda: ours(True, True),
        "sps checkpointing eager": lambda: ours(True, False),
        "trl": lambda: trl(False, False),
        "trl checkpointing": lambda: trl(False, True),
        "trl liger": lambda: trl(True, False),
        "trl liger checkpointing": lambda: trl(True, True),
    }
    name = " ".join(sys.argv[1:])
    print({**machine(), "what": name, **sides[name]()}, flush=True)


if __name__ == "__main__":
    main()
