"""Seeded subsets and hold-outs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sps.errors import UserError
from sps.types import Problem


def shuffled(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """A seeded uniform order; its first n are the subset of size n, so subsets are nested."""
    order = np.random.default_rng([seed, len(problems)]).permutation(len(problems))
    return [problems[i] for i in order]


def hold_out(
    problems: Sequence[Problem],
    sizes: dict[str, int],
    train: int | None,
    seed: int,
    source: str = "task.data",
    repeats: int = 0,
) -> dict[str, list[Problem]]:
    """Hold problems out for other splits, from the far end of the seeded order, so that training
    subsets of every size leave the same ones out; then take the training subset."""
    held, names = sum(sizes.values()), ", ".join(f"task.{k}: {v}" for k, v in sizes.items())
    if held + (train or 1) > len(problems):
        without = f", and {repeats} rows that repeat a question and are left out" * bool(repeats)
        raise UserError(
            f"{source} has {len(problems)} problems{without}: too few for task.subset "
            f"({train or 'all'}) and {held} held out ({names}); lower these, or give more rows"
        )
    order = shuffled(problems, seed)
    splits, end = {}, len(order)
    for name, size in sizes.items():
        splits[name], end = order[end - size : end], end - size
    return {"train": order[: train or end], **splits}
