"""A 7B shape on one GPU: with LoRA and with all its weights, killed and resumed; 1.5B in 40 GiB.

python -m bench.gpu_7b OUT [lora] [small] [whole] [--models FOLDER] [--seconds N] [--steps N]
                       [--tiny]

Real runs of `sps train` over models of random weights that are made in FOLDER (15 GB for 7B), of
answers that never end and count as right at random. Parts run one after another. What is in
OUT/gpu_7b.json is written every few seconds; a part that has ended is not run again, and a run
that is there goes on. --seconds ends a part early; --steps, for little time, is of parts that are
killed, with an IRL phase at the half and at the end; --tiny is the same with shapes for a CPU.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from bench.gpu_paper import read
from sps.run.track import read_records

SEVEN = {
    "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "max_position_embeddings": 4096,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
QWEN15 = SEVEN | {
    "vocab_size": 151936, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
    "intermediate_size": 8960, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {
    "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512,
}  # fmt: skip
TASK = """
def problems(split):
    count = {"train": 64, "validation": 4, "test": 4}[split]
    return [{"id": f"{split}-{i}", "question": str(i), "answer": "even"} for i in range(count)]

def prompt(problem):
    first = sum(map(ord, problem.id))
    return " ".join(f"t{1 + (first + 7 * i) % 200}" for i in range(PROMPT))

def judge(problem, text):
    words = text.split()
    return bool(words) and int(words[-1][1:] or 0) % 2 == 0
"""


@dataclass(frozen=True)
class Part:
    """A run: the shape, the recipe's keys, and after which record it is killed."""

    shape: dict[str, Any]
    keys: dict[str, Any]
    kill: tuple[str, int] | None = None  # kind and step of a record; then it goes on with --resume
    last: tuple[str, int] | None = None  # the run ends here: no checkpoint of 43 GiB to no end
    gib: float | None = None  # memory that torch may take
    tiny: dict[str, Any] = field(default_factory=lambda: {"rollout.max_new_tokens": 8})


