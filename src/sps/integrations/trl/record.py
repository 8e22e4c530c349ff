"""What TRL draws, as its reward functions see it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Rollout = tuple[np.ndarray, np.ndarray]  # ids of a prompt and of its completion, int32


@dataclass
class Batch:
    """This rank's part of one generation batch. Groups run on over the ranks, in rank order."""

    rollouts: list[Rollout]
    reward_B: np.ndarray  # float32
    likelihood_B: np.ndarray | None = None  # float32; None until on_pre_optimizer_step


def watched(reward: Callable, take: Callable[..., None]) -> Callable:
    """The same reward function; `take` is given its values and what it was given."""
    inner: Any = reward
    while isinstance(inner, functools.partial):
        inner = inner.func

    def now(**given: Any) -> list:
        values = list(reward(**given))
        take(values, **given)
        return values

    async def later(**given: Any) -> list:
        values = list(await reward(**given))
        take(values, **given)
        return values

    waits = any(map(inspect.iscoroutinefunction, (inner, type(inner).__call__)))
    wrapped = later if waits else now
    wrapped.__name__ = getattr(inner, "__name__", type(inner).__name__)  # what TRL logs it as
    return wrapped


def encode(tokenizer: Any, prompts: list, template: dict[str, Any]) -> list[list[int]]:
    """Prompts as TRL encodes them: plain text, or chat messages with the opening of an answer."""
    if isinstance(prompts[0], str):
        return tokenizer(text=prompts)["input_ids"]
    return tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **template
    )["input_ids"]


def columns(rollouts: list[Rollout]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Prompts and completions apart."""
    return [prompt for prompt, _ in rollouts], [completion for _, completion in rollouts]
