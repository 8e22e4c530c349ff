"""GPU memory ran out while drawing: half as many rows at once, and draw what is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from sps.errors import RunFailed
from sps.run.gpu import held_by_others
from sps.types import Completion, Request, Sampling

_LOG = logging.getLogger("sps")


class Limited(Protocol):
    """An engine that draws `max_rows` sequences at once."""

    max_rows: int

    def draw(self, requests: list[Request], sampling: Sampling) -> Iterator[Completion]:
        """As `generate`, but may run out of memory."""
        ...

    def shrink(self) -> None:
        """Give back its memory, and take half as much from now on."""
        ...


def draw_all(
    engine: Limited, requests: Sequence[Request], sampling: Sampling
) -> Iterator[Completion]:
    """Every sample of every request, each once."""
    done: set[tuple[int, int]] = set()
    while True:
        left = [
            Request(r.index, r.prompt_ids, tuple(s for s in r.samples if (r.index, s) not in done))
            for r in requests
        ]
        try:
            for completion in engine.draw([r for r in left if r.samples], sampling):
                done.add((completion.index, completion.sample))
                yield completion
            return
        except torch.OutOfMemoryError:
            pass  # with the error goes what the draw that failed still held
        engine.shrink()
        engine.max_rows //= 2
        if engine.max_rows < 1:
            others = held_by_others()
            raise RunFailed(f"not even one sequence fits into the GPU's memory.{others}")
        _LOG.warning("memory ran out; %d sequences are drawn at once now", engine.max_rows)
