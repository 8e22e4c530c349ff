"""Prompts in, texts out: what evaluating needs of an engine, with token ids or without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sps.types import Sampling


@dataclass(frozen=True)
class Ask:
    """One prompt, and which of its samples to draw; (seed, index, sample) decide what is drawn."""

    index: int
    prompt: str | list[dict[str, str]]  # plain text, or chat messages
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """One sampled answer as text."""

    index: int
    sample: int
    text: str
    length: int | None  # tokens; None where an endpoint does not say
    finished: bool  # False: cut off at max_new_tokens
    sum_logprob: float | None  # None where an endpoint does not say


class TextEngine(Protocol):
    """Draws texts."""

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> Iterator[Written]:
        """Every sample of every ask, each once, as they finish and in any order."""
        ...

    def close(self) -> None:
        """Give back connections, processes and memory."""
        ...
