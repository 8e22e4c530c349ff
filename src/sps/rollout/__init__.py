"""Rollout engines: token ids in, sampled token ids and their log-probabilities out.

ENGINES in table.py lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from sps.types import Completion, Request, Sampling


class RolloutEngine(Protocol):
    """Draws completions from the policy it was last given."""

    @property
    def max_rows(self) -> int:
        """Sequences drawn at once; fewer than before where memory ran out."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request, each once, as they finish and in any order."""
        ...

    def load_weights(self, model: Any) -> None:
        """Sample from these weights from now on."""
        ...

    def shrink(self) -> None:
        """Training ran out of memory: hold less from now on, if anything can be given back."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...
