"""Which problems a step draws: `rl.sampling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sps.phases.run import Run
from sps.store.difficulty import COLUMNS, Difficulty
from sps.types import Group, Metrics, Problem


def make_difficulty(run: Run) -> Difficulty | None:
    """What a run knows of its problems as of the step it starts from; None: it draws uniformly."""
    settings = run.recipe.rl.sampling
    if settings.by == "uniform":
        return None
    difficulty = Difficulty([problem.id for problem in run.train], settings.floor)
    if run.start:
        difficulty.read(run.ranks.broadcast(lambda: run.store.read(1, run.start, COLUMNS)))
    return difficulty


def next_problems(run: Run, count: int, drawn: Sequence[Group]) -> list[Problem]:
    """The next problems to draw for; none again that this step drew already, if others are left."""
    weight_N = None
    if run.difficulty is not None:
        weight_N = run.difficulty.weight_N
        weight_N[[run.difficulty.place[group[0].problem_id] for group in drawn]] = 0.0
    return [run.train[i] for i in run.sampler.take(count, weight_N)]


def sampling_metrics(run: Run, drawn: Sequence[Group]) -> Metrics:
    """Share of the groups of a step that teach nothing, and what is known of all problems now."""
    if run.difficulty is None:
        return {}
    dull = float(np.mean([not disagrees(group) for group in drawn]))
    return {"sampling/dull": dull, **run.difficulty.metrics(run.sampler.source_N)}


def disagrees(group: Group) -> bool:
    """Some right, some wrong: there is something to learn from the comparison."""
    return len({rollout.verdict.reward for rollout in group}) > 1
