"""An engine without a model, for tests of a task or a loop: scripted answers, or random tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sps.types import Completion, Request, Sampling

# Token ids of one sample of a request, the end token included; the sample's number comes second.
Script = Callable[[Request, int], Sequence[int]]


class FakeEngine:
    """Keeps to what RolloutEngine promises.

    With a script the answers are certain: log-probabilities of 0. Without one it is a policy to
    which all tokens of the vocabulary are equally likely, ends included.
    """

    def __init__(
        self,
        vocabulary: int,
        eos_ids: Sequence[int],
        script: Script | None = None,
        max_rows: int = 2048,
    ):
        self.vocabulary, self.eos_ids, self.script = vocabulary, frozenset(eos_ids), script
        self.max_rows = max_rows

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request, in their order."""
        logprob = 0.0 if self.script else -math.log(self.vocabulary)
        for request in requests:
            for sample in request.samples:
                ids = self._ids(request, sample, sampling)
                finished = ids[-1] in self.eos_ids
                logprob_T = np.full(len(ids), logprob, dtype=np.float32)
                yield Completion(
                    request.index, sample, np.array(ids, dtype=np.int32), logprob_T, finished
                )

    def load_weights(self, model: Any) -> None:
        """There are none."""

    def shrink(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def _ids(self, request: Request, sample: int, sampling: Sampling) -> list[int]:
        if self.script:
            return list(self.script(request, sample))[: sampling.max_new_tokens]
        kept = 1 if sampling.temperature == 0 else sampling.top_k or self.vocabulary
        kept = math.ceil(min(kept, self.vocabulary) * sampling.top_p)
        rng = random.Random(f"{sampling.seed} {request.index} {sample} {request.prompt_ids}")
        ids: list[int] = []
        while len(ids) < sampling.max_new_tokens and not (ids and ids[-1] in self.eos_ids):
            ids.append(rng.randrange(kept))
        return ids
