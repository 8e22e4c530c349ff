"""RL steps of TRL's GRPOTrainer on the same work as bench/gpu_step.py, with and without vLLM.

python -m bench.gpu_trl smollm2|qwen vllm|plain STEPS
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.gpu_rollout import QWEN15, SMOLLM2, build

# shape, prompt tokens, new tokens, sequences in a pass (more of Qwen's would not fit)
WORK = {"smollm2": (SMOLLM2, 100, 256, 128), "qwen": (QWEN15, 200, 512, 16)}


class Clock(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_, **__) -> None:
        """Start the clock."""
        torch.cuda.synchronize()
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        """Stop it."""
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)


def measure(name: str, vllm: bool, steps: int) -> None:
    """Median seconds of a step after two of warm-up."""
    shape, prompt, new, at_once = WORK[name]
    model = build(shape).to(torch.bfloat16)
    core = Tokenizer(WordLevel({f"w{i}": i for i in range(shape["vocab_size"])}, unk_token="w0"))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0", eos_token="w1")
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(5, 40000, prompt)) for _ in range(512)]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        settings = GRPOConfig(
            output_dir=f"{folder}/out",
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=128 // at_once,
            num_generations=8,
            max_completion_length=new,
            learning_rate=5e-7,
            beta=0.0,
            max_steps=steps,
            loss_type="grpo",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=True,
            gradient_checkpointing=False,
            use_vllm=vllm,
            generation_kwargs={"ignore_eos": True} if vllm else {"eos_token_id": None},
            **({"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if vllm else {}),
        )
        trainer = GRPOTrainer(
            model=f"{folder}/model",
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": t} for t in texts]),
            callbacks=[clock],
        )
        began = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - began
    name += ", TRL with vLLM colocated" if vllm else ", TRL without vLLM"
    gib = torch.cuda.max_memory_allocated() / 2**30
    rest = clock.seconds[2:] or clock.seconds[1:]
    out = {"what": name, "step": float(np.median(rest)), "steps": len(rest), "peak_gib": gib}
    print(json.dumps({**out, "per_step_whole_run": whole / steps}), flush=True)


if __name__ == "__main__":
    measure(sys.argv[1], vllm=sys.argv[2] == "vllm", steps=int(sys.argv[3]))
