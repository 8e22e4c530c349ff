"""TRL's settings and model: what cannot work is refused, and modes and gradients are put back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.state import AcceleratorState
from transformers import ProcessorMixin

from sps.config.irl import IRL
from sps.errors import UserError


def check(settings: IRL, args: Any, processing_class: Any) -> None:
    """Refuse settings of TRL's under which the callback cannot work."""
    kind = AcceleratorState().distributed_type.value
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
        raise UserError(
            f"SPSCallback: {kind} divides the weights or keeps its own copy of them, and the "
            "callback needs them whole; launch with DDP, or train with SPS itself: accelerate "
            "launch --config_file launch/fsdp2.yaml -m sps train"
        )
    if settings.steps and settings.lr is None and not args.learning_rate:
        raise UserError("SPSCallback: lr is missing, and reach is relative to learning_rate, 0")
    if args.fp16:
        raise UserError("SPSCallback: fp16 would need a second loss scaler; set bf16=True instead")
    if isinstance(processing_class, ProcessorMixin):
        raise UserError("SPSCallback: models that see images are not supported")
    if settings.steps and settings.keep > args.num_generations:
        raise UserError(
            f"SPSCallback: keep ({settings.keep}) is above num_generations "
            f"({args.num_generations}): a group has no more rollouts than that"
        )
    lasts = args.steps_per_generation * args.num_iterations
    if settings.steps and settings.every * args.gradient_accumulation_steps % lasts:
        whole = lasts // math.gcd(lasts, args.gradient_accumulation_steps)
        raise UserError(
            f"SPSCallback: every={settings.every} ends a phase with rollouts that TRL has yet to "
            f"learn from; it draws new ones every {whole} optimizer steps: use a multiple of that"
        )


def plain(model: Any) -> Any:
    """The causal language model itself, with any adapters in its layers."""
    if hasattr(model, "get_base_model"):
        if model.active_peft_config.is_prompt_learning:
            raise UserError("SPSCallback: of PEFT's methods, those that learn prompts do not work")
        model = model.get_base_model()
    if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        raise UserError("SPSCallback: the weights are divided over devices; it needs them whole")
    return model


@contextmanager
def calm(model: Any, recompute: bool = False) -> Iterator[None]:
    """Without dropout, hence without drawing random numbers; modes are put back afterwards.

    Layers that compute activations twice do so in training mode alone: `recompute` sets it for
    them, and not for what is in them.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = recompute and getattr(module, "gradient_checkpointing", False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def gradients_aside(model: Any) -> Iterator[None]:
    """TRL has none left at the end of a step; whoever else put some there gets them back."""
    held = [(weight, weight.grad) for weight in model.parameters()]
    for weight, _ in held:
        weight.grad = None
    try:
        yield
    finally:
        for weight, grad in held:
            weight.grad = grad
