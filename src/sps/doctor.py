"""What is installed, what a recipe needs, and what would fail: before anything is downloaded.

The arithmetic is for one process on one GPU. Its constants come from two measured runs
(docs/results.md): bytes of activations a token and layer, the latency of a decode step's layer, and
the share of the peak rate that the update reaches.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from sps.config import Recipe
from sps.errors import UserError

GIB = 2**30
EXTRAS = {
    "gguf": "gguf", "datasets": "hub", "peft": "lora", "reasoning_gym": "gym", "kaleido": "plots",
    "vllm": "vllm",
}  # fmt: skip
# layers, hidden, heads, key/value heads, width of a head, feed-forward, vocabulary, tied
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": (28, 1536, 12, 2, 128, 8960, 151936, True),
    "Qwen/Qwen2.5-Math-7B": (28, 3584, 28, 4, 128, 18944, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (28, 1536, 12, 2, 128, 8960, 151936, False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (30, 576, 9, 3, 64, 1536, 49152, True),
}
_PROMPT = 200  # tokens of a prompt, where the recipe does not tell
_HIDDEN, _FF = 21.3, 5.8  # bytes of activations a token and layer, by hidden and feed-forward size
_LAYER = 45e-6  # seconds of a decode step's layer, at the least
_BANDWIDTH, _RATE, _REACHED = 4.26e12, 990e12, 0.30  # of an H200: bytes/s, FLOP/s, share reached


@dataclass(frozen=True)
class Shape:
    """What memory and time depend on."""

    layers: int
    hidden: int
    heads: int
    shared: int
    width: int
    ff: int
    vocabulary: int
    tied: bool

    @property
    def weights(self) -> int:
        """Parameters of a Llama-like decoder of this shape."""
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.shared)
        layer = attention + 3 * self.hidden * self.ff + 2 * self.hidden
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bf16."""
        return self.layers * self.shared * self.width * 2 * 2


@dataclass(frozen=True)
class Needs:
    """Bytes on the GPU and seconds a step."""

    parts: dict[str, float]
    rollouts: float
    update: float

    @property
    def total(self) -> float:
        """All parts: none is given back while another is needed."""
        return sum(self.parts.values())


def needs(recipe: Recipe, shape: Shape, prompt: int = _PROMPT) -> Needs:
    """Memory and time of an RL step in bf16 on one GPU."""
    rollout, count = recipe.rollout, shape.weights
    rows = rollout.prompts * rollout.n * recipe.rl.algorithm.steps_per_generation
    at_once = min(rows, rollout.max_rows)
    length = prompt + rollout.max_new_tokens
    trained = count if recipe.model.lora is None else 0
    tokens = min(recipe.rl.micro_tokens, rows * length)
    layer = tokens * (_HIDDEN * shape.hidden + _FF * shape.ff)
    kept = tokens * 4 * shape.hidden * shape.layers + layer
    activations = kept if recipe.model.checkpointing else layer * shape.layers
    parts = {
        "weights, float32": 4 * count,
        "gradients": 4 * trained,
        "optimizer": 8 * trained,
        "the engine's bf16 copy": 2 * count,
        "reference policy": 4 * count if recipe.rl.algorithm.beta > 0 else 0,
        "activations": activations,
        "output layer": 2 * 2**29 + 6 * shape.vocabulary * shape.hidden,
        "cache of the rollouts": at_once * length * shape.cache_bytes,
    }
    step = (
        shape.layers * _LAYER + (2 * count + at_once * length / 2 * shape.cache_bytes) / _BANDWIDTH
    )
    waves = -(-rows // at_once)
    flops = (8 if recipe.model.checkpointing else 6) * count * rows * length
    share = recipe.rl.algorithm.steps_per_generation
    return Needs(
        {name: float(size) for name, size in parts.items() if size},
        waves * rollout.max_new_tokens * step / share,
        flops / (_RATE * _REACHED) / share,
    )


def shape_of(path: str) -> Shape | None:
    """From a folder's config.json, or of a known model; None for others: nothing is fetched."""
    if path in SHAPES:
        return Shape(*SHAPES[path])
    if not (Path(path) / "config.json").exists():
        return None
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    heads = config.num_attention_heads
    return Shape(
        config.num_hidden_layers,
        config.hidden_size,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        config.intermediate_size,
        config.vocab_size,
        bool(config.tie_word_embeddings),
    )


def environment() -> list[str]:
    """What this machine has, and which extras are missing."""
    import torch

    lines = [
        f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    ]
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        lines.append(f"{count} GPU: {card.name}, {card.total_memory / GIB:.0f} GiB")
        if importlib.util.find_spec("triton") is None:
            lines.append(
                "triton is missing: the CUDA engine needs it; it comes with torch on Linux"
            )
    else:
        lines.append("no GPU: the embedded policy and small models run; others are slow")
    lines.append(f"{shutil.disk_usage('.').free / GIB:.0f} GiB of disk free here")
    for module, extra in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            lines.append(f"not installed: {module}; for it: pip install 'sps[{extra}]'")
    return lines


def examine(recipe: Recipe) -> list[str]:
    """What the recipe needs, and what to change where it cannot work."""
    if recipe.model.path is None:
        return ["the embedded policy: any machine will do"]
    shape = shape_of(recipe.model.path)
    if shape is None:
        text = (
            f"{recipe.model.path}: its shape is not known here; download it first for an estimate"
        )
        return [text, *_data(recipe)]
    found = needs(recipe, shape)
    lines = [f"{recipe.model.path}: {shape.weights / 1e9:.2f} billion weights; on one GPU in bf16:"]
    lines += [f"  {size / GIB:7.1f} GiB  {name}" for name, size in found.parts.items()]
    lines.append(f"  {found.total / GIB:7.1f} GiB  in all")
    seconds = found.rollouts + found.update
    lines.append(
        f"a step on an H200: {seconds:.2f} s (rollouts {found.rollouts:.2f}, update "
        f"{found.update:.2f}); {recipe.rl.steps} steps: {recipe.rl.steps * seconds / 3600:.1f} h"
    )
    return [*lines, *_advice(recipe, found), *_data(recipe)]


def _advice(recipe: Recipe, found: Needs) -> list[str]:
    import torch

    memory = 0
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    said = []
    if recipe.model.dtype != "bfloat16":
        said.append("model.dtype is float32: set bfloat16 on a GPU")
    if memory and found.total > 0.95 * memory:
        cache, work = found.parts.get("cache of the rollouts", 0), found.parts["activations"]
        if work > cache and not recipe.model.checkpointing:
            fix = "set model.checkpointing: true, or a smaller rl.micro_tokens"
        else:
            fix = "set a smaller rollout.max_rows, rl.micro_tokens, or model.lora"
        said.append(f"does not fit into {memory / GIB:.0f} GiB: {fix}")
    if recipe.irl.steps and recipe.irl.lr < 1e-8:
        said.append(f"irl.lr {recipe.irl.lr:g} will not move the policy; the meter will say so")
    return said


def _data(recipe: Recipe) -> list[str]:
    data = getattr(recipe.task, "data", None)
    if data is None or Path(data).exists():
        return []
    if Path(data).suffix:
        raise UserError(f"task.data: there is no file {data}")
    return [f"data: {data}, from the hub at the start of the run"]
