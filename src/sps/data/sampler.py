"""The order in which training problems come up: a new seeded shuffle every pass."""

from __future__ import annotations

import numpy as np


class Sampler:
    """`cursor` is all the state there is: problems handed out since the start."""

    def __init__(self, size: int, seed: int, cursor: int = 0):
        self.size, self.seed, self.cursor = size, seed, cursor
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def take(self, count: int) -> list[int]:
        """The next positions; every pass over the data holds each exactly once."""
        out = []
        for _ in range(count):
            epoch, at = divmod(self.cursor, self.size)
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            out.append(int(self._order[at]))
            self.cursor += 1
        return out
