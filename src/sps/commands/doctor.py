"""What is installed, what a recipe needs, and what would fail: before anything is downloaded."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sps.commands.estimate import (
    GIB,
    SHAPES,
    Needs,
    Plan,
    Shape,
    evaluations,
    floor,
    needs,
    plan_of,
    remedies,
)
from sps.commands.terminal import say
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.config.shipped import shipped_folder
from sps.config.tasks import check_embedded
from sps.data.config import data_sets
from sps.data.load import READERS
from sps.errors import UserError
from sps.ranks import is_on
from sps.rollout.table import ENGINES
from sps.tasks.table import TASKS

H200 = 139.0  # GiB that torch finds on one: assumed where there is no GPU and none is stated
EXTRAS = {
    "gguf": "gguf", "datasets": "hub", "peft": "lora", "reasoning_gym": "gym",
    "vllm": "vllm", "trackio": "track", "wandb": "track", "tensorboard": "track",
    "trl": "trl", "deepspeed": "deepspeed", "torchao": "8bit",
}  # fmt: skip
_SIDES = {"replicated": [False], "fsdp2": [True], "auto": [False, True]}
_VLLM = ("vLLM's weights", "cache of the rollouts", "vLLM's work")
_PASS = ("gradients", "activations", "gathered layers", "output layer", "messages")


def run_doctor(
    path: Path | None,
    overrides: list[str],
    machine: Machine | None = None,
    sharding: str = "auto",
    engine: str | None = None,
) -> None:
    """This machine, and the recipe if there is one; an error where it cannot fit."""
    if engine is not None and engine not in ENGINES:
        raise UserError(f"--engine: there is none called {engine}; one of {', '.join(ENGINES)}")
    lines = environment()
    if path is None:
        say("\n".join(lines))
        return
    recipe, machine = load_recipe(path, overrides), machine or this_machine()
    changes = [*overrides]
    if engine and engine != recipe.rollout.engine:
        changes.append(f"rollout.engine={engine}")
    asked = shlex.join([str(path), *(word for item in changes for word in ("--set", item))])
    say("\n".join([*lines, *examine(recipe, machine, sharding, engine, asked)]))
    verdict(recipe, machine, sharding, engine)


@dataclass(frozen=True)
class Machine:
    """The GPUs that a recipe is held against."""

    gpus: int
    gib: float  # memory of each
    known: bool  # False: assumed, since there is none here and none was stated


def this_machine(gpus: int | None = None, gib: float | None = None) -> Machine:
    """What is here, unless it is stated."""
    import torch

    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = torch.cuda.get_device_properties(0).total_memory / GIB if here else None
    known = gib is not None or found is not None
    return Machine(gpus or here or 1, gib or found or H200, known)


def shape_of(path: str) -> Shape | None:
    """From a folder's config.json, or of a known model; None for others: nothing is fetched."""
    if path in SHAPES:
        return Shape(*SHAPES[path])
    if not (Path(path) / "config.json").exists():
        return None
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
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
    except Exception:  # damaged, or no Llama-like decoder: loading it will tell
        return None


def environment() -> list[str]:
    """What this machine has, and which extras are missing."""
    import torch

    lines = [
        f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    ]
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        lines.append(f"{count} GPU: {gpu.name}, {gpu.total_memory / GIB:.0f} GiB")
        if importlib.util.find_spec("triton") is None:
            lines.append(
                "triton is missing: the CUDA engine needs it; it comes with torch on Linux"
            )
    else:
        lines.append("no GPU: the embedded policy and small models run; others are slow")
    lines.append(f"{shutil.disk_usage('.').free / GIB:.0f} GiB of disk free here")
    lines.append(f"recipes/ and launch/ are in {shipped_folder()}")
    absent = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if absent:
        extras = ",".join(sorted({EXTRAS[name] for name in absent}))
        lines.append(f"not installed: {', '.join(absent)}; for all: pip install 'sps-rl[{extras}]'")
    return lines


