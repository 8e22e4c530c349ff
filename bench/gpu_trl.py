"""RL steps/s against TRL's GRPOTrainer, with or without vLLM: same prompts, lengths and batch.

python -m bench.gpu_trl smollm2|qwen|MODEL.gguf vllm|plain STEPS
python -m bench.gpu_trl long|tiny vllm|plain STEPS [--sides sps,trl] [--out FOLDER]

A GGUF has SmolLM2's work to do. Steps alternate; at Qwen's shape both do not fit side by side, and
TRL starts when ours is done. The first two steps of each are warm-up.

`long` is Qwen's shape at the lengths of reasoning: 169 tokens end an answer, so that lengths are
geometric with a mean of about 900, of at most 3072; each side has a process of its own, and every
step is written at once to OUT/gpu_rl_step_long_vllm.json. TRL recomputes activations, as it does by
default (--keep: it does not). `tiny` is the same for a few seconds on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from bench.sides import RESULTS, TRL, machine, report, row, wait
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase
from sps.policy.load import load_policy, prepare_training

GIB, WARM_UP = 2**30, 2
TINY = {
    "model_type": "qwen2", "vocab_size": 1690, "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What both sides do in a step, 16 prompts x 8."""

    shape: dict
    prompt: int  # tokens
    new: int  # tokens, at most
    rows: int  # TRL's sequences in a pass (more of Qwen's would not fit)
    micro: int  # ours in tokens
    ending: int = 0  # tokens that end an answer; without one all are as long as they may be
    recompute: bool = False  # TRL's activations

    @property
    def ends(self) -> list[int]:
        """Spread over the vocabulary, from the tokenizer's own on."""
        return [1 + i * (self.shape["vocab_size"] // self.ending) for i in range(self.ending)]


WORK = {
    "smollm2": Work(SMOLLM2, 100, 256, 128, 49152),
    "qwen": Work(QWEN15, 200, 512, 16, 16384),
    "long": Work(QWEN15, 200, 3072, 4, 16384, ending=169, recompute=True),
    "tiny": Work(TINY, 20, 120, 4, 1024, ending=48, recompute=True),
}


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

    def __init__(self, model: Any, work: Work, steps: int, folder: Path) -> None:
        prepare_training(model, compiled=torch.cuda.is_available())
        ends = work.ends or [-1]
        self.run = make_run(model, folder, work.prompt, work.new, work.micro, ends)
        self.steps = rl_phase(self.run, Phase(1, 1, 1, steps))
        self.seconds: list[float] = []
        self.metrics: dict[str, Any] = {}

    def step(self) -> None:
        """One, timed."""
        wait()
        began = time.perf_counter()
        _, self.metrics, _ = next(self.steps)
        wait()
        self.seconds.append(time.perf_counter() - began)


def odd(completions: list[str], **_: Any) -> list[float]:
    """Rewards that differ within a group."""
    return [float(len(c) % 2) for c in completions]


def trainer(
    folder: Path, work: Work, vllm: bool, steps: int, clock: Clock, reward: Callable = odd
) -> GRPOTrainer:
    """TRL's, over the model in the folder."""
    size = work.shape["vocab_size"]
    core = Tokenizer(WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0", eos_token="w1")
    tokenizer.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    ids = rng.integers(5, min(40000, size), (512, work.prompt))
    texts = [" ".join(f"w{i}" for i in row) for row in ids]
    if vllm:
        how = {"stop_token_ids": work.ends} if work.ends else {"ignore_eos": True}
    else:
        how = {"eos_token_id": work.ends or None}
    more: dict[str, Any] = {**TRL, "gradient_checkpointing": work.recompute}
    if vllm:
        more |= {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    if vllm and work.ends:
        more["vllm_max_model_length"] = work.prompt + work.new + 8
    settings = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=work.rows,
        gradient_accumulation_steps=128 // work.rows,
        num_generations=8,
        max_completion_length=work.new,
        learning_rate=5e-7,
        max_steps=steps,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        use_vllm=vllm,
        generation_kwargs=how,
        **more,
    )
    return GRPOTrainer(
        model=str(folder / "model"),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": t} for t in texts]),
        callbacks=[clock],
    )


def measure(name: str, vllm: bool, steps: int) -> None:
    """The ratio of our steps/s to TRL's, turn by turn."""
    work = WORK.get(name, WORK["smollm2"])
    real = name.endswith(".gguf")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_policy(name, dtype="bfloat16", device=device).model if real else build(work.shape)
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
    rates = {side: [1 / s for s in seconds[WARM_UP:]] for side, seconds in rates.items()}
    rows = [row(f"RL step, {label}, 16 x 8", rates, "steps/s")]
    report(f"gpu_rl_step_{'real' if real else name}_{'vllm' if vllm else 'plain'}", rows)


class Record:
    """Steps of one side, beside those of the other in one file; written after each."""

    def __init__(self, path: Path, side: str) -> None:
        self.path, self.side = path, side
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text())["rows"] if path.exists() else []
        self.rows = [r for r in known if r["side"] != side]

    def add(self, seconds: float, tokens: int, peak: float, **more: Any) -> None:
        """One step: peak is what torch had in this process, used what the device had at its end."""
        own = [r for r in self.rows if r["side"] == self.side]
        found = {"side": self.side, "step": len(own) + 1, "warm_up": len(own) < WARM_UP}
        found |= {"seconds": seconds, "tokens": tokens, "rate": tokens / seconds}
        found |= {"peak_gib": peak, "used_gib": used(), **more}
        self.rows.append(found)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
        told = {**machine(), "median": self.medians(), "rows": self.rows}
        self.path.write_text(json.dumps(told, indent=1) + "\n")

    def medians(self) -> dict[str, dict[str, float]]:
        """Of each side, after warm-up."""
        sides: dict[str, list[dict]] = {}
        for r in self.rows:
            if not r["warm_up"]:
                sides.setdefault(r["side"], []).append(r)
        names = ("seconds", "generate", "update", "tokens", "rate", "peak_gib", "used_gib")
        return {
            side: {name: statistics.median(r[name] for r in rows) for name in names}
            for side, rows in sides.items()
        }


def used() -> float:
    """GiB of the device, of all processes: what nvidia-smi says."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def ours_alone(work: Work, steps: int, record: Record) -> None:
    """Our side of `long`."""
    model = build(work.shape)
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(model, work, steps, Path(folder))
        for _ in range(steps):
            ours.step()
            told = ours.metrics
            record.add(
                ours.seconds[-1],
                int(told["tokens"]),
                told.get("peak_gib", 0.0),  # the update asks, and resets it
                generate=told["seconds/generate"],
                update=told["seconds/update"],
                weights=str(next(model.parameters()).dtype),
            )


def trl_alone(work: Work, vllm: bool, steps: int, record: Record) -> None:
    """TRL's side of `long`."""
    # cuDNN's attention gives NaN gradients for some left-padded lengths (torch 2.11).
    torch.backends.cuda.enable_cudnn_sdp(False)
    seen, generating = [0], [0.0]

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        seen[0] += sum(len(ids) for ids in completion_ids)
        return odd(completions)

    def after() -> None:
        peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0
        dtype = str(next(side.model.parameters()).dtype)
        update = clock.seconds[-1] - generating[0]  # and the old log-probabilities
        more = {"generate": generating[0], "update": update, "weights": dtype}
        record.add(clock.seconds[-1], seen[0], peak, **more)
        seen[0], generating[0] = 0, 0.0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def clocked(*given: Any, **named: Any) -> Any:  # with the weights' way to vLLM
        wait()
        began = time.perf_counter()
        found = generate(*given, **named)
        wait()
        generating[0] += time.perf_counter() - began
        return found

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = build(work.shape).to(torch.bfloat16)
        model.generation_config.eos_token_id = work.ends
        model.save_pretrained(folder / "model")
        del model
        gc.collect()
        torch.cuda.empty_cache()
        clock = Clock(after)
        side = trainer(folder, work, vllm, steps, clock, reward)
        generate, side._generate_single_turn = side._generate_single_turn, clocked
        side.train()


def lengths(name: str, options: argparse.Namespace) -> None:
    """Both sides of `long`, each in a process: neither holds memory of the other. Or one, here."""
    out = options.out / f"gpu_rl_step_{name}_{options.engine}.json"
    if len(options.sides) > 1:
        codes = []
        for side in options.sides:
            # The last of a repeated option counts.
            command = [sys.executable, "-m", "bench.gpu_trl", *sys.argv[1:], "--sides", side]
            codes.append(subprocess.run(command).returncode)
            print(f"== {side}: exit code {codes[-1]}", flush=True)
        for side, found in Record(out, "").medians().items():
            print(side, {k: round(v, 2) for k, v in found.items()})
        raise SystemExit(any(codes))
    (side,) = options.sides
    work = WORK[name]
    if side == "sps":
        ours_alone(work, options.steps, Record(out, "sps"))
        return
    work = replace(work, rows=options.rows or work.rows)
    work = replace(work, recompute=work.recompute and not options.keep)
    vllm = options.engine == "vllm"
    trl_alone(work, vllm, options.steps, Record(out, "TRL with vLLM" if vllm else "TRL"))


def main() -> None:
    """As asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work")
    parser.add_argument("engine", choices=("vllm", "plain"), help="TRL's")
    parser.add_argument("steps", type=int)
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["sps", "trl"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rows", type=int, help="TRL's sequences in a pass")
    parser.add_argument("--keep", action="store_true", help="TRL keeps activations")
    options = parser.parse_args()
    if options.work in WORK and WORK[options.work].ending:
        lengths(options.work, options)
    else:
        measure(options.work, options.engine == "vllm", options.steps)


if __name__ == "__main__":
    main()
