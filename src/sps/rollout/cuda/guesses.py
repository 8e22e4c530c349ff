"""What a sequence may go on with: what followed the same few tokens before, in it or in its group.

A wrong guess costs the time to check it and nothing else. Nothing here needs a GPU or triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

SIZES = (8, 4, 2, 1)  # tokens that must be the same, the most first


class Group:
    """Texts of one problem, and where each few tokens of them came last."""

    def __init__(self, prompt: Sequence[int]):
        self.texts: list[list[int]] = []
        self.last: dict[tuple[int, ...], tuple[int, int]] = {}  # text, place of what follows
        self.new: list[tuple[int, int]] = []  # texts that went on, and from which place
        self.add(list(prompt))

    def add(self, ids: list[int]) -> int:
        """A text, whose number is returned."""
        self.texts.append([])
        self.extend(len(self.texts) - 1, ids)
        self.look()
        return len(self.texts) - 1

    def extend(self, number: int, ids: list[int]) -> None:
        """A text goes on; guesses come from what is new once it was looked at."""
        self.new.append((number, len(self.texts[number])))
        self.texts[number] += ids

    def look(self) -> None:
        """Through what is new: most of the work, and best done while a step is under way."""
        for number, old in self.new:
            text = self.texts[number]
            for size in SIZES:
                first = max(0, old - size)  # of those that a new token follows
                follows = zip(repeat(number), range(first + size, len(text)), strict=False)
                keys = zip(*(text[first + at :] for at in range(size)), strict=False)
                self.last.update(zip(keys, follows, strict=False))
        self.new.clear()

    def guess(self, number: int, most: int) -> list[int]:
        """Up to so many tokens that a text may go on with."""
        text = self.texts[number]
        for size in SIZES:
            found = self.last.get(tuple(text[-size:]))
            if found:
                return self.texts[found[0]][found[1] : found[1] + most]
        return []