def missing(recipe: Recipe, engine: str | None = None) -> list[str]:
    """Packages that this recipe needs and that are not installed here."""
    task, path = recipe.task, recipe.model.path or ""
    from_hub = not all(_is_file(source.data) for source in data_sets(task))
    tests = bool(getattr(task, "benchmarks", ())) and getattr(task, "data_dir", None) is None
    wanted = {
        **dict.fromkeys(ENGINES[engine or recipe.rollout.engine].needs, True),
        "peft": recipe.model.lora is not None,
        "torchao": 8 in (recipe.rl.optimizer.bits, recipe.irl.optimizer.bits),
        "gguf": recipe.model.gguf is not None or path.endswith(".gguf"),
        "datasets": from_hub or tests,
        **dict.fromkeys(TASKS[task.type].needs, True),
        str(recipe.track): recipe.track is not None,
    }
    names = [name for name, need in wanted.items() if need]
    return [
        f"this recipe needs {name}, which is not installed: pip install 'sps-rl[{EXTRAS[name]}]'"
        for name in names
        if importlib.util.find_spec(name) is None
    ]


def examine(
    recipe: Recipe,
    machine: Machine,
    sharding: str = "auto",
    engine: str | None = None,
    asked: str = "RECIPE",
) -> list[str]:
    """What the recipe needs on these GPUs, which plans fit, and which is advised.

    `asked` is what the advised command has to give `sps train`.
    """
    lines = missing(recipe, engine)
    if recipe.model.path is None:
        own = bool(TASKS[recipe.task.type].embedded)
        return [*lines, *(["the embedded policy: any machine will do"] if own else [])]
    shape = shape_of(recipe.model.path)
    if shape is None:
        gguf = recipe.model.gguf or recipe.model.path.endswith(".gguf")
        why = "is not read from a GGUF file, so there is no estimate"
        if not gguf:
            why = "is not known here; download it first for an estimate"
        return [*lines, f"{recipe.model.path}: its shape {why}", *_doubts(recipe), *_data(recipe)]
    found = _plans(recipe, shape, machine, sharding, engine)
    many = f"{machine.gpus} GPUs" if machine.gpus > 1 else "one GPU"
    assumed = "" if machine.known else ", an H200: there is none here, and --gpu-memory is not set"
    lines.append(
        f"{recipe.model.path}: {shape.weights / 1e9:.2f} billion weights; on {many} of "
        f"{machine.gib:.0f} GiB in bf16{assumed}"
    )
    for plan, need in found:
        lines += _account(recipe, plan, need, machine)
        lines += _share_to_give(recipe, plan, shape, machine)
    advice = _advice(recipe, machine, found, asked)
    return [*lines, *advice, *_doubts(recipe), *_data(recipe)]


def verdict(
    recipe: Recipe, machine: Machine, sharding: str = "auto", engine: str | None = None
) -> None:
    """Raise where the run would be refused, or fits into none of the GPUs; say what would."""
    if recipe.model.path is None:
        check_embedded(recipe.task)
        return
    shape = shape_of(recipe.model.path)
    if shape is None:
        return
    found = _plans(recipe, shape, machine, sharding, engine)
    memory = machine.gib * GIB
    if any(need.fits(memory) for _, need in found):
        return
    plan, need = min(found, key=lambda pair: pair[1].total)
    fixes = " | ".join(remedies(recipe, shape, plan, memory)) or "larger GPUs"
    assumed = "" if machine.known else " (assumed; state others with --gpus and --gpu-memory)"
    raise UserError(
        f"{recipe.model.path} does not fit into {machine.gpus} x {machine.gib:.0f} GiB{assumed}: "
        f"it needs {need.total / GIB:.0f} GiB a GPU ({plan.name}). It would fit with: {fixes}"
    )


