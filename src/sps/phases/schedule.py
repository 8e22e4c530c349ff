"""Which phase comes when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """RL steps first .. last, and whether an IRL phase follows them."""

    number: int  # from 1
    first: int
    last: int
    irl: bool


def schedule(total: int, every: int, irl_steps: int, done: int = 0) -> Iterator[Phase]:
    """RL phases of `every` steps up to `total`, each followed by IRL if it has steps.

    `done` RL steps are behind us: the phase they are in the middle of is finished first.
    """
    for number, start in enumerate(range(0, total, every), 1):
        last = min(start + every, total)
        if last > done:
            yield Phase(number, max(start, done) + 1, last, irl_steps > 0)