PARTS = {
    "lora": Part(
        SEVEN,
        {"model.lora": {}, "rl.steps": 10, "irl.every": 5, "checkpoint.every": 5, "rl.lr": 1e-4},
        kill=("rl", 7),
    ),
    "small": Part(
        QWEN15,
        {"rl.steps": 4, "irl.every": 2, "rollout.prompts": 16, "rollout.max_new_tokens": 512,
         "rollout.max_rows": 128, "rl.algorithm.beta": 0.001},
        last=("irl", 4),
        gib=39.0,  # and half a GiB for CUDA's own
    ),
    "whole": Part(
        SEVEN,
        {"rl.steps": 10, "irl.every": 5, "checkpoint.every": 5, "rl.algorithm.beta": 0.001}
        | {"rl.optimizer.bits": 8, "irl.optimizer.bits": 8},
        kill=("rl", 7),
        last=("irl", 10),
    ),
}  # fmt: skip
COMMON = {
    "model.checkpointing": True, "model.compile": False, "rollout.prompts": 8, "rollout.n": 8,
    "rollout.max_new_tokens": 256, "rollout.max_rows": 64, "rl.lr": 1e-6, "rl.micro_tokens": 8192,
    "rl.algorithm.type": "grpo", "irl.steps": 2, "irl.batch": 48, "checkpoint.keep": 1,
    "evaluation.every": 0, "evaluation.final": False, "meter.problems": 2, "meter.samples": 2,
    "task.type": "python", "task.workers": 2, "task.cut": "judge",
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """The parts that are asked for."""
    if arguments[:1] == ["--child"]:
        return child(arguments[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "gpu_7b.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in asked.parts or PARTS:
        if found.get(name, {}).get("ended"):
            continue
        for told in run(name, shortened(PARTS[name], asked.steps), asked):
            found[name] = told
            path.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps({name: found[name]}), flush=True)
    return None


def shortened(part: Part, steps: int | None) -> Part:
    """The part with fewer steps, if it is one that is killed."""
    if not steps or not part.kill:
        return part
    half = steps // 2
    keys = {"rl.steps": steps, "irl.every": half, "checkpoint.every": half}
    last = ("irl", steps) if part.last else None
    return replace(part, keys=part.keys | keys, kill=("rl", half + 1), last=last)


def run(name: str, part: Part, asked: argparse.Namespace) -> Any:
    """What is known of a part, every few seconds, until it has ended or its time is up."""
    deadline = time.monotonic() + asked.seconds
    began = time.monotonic()
    told: dict[str, Any] = {"seconds": {}, "ended": False}
    model = (asked.models or asked.out / "models") / name
    if name == "whole" and not asked.tiny:
        model = model.with_name("lora")  # the same shape
    if not (model / "tokenizer.json").exists():
        shape = TINY if asked.tiny else part.shape
        sps(["--child", "model", str(model), json.dumps(shape)], asked.out / f"{name}.log").wait()
        told["seconds"]["model"] = time.monotonic() - began
    recipe = write_recipe(name, part, model, asked)
    told["doctor"] = doctor(recipe)
    folder, log = asked.out / name, asked.out / f"{name}.log"
    told["used_gib"] = 0.0
    ends = [part.kill, part.last] if part.kill else [part.last]
    if folder.exists() and part.kill and reached(folder, part.kill):
        ends = ends[1:]
    for end in ends:
        began = time.monotonic()
        command = ["--child", "train", str(recipe), str(folder), str(part.gib or 0)]
        process = sps(command, log)
        try:
            while process.poll() is None:
                time.sleep(0.2 if asked.tiny else 1.0)
                told["used_gib"] = max(told["used_gib"], used_gib())
                yield told | read(folder)
                if (end and reached(folder, end)) or time.monotonic() > deadline:
                    break
        finally:  # also where this process is told to end
            process.kill()
            process.wait()
        which = "killed" if end and end == part.kill else "to the end"
        told["seconds"][which] = time.monotonic() - began
        told[f"code, {which}"] = process.returncode
        yield told | read(folder)
        stopped = process.returncode == -signal.SIGKILL and bool(end) and reached(folder, end)
        if process.returncode and not stopped:  # failed, or its time was up
            return
    told["ended"] = process.returncode == 0 or bool(ends[-1] and reached(folder, ends[-1]))
    yield told | read(folder)


def write_recipe(name: str, part: Part, model: Path, asked: argparse.Namespace) -> Path:
    """Recipe and task of a part, as files."""
    task = asked.out / "task.py"
    task.write_text(TASK.replace("PROMPT", "6" if asked.tiny else "100"))
    keys = COMMON | part.keys | (part.tiny if asked.tiny else {})
    keys |= {"name": name, "model.path": str(model), "task.path": str(task)}
    if asked.tiny:
        keys |= {"model.device": "cpu", "model.dtype": "bfloat16"}
    tree: dict[str, Any] = {}
    for place, value in keys.items():
        *above, last = place.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
    path = asked.out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def doctor(path: Path) -> dict[str, float]:
    """GiB by part, as `sps doctor` counts them."""
    from sps.commands.doctor import shape_of
    from sps.commands.estimate import GIB, needs
    from sps.config.load import load_recipe

    recipe = load_recipe(path)
    shape = shape_of(str(recipe.model.path))
    assert shape is not None
    found = needs(recipe, shape, prompt=100)
    parts = {**found.parts, "in all": found.total, "host": found.host}
    return {part: round(size / GIB, 3) for part, size in parts.items()}


def reached(folder: Path, end: tuple[str, int]) -> bool:
    """Whether a record of this kind and step is there: of an IRL phase, the one at its end."""
    kind, step = end
    records = read_records(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    if kind == "irl":
        return any(r["kind"] == "meter" and r["of"] == kind and r["step"] == step for r in records)
    return any(r["kind"] == kind and r["step"] == step for r in records)


def used_gib() -> float:
    """Of the whole GPU, by the driver."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
        return float(done.stdout.split()[0]) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0.0


def sps(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """This module in a process of its own."""
    command = [sys.executable, "-m", "bench.gpu_7b", *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(__file__).parents[1])


def child(arguments: list[str]) -> None:
    """`model FOLDER SHAPE` makes a model; `train RECIPE OUT GIB` runs it within so much memory."""
    what, first, second, *more = arguments
    if what == "model":
        return make_model(Path(first), json.loads(second))
    import torch

    if float(more[0]) and torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory / 2**30
        torch.cuda.set_per_process_memory_fraction(float(more[0]) / whole)
    from sps.cli import main as cli

    sys.argv = ["sps", "train", first, "--out", second, "--resume"]
    cli()
    return None


def make_model(folder: Path, shape: dict[str, Any]) -> None:
    """Random weights in bf16, and a tokenizer of one word a token, which transformers reads as it
    is where the model is a Llama: it has Qwen's sizes without the few biases of its projections."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sps.policy.embedded import make_tokenizer

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM._from_config(LlamaConfig(**shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = [f"t{i}" for i in range(1, shape["vocab_size"] - 9)]
    make_tokenizer([*words, "."]).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
