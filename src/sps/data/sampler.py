"""The order in which training problems come up: a new seeded shuffle every pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_REPLACING = 32452843  # the stream of random numbers that replace a problem by another


class Sampler:
    """`cursor` is all the state there is: problems handed out since the start."""

    def __init__(
        self, size: int, seed: int, cursor: int = 0, source_N: Sequence[int] | None = None
    ):
        self.size, self.seed, self.cursor = size, seed, cursor
        self.source_N = np.zeros(size, int) if source_N is None else np.asarray(source_N)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def take(self, count: int, weight_N: np.ndarray | None = None) -> list[int]:
        """The next positions; every pass over the data holds each exactly once.

        With weights (0 to 1) some of them are replaced: see `_kept_or_replaced`.
        """
        first, out = self.cursor, []
        for _ in range(count):
            epoch, at = divmod(self.cursor, self.size)
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            out.append(int(self._order[at]))
            self.cursor += 1
        return out if weight_N is None else self._kept_or_replaced(out, weight_N, first)

    def _kept_or_replaced(self, found: list[int], weight_N: np.ndarray, first: int) -> list[int]:
        """Keep each with a probability of its weight, else draw one of the same source by weight.

        So a problem comes up in proportion to its weight within its source, sources keep their
        shares, and none comes up twice unless all others of its source did.
        """
        left_N, out = weight_N.copy(), []
        for cursor, i in enumerate(found, first):
            # Seeded by the place in the order, without state: a resumed run draws the same.
            keep, which = np.random.default_rng([self.seed, _REPLACING, cursor]).random(2)
            if keep >= left_N[i]:
                upto_N = np.where(self.source_N == self.source_N[i], left_N, 0.0).cumsum()
                if upto_N[-1] > 0:
                    i = int(np.searchsorted(upto_N / upto_N[-1], which, side="right"))
            left_N[i] = 0.0
            out.append(i)
        return out
