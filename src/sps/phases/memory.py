"""Memory: beside the RL loss of a step, a forward KL towards right rollouts of the whole run.

It is the forward KL of the IRL phase with other rollouts at another time: right ones, one for each
distinct solution of the problems in the batch, in every RL step; or all of them, in IRL phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

import numpy as np
import torch
from torch import Tensor

from sps.algo.irl import forward_kl, irl_weight, js_divergence
from sps.config.irl import MemoryConfig
from sps.phases.batch import filled
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.policy.logprobs import Rows
from sps.policy.meter import Probe
from sps.store.memory import Memory, ModeOf, Remembered
from sps.types import Group, Metrics, Rollout

COLUMNS = ["step", "group", "sample", "problem_id", "prompt_ids", "ids", "mean_logprob"]
MEMORY_SECONDS = "seconds/memory"
_MEASURED = 64  # remembered rollouts that the meter reads on


def make_memory(run: Run, last: int | None = None) -> Memory | None:
    """The memory of a run as of a step, by default the one it starts from; None where the recipe
    has none. Of the base's rollouts it is filled in phases/base.py, before the first step."""
    settings, last = run.recipe.irl.memory, run.start if last is None else last
    if not settings.on:
        return None
    if settings.source == "base":
        return Memory(_mode_of(run) if settings.distinct else _each_its_own(), True)
    memory = Memory(_mode_of(run), settings.distinct)
    if last:
        memory.read(run.ranks.broadcast(lambda: run.store.right(last, COLUMNS)))
    return memory


def _mode_of(run: Run) -> ModeOf:
    problems = {problem.id: problem for problem in run.train}

    def mode_of(problem_id: str, ids: np.ndarray) -> str:
        text = run.policy.decode(ids)
        mode = run.task.mode(problems[problem_id], text)
        return text if mode is None else mode

    return mode_of


def _each_its_own() -> ModeOf:
    numbers = count()
    return lambda problem_id, ids: str(next(numbers))


def measured(run: Run, phase: Phase, kind: str) -> Probe | None:
    """Up to 64 of the rollouts that were remembered when an RL or IRL phase began, for the meter.

    A run that is resumed in mid-phase remembers more by now: it reads what it knew then.
    """
    memory = run.memory
    if kind == "rl" and phase.first > phase.start and run.recipe.irl.memory.source == "run":
        memory = make_memory(run, phase.start - 1)
    known = list(memory or ())
    if not known:
        return None
    rng = np.random.default_rng([run.recipe.seed, 15485863, phase.number])
    some = [known[i] for i in np.sort(rng.permutation(len(known))[:_MEASURED])]
    rollouts = [r.prompt_ids for r in some], [r.ids for r in some]
    return Probe(*rollouts, run.policy.pad_id, run.budget.tokens)


@dataclass(frozen=True)
class Recalled:
    """What a step recalls, and the weight of each token of it in the loss."""

    rollouts: list[Remembered]
    weight_B: Tensor
    divergence: str = "forward_kl"

    def loss(self, rows: Rows, new_BT: Tensor) -> tuple[Tensor, dict]:
        """The divergence of some rows, and its sums."""
        weight_B = self.weight_B[rows.which_B].to(new_BT.device)
        nll = -torch.where(rows.mask_BT, new_BT, 0.0).sum()
        sums = {"memory_nll": nll, "memory_tokens": rows.mask_BT.sum()}
        if self.divergence == "forward_kl":
            return forward_kl(new_BT, weight_B, rows.mask_BT), sums
        known = {i: r.logprobs for i, r in enumerate(self.rollouts) if r.logprobs is not None}
        return js_divergence(new_BT, filled(known, rows), weight_B, rows.mask_BT), sums


def recall(run: Run, step: int, groups: Sequence[Group]) -> Recalled:
    """What a step learns from besides its own groups; nothing where there is no memory."""
    settings = run.recipe.irl.memory
    found: list[Remembered] = []
    if run.memory is not None and settings.weight:
        # Seeded by the step, without state: a resumed run recalls what an uninterrupted one does.
        rng = np.random.default_rng([run.recipe.seed, 104729, step])
        asked = dict.fromkeys(r.problem_id for group in groups for r in group)
        tokens = sum(len(r.ids) for group in groups for r in group)
        found = choose(run.memory, settings, list(asked), step, int(settings.share * tokens), rng)
    length_B = torch.tensor([len(r.ids) for r in found])
    weight_B = settings.weight * irl_weight(length_B, settings.reduce)
    return Recalled(found, weight_B, settings.divergence)


def recall_all(run: Run, step: int) -> list[Remembered]:
    """What an IRL phase after a step learns from: everything that is not forgotten by then."""
    assert run.memory is not None
    settings = run.recipe.irl.memory
    of_problems = (_known(run.memory, settings, name, step) for name in sorted(run.memory.of))
    return [rollout for known in of_problems for rollout in known]


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
        known = _known(memory, settings, problem, step)
        found.append([known[i] for i in rng.permutation(len(known))[: settings.per_problem]])
    return _within(found, tokens)


def _known(memory: Memory, settings: MemoryConfig, problem: str, step: int) -> list[Remembered]:
    """The least likely share of what is not too old, of a problem."""
    known = [
        r for r in memory.of_problem(problem) if not settings.age or step - r.step < settings.age
    ]
    known.sort(key=lambda r: r.mean_logprob)
    return known[: int(np.ceil(settings.quantile * len(known)))]


def _within(of_problem: list[list[Remembered]], tokens: int) -> list[Remembered]:
    """One of each problem in turn, until the tokens are used up."""
    taken: list[Remembered] = []
    for turn in zip_longest(*of_problem):
        for rollout in filter(None, turn):
            tokens -= len(rollout.ids)
            if tokens < 0:  # to go on with shorter ones would favour short answers
                return taken
            taken.append(rollout)
    return taken


def memory_metrics(
    run: Run,
    learnt: Sequence[Rollout],
    recalled: Recalled,
    sums: dict[str, float],
    recalling: float,
) -> Metrics:
    """What was recalled, how likely it is now, its share of the tokens that are learnt from, and
    what it cost: `recalling` seconds, and of those of the passes, which it shares with what the
    step itself drew, as much as it has of their tokens."""
    if run.memory is None:
        return {}
    if not run.recipe.irl.memory.weight:
        return {"memory/size": len(run.memory)}
    tokens = sums.get("memory_tokens", 0.0)
    share = tokens / max(1.0, tokens + sums.get("tokens", 0.0))
    passed = [sum(len(r.prompt_ids) + len(r.ids) for r in of) for of in (recalled.rollouts, learnt)]
    seconds = sums.get("seconds", 0.0) * passed[0] / max(1, sum(passed))
    return {
        "memory/size": len(run.memory),
        "memory/recalled": len(recalled.rollouts),
        "memory/problems": len({r.problem_id for r in recalled.rollouts}),
        "memory/tokens": tokens,
        "memory/share": share,
        "memory/nll": sums.get("memory_nll", 0.0) / max(1.0, tokens),
        MEMORY_SECONDS: recalling + seconds,
    }
