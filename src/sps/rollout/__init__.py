"""Rollout engines: token ids in, sampled token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from sps.types import Completion, Request, Sampling


class RolloutEngine(Protocol):
    """Draws completions from the policy it was last given."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request, each once, as they finish and in any order."""
        ...

    def load_weights(self, model: Any) -> None:
        """Sample from these weights from now on."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...
