"""RL steps/s against TRL's GRPOTrainer, with or without vLLM: same prompts, lengths and batch.

python -m bench.gpu_trl smollm2|qwen|MODEL.gguf vllm|plain STEPS

A GGUF has SmolLM2's work to do. Steps alternate; at Qwen's shape both do not fit side by side, and
TRL starts when ours is done. The first two steps of each are warm-up.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.gpu_rollout import QWEN15, SMOLLM2, build
from bench.gpu_step import make_run
from bench.sides import TRL, report, row, wait
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase
from sps.policy.load import load_policy, prepare_training

# shape, prompt tokens, new tokens, TRL's sequences in a pass (more of Qwen's would not fit), ours
# in tokens
WORK = {"smollm2": (SMOLLM2, 100, 256, 128, 49152), "qwen": (QWEN15, 200, 512, 16, 16384)}


class Clock(TrainerCallback):
    """Seconds of each of TRL's steps; our step follows it where both fit."""

    def __init__(self, after: Callable[[], None]) -> None:
        self.seconds: list[float] = []
        self.after = after

    def on_step_begin(self, *_, **__) -> None:
        """Start the clock."""
        wait()
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        """Stop it."""
        wait()
        self.seconds.append(time.perf_counter() - self.began)
        self.after()


class Ours:
    """Our steps, one at a time."""

    def __init__(self, model: Any, work: tuple, steps: int, folder: Path) -> None:
        _, prompt, new, _, micro = work
        prepare_training(model, compiled=torch.cuda.is_available())
        self.run = make_run(model, folder, prompt, new, micro)
        self.steps = rl_phase(self.run, Phase(1, 1, 1, steps))
        self.seconds: list[float] = []

    def step(self) -> None:
        """One, timed."""
        wait()
        began = time.perf_counter()
        next(self.steps)
        wait()
        self.seconds.append(time.perf_counter() - began)


def trainer(folder: Path, work: tuple, vllm: bool, steps: int, clock: Clock) -> GRPOTrainer:
    """TRL's, over the model in the folder."""
    shape, prompt, new, at_once, _ = work
    core = Tokenizer(WordLevel({f"w{i}": i for i in range(shape["vocab_size"])}, unk_token="w0"))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0", eos_token="w1")
    tokenizer.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    ids = rng.integers(5, min(40000, shape["vocab_size"]), (512, prompt))
    texts = [" ".join(f"w{i}" for i in row) for row in ids]
    settings = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=128 // at_once,
        num_generations=8,
        max_completion_length=new,
        learning_rate=5e-7,
        max_steps=steps,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        use_vllm=vllm,
        generation_kwargs={"ignore_eos": True} if vllm else {"eos_token_id": None},
        **TRL,
        **({"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if vllm else {}),
    )
    return GRPOTrainer(
        model=str(folder / "model"),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": t} for t in texts]),
        callbacks=[clock],
    )


def measure(name: str, vllm: bool, steps: int) -> None:
    """The ratio of our steps/s to TRL's, turn by turn."""
    work = WORK.get(name, WORK["smollm2"])
    real = name.endswith(".gguf")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_policy(name, dtype="bfloat16", device=device).model if real else build(work[0])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model.to(torch.bfloat16).save_pretrained(folder / "model")  # TRL reads what we start from
        model = model.to(torch.float32)
        ours = Ours(model, work, steps, folder / "sps")
        clock = Clock(ours.step)
        if name == "qwen":
            for _ in range(steps):
                ours.step()
            del ours.run, ours.steps, model
            gc.collect()
            torch.cuda.empty_cache()
            clock.after = lambda: None
        trainer(folder, work, vllm, steps, clock).train()
    label = Path(name).stem if real else f"{name} shape"
    other = "TRL with vLLM" if vllm else "TRL"
    rates = {"sps": ours.seconds, other: clock.seconds}
    rates = {side: [1 / s for s in seconds[2:]] for side, seconds in rates.items()}
    rows = [row(f"RL step, {label}, 16 x 8", rates, "steps/s")]
    report(f"gpu_rl_step_{'real' if real else name}_{'vllm' if vllm else 'plain'}", rows)


if __name__ == "__main__":
    measure(sys.argv[1], vllm=sys.argv[2] == "vllm", steps=int(sys.argv[3]))
