"""What a sequence may go on with: what followed the same few tokens before, in it or in its group.

A guess costs nothing but the time to check it: it is kept only if it is what is drawn. Nothing here
needs a GPU or triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIZES = (4, 3, 2)  # tokens that must be the same, the longest first
_RECENT = 16  # times that count, of those that the same tokens were followed by something
_PRIME = 0x9E3779B1


class Group:
    """Texts of one problem, and what follows each few tokens of them."""

    def __init__(self, prompt: Sequence[int]):
        self.texts: list[list[int]] = []
        self.after: dict[int, list[int]] = {}
        self._index(np.asarray(prompt, dtype=np.int64))
        self.prompt = list(prompt)[-max(SIZES) :]

    def add(self, ids: np.ndarray) -> int:
        """A text, whose number is returned."""
        text = [*self.prompt, *ids.tolist()]
        self._index(np.array(text))
        self.texts.append(text)
        return len(self.texts) - 1

    def _index(self, ids_L: np.ndarray) -> None:
        for size in SIZES:
            count = len(ids_L) - size
            if count > 0:
                key_N = np.full(count, size)
                for at in range(size):
                    key_N = key_N * _PRIME + ids_L[at : at + count]
                for key, follows in zip(key_N.tolist(), ids_L[size:].tolist(), strict=True):
                    self.after.setdefault(key, []).append(follows)

    def extend(self, number: int, ids: list[int]) -> None:
        """A text goes on."""
        text = self.texts[number]
        for token in ids:
            for size in SIZES:
                if len(text) >= size:
                    self.after.setdefault(_key(text[-size:]), []).append(token)
            text.append(token)

    def guess(self, number: int, uniform_D: Sequence[float]) -> list[int]:
        """Up to D tokens that a text may go on with, each found with the number it is drawn with.

        Draws go through the vocabulary in its order until the mass so far exceeds that number. So
        does a guess, through what came before: the two agree more often than the likeliest would.
        """
        recent = self.texts[number][-max(SIZES) :]
        start = len(recent)
        for uniform in uniform_D:
            keys = (_key(recent[-size:]) for size in SIZES if len(recent) >= size)
            known = next((found for key in keys if (found := self.after.get(key))), None)
            if known is None:
                break
            known = sorted(known[-_RECENT:])
            recent.append(known[int(uniform * len(known))])
        return recent[start:]


def _key(ids: list[int]) -> int:
    """As int64 products wrap around; two that are the same by accident cost a wrong guess."""
    key = len(ids)
    for token in ids:
        key = (key * _PRIME + token) & (2**64 - 1)
    return key - 2**64 if key >= 2**63 else key