def refuse_too_large(recipe: Recipe, memory: float | None = None) -> None:
    """Stop a run whose weights, gradients and optimizer alone exceed the GPU it would start on.

    `memory` in bytes is this GPU's where it is not given; without a GPU nothing is refused.
    """
    if recipe.model.path is None or recipe.model.device == "cpu":
        return
    if memory is None:
        import torch

        if not torch.cuda.is_available():
            return
        memory = torch.cuda.get_device_properties(0).total_memory
    shape = shape_of(recipe.model.path)
    if shape is None:
        return
    divided = is_on("ACCELERATE_USE_FSDP") or is_on("ACCELERATE_USE_DEEPSPEED")
    shards = int(os.environ.get("WORLD_SIZE", "1")) if divided else 1
    least = floor(recipe, shape, shards)
    if least > memory:
        over = f"divided over {shards} GPUs " if shards > 1 else ""
        adapters = "" if recipe.model.lora is not None else ", or train adapters (model.lora: {})"
        if recipe.rl.optimizer.bits > 8 and shards == 1:
            adapters += ", or with moments of 8 bits (rl.optimizer.bits: 8, irl.optimizer.bits: 8)"
        raise UserError(
            f"model.path: {recipe.model.path} cannot be trained here: weights, gradients and "
            f"optimizer {over}take {least / GIB:.0f} GiB, the GPU has {memory / GIB:.0f}. Divide "
            f"them over {'more' if shards > 1 else 'several'} GPUs with accelerate launch "
            f"--config_file launch/fsdp2.yaml{adapters}; `sps doctor` with --gpus says how many"
        )


def _plans(
    recipe: Recipe, shape: Shape, machine: Machine, sharding: str, engine: str | None
) -> list[tuple[Plan, Needs]]:
    """The plans that are asked for and can be run; sharding over one GPU is none."""
    plans = [
        plan_of(recipe, machine.gpus, sharded, engine)
        for sharded in _SIDES[sharding]
        if machine.gpus > 1 or not sharded or sharding == "fsdp2"
    ]
    return [(plan, _takes_its_share(recipe, plan, shape, machine)) for plan in plans]


def _takes_its_share(recipe: Recipe, plan: Plan, shape: Shape, machine: Machine) -> Needs:
    """vLLM takes the whole of rollout.vllm.memory, also where it needs less; a server takes none
    of it here, and one that sleeps gives it back for the update."""
    need = needs(recipe, shape, plan=plan)
    if not plan.apart:
        return need
    settings = getattr(recipe.rollout, plan.engine)
    parts = {name: size for name, size in need.parts.items() if name not in _VLLM}
    taken = max(settings.memory * machine.gib * GIB, _of_vllm(need))
    if settings.mode == "server":
        taken = 0.0
    elif settings.sleep:
        taken = max(0.0, taken - sum(parts.get(name, 0.0) for name in _PASS))
    share = {f"{ENGINES[plan.engine].label}'s share": taken} if taken else {}
    return replace(need, parts=parts | share)


def _of_vllm(need: Needs) -> float:
    return sum(need.parts.get(name, 0.0) for name in _VLLM)


def _share_to_give(recipe: Recipe, plan: Plan, shape: Shape, machine: Machine) -> list[str]:
    """The share of a GPU that vLLM has to be given, where it is given less."""
    settings = getattr(recipe.rollout, plan.engine) if plan.apart else None
    if settings is None or settings.mode == "server":
        return []
    share = math.ceil(100 * _of_vllm(needs(recipe, shape, plan=plan)) / (machine.gib * GIB)) / 100
    if share <= settings.memory:
        return []
    return [f"rollout.{plan.engine}.memory: {share:g} at the least, for weights and rows"]


def _best(found: list[tuple[Plan, Needs]], gib: float) -> tuple[Plan, Needs] | None:
    """The fastest that fits."""
    fitting = [pair for pair in found if pair[1].fits(gib * GIB)]
    return min(fitting, key=lambda pair: pair[1].seconds, default=None)


