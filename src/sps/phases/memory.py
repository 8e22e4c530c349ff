"""Memory: beside the RL loss of a step, a forward KL towards right rollouts of the whole run.

It is the forward KL of the IRL phase with other rollouts at another time: right ones, one for each
distinct solution of the problems in the batch, in every RL step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sps.algo.irl import forward_kl, irl_weight
from sps.config.irl import MemoryConfig
from sps.phases.run import Run
from sps.policy.logprobs import Rows
from sps.store.memory import Memory, Remembered
from sps.types import Group, Metrics

_COLUMNS = ["step", "group", "sample", "problem_id", "prompt_ids", "ids", "mean_logprob"]


def make_memory(run: Run) -> Memory | None:
    """The memory of a run as of the step it starts from; None where the recipe has none."""
    settings = run.recipe.irl.memory
    if not settings.weight:
        return None
    problems = {problem.id: problem for problem in run.train}

    def mode_of(problem_id: str, ids: np.ndarray) -> str:
        text = run.policy.decode(ids)
        return run.task.mode(problems[problem_id], text) or text

    memory = Memory(mode_of, settings.distinct)
    if run.start:
        memory.read(run.ranks.broadcast(lambda: run.store.right(run.start, _COLUMNS)))
    return memory


@dataclass(frozen=True)
class Recalled:
    """What a step recalls, and the weight of each token of it in the loss."""

    rollouts: list[Remembered]
    weight_B: Tensor

    def loss(self, rows: Rows, new_BT: Tensor, entropy_BT: Tensor) -> tuple[Tensor, dict]:
        """The forward KL of some rows, and its sums."""
        weight_B = self.weight_B[rows.which_B].to(new_BT.device)
        nll = -torch.where(rows.mask_BT, new_BT, 0.0).sum()
        sums = {"memory_nll": nll, "memory_tokens": rows.mask_BT.sum(), "entropy": nll * 0}
        return forward_kl(new_BT, weight_B, rows.mask_BT), sums


def recall(run: Run, step: int, groups: Sequence[Group]) -> Recalled:
    """What a step learns from besides its own groups; nothing where there is no memory."""
    settings = run.recipe.irl.memory
    found: list[Remembered] = []
    if run.memory is not None:
        # Seeded by the step, without state: a resumed run recalls what an uninterrupted one does.
        rng = np.random.default_rng([run.recipe.seed, 104729, step])
        asked = dict.fromkeys(r.problem_id for group in groups for r in group)
        tokens = sum(len(r.ids) for group in groups for r in group)
        found = choose(run.memory, settings, list(asked), step, int(settings.share * tokens), rng)
    length_B = torch.tensor([len(r.ids) for r in found])
    return Recalled(found, settings.weight * irl_weight(length_B, settings.reduce))


def choose(
    memory: Memory,
    settings: MemoryConfig,
    problems: list[str],
    step: int,
    tokens: int,
    rng: np.random.Generator,
) -> list[Remembered]:
    """At most `per_problem` rollouts of each problem and `tokens` in all; the solutions of a
    problem are equally likely to be chosen."""
    if settings.problems == "all":
        problems = [sorted(memory.of)[i] for i in rng.permutation(len(memory.of))]
    found: list[list[Remembered]] = []
    for problem in problems:
        known = [
            r
            for r in memory.of_problem(problem)
            if not settings.age or step - r.step < settings.age
        ]
        known.sort(key=lambda r: r.mean_logprob)
        known = known[: int(np.ceil(settings.quantile * len(known)))]
        found.append([known[i] for i in rng.permutation(len(known))[: settings.per_problem]])
    return _within(found, tokens)


def _within(of_problem: list[list[Remembered]], tokens: int) -> list[Remembered]:
    """One of each problem in turn, until the tokens are used up."""
    taken: list[Remembered] = []
    for turn in range(max(map(len, of_problem), default=0)):
        for known in of_problem:
            if turn < len(known) and len(known[turn].ids) <= tokens:
                taken.append(known[turn])
                tokens -= len(known[turn].ids)
    return taken


def memory_metrics(memory: Memory | None, recalled: Recalled, sums: dict[str, float]) -> Metrics:
    """What was recalled, how likely it is now, and its share of the tokens that are learnt from."""
    if memory is None:
        return {}
    tokens = sums.get("memory_tokens", 0.0)
    share = tokens / max(1.0, tokens + sums.get("tokens", 0.0))
    return {
        "memory/size": len(memory),
        "memory/recalled": len(recalled.rollouts),
        "memory/problems": len({r.problem_id for r in recalled.rollouts}),
        "memory/tokens": tokens,
        "memory/share": share,
        "memory/nll": sums.get("memory_nll", 0.0) / max(1.0, tokens),
    }