def _account(recipe: Recipe, plan: Plan, need: Needs, machine: Machine) -> Iterator[str]:
    yield f"{plan.name}:"
    for name, size in need.parts.items():
        yield f"  {size / GIB:7.1f} GiB  {name}"
    fits = "fits" if need.fits(machine.gib * GIB) else "does not fit"
    yield f"  {need.total / GIB:7.1f} GiB  in all: {fits}"
    yield f"  {need.host / GIB:7.1f} GiB  of the host's memory, for what sleeps while a phase runs"
    hours = recipe.rl.steps * need.seconds / 3600
    traffic = f", between GPUs {need.traffic:.2f}" if need.traffic else ""
    yield (
        f"  a step at an H200's rates, answers of full length: {need.seconds:.2f} s (rollouts "
        f"{need.rollouts:.2f}, update {need.update:.2f}{traffic}); {recipe.rl.steps} steps: "
        f"{hours:.1f} h"
    )
    sample = need.rollouts / (recipe.rollout.prompts * recipe.rollout.n)  # seconds of one
    for e in evaluations(recipe):
        hours = e.times * (e.questions or 100) * e.n * sample / 3600
        size = f"{e.questions} questions x " if e.questions else ""
        yield (
            f"  and evaluation on {e.of}: {e.times} x {size}{e.n} samples of up to "
            f"{recipe.rollout.max_new_tokens} tokens: {hours:.1f} h more"
            + ("" if e.questions else " for every 100 questions")
        )


def _advice(
    recipe: Recipe, machine: Machine, found: list[tuple[Plan, Needs]], asked: str
) -> Iterator[str]:
    best = _best(found, machine.gib)
    if machine.gpus > 1 and best:
        file = "fsdp2" if best[0].sharded else "ddp"
        yield (
            f"advised: {best[0].name}: accelerate launch --config_file launch/{file}.yaml "
            f"--num_processes {machine.gpus} -m sps train {asked}"
        )
    drawn = recipe.rollout.prompts * recipe.rl.algorithm.steps_per_generation
    if drawn % machine.gpus:
        yield (
            f"rollout.prompts: {drawn} problems cannot be divided evenly over {machine.gpus} GPUs; "
            f"some wait while others draw. A multiple of {machine.gpus} uses them all"
        )


def _doubts(recipe: Recipe) -> Iterator[str]:
    """Settings that a language model can hardly be meant to have."""
    rollout, rl, irl = recipe.rollout, recipe.rl, recipe.irl
    if recipe.model.dtype == "float32":
        yield "model.dtype is float32, which is several times slower: leave it out, or set bfloat16"
    if rollout.max_new_tokens < 64 and not TASKS[recipe.task.type].embedded:
        long = f"rollout.max_new_tokens is {rollout.max_new_tokens}"
        if "max_new_tokens" in rollout.model_fields_set:
            yield f"{long}: longer answers are cut off"
        else:
            yield (
                f"{long}, the default, which is the Countdown demo's: nearly every answer would be "
                "cut off; set it, for example to 3072"
            )
    if irl.steps and irl.lr is not None:
        if irl.lr < 1e-8:
            yield f"irl.lr {irl.lr:g} will not move the policy; the meter will say so"
        if irl.lr > 10 * rl.lr:
            yield (
                f"irl.lr {irl.lr:g} is more than ten times rl.lr {rl.lr:g}: it may undo what RL "
                "teaches; leave it out, and irl.reach says how far a phase goes"
            )


def _data(recipe: Recipe) -> list[str]:
    read = [source.data for source in data_sets(recipe.task)]
    away = [data for data in read if not Path(data).exists()]
    for data in away:
        if _is_file(data):
            raise UserError(f"task.data: there is no file {data}")
    return [f"data: {data}, from the hub at the start of the run" for data in away]


def _is_file(data: str) -> bool:
    return Path(data).exists() or Path(data).suffix in READERS or data.count("/") != 1
