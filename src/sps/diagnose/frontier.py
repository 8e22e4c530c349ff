"""The paths of methods through training, from what their runs were validated with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sps.algo.frontier import Frontier, frontier
from sps.diagnose.read import Evaluation, RunFolder

Runs = Mapping[str, Sequence[RunFolder]]  # of each method, one a seed
Validated = dict[int | str, Evaluation]  # by RL step; MIXED: after the last, mixed with the base
MIXED = "mixed"


@dataclass(frozen=True)
class Paths:
    """Correct samples, out of n, of the same questions and seeds along every method's training."""

    n: int
    questions: list[str]
    base_Q: np.ndarray  # before the first step
    steps: dict[str, list[int | str]]  # of each method
    correct: dict[str, np.ndarray]  # [step, seed, question]
    left_out: list[str]  # a sentence for each method without a path

    def compare(self) -> Frontier:
        """Every method against the first."""
        return frontier(self.base_Q, self.correct, self.n, next(iter(self.correct)))

    def record(self, found: Frontier) -> dict[str, Any]:
        """Plain numbers for a JSON file, the counts among them: what all can be made of again."""
        methods = {
            one.name: {
                "steps": self.steps[one.name],
                **{key: value for key, value in asdict(one).items() if key != "name"},
                "correct": [[_line(run_Q) for run_Q in at] for at in self.correct[one.name]],
            }
            for one in found.standings
        }
        return {
            "split": "validation",
            "k": found.k,
            "questions": len(self.questions),
            "base": {"point": list(found.base), "correct": _line(self.base_Q)},
            "range": list(found.range),
            "methods": methods,
            "gaps": [asdict(gap) for gap in found.gaps],
            "left_out": self.left_out,
        }


def validation_paths(runs: Runs) -> Paths | None:
    """Paths of the methods whose runs were all validated before the first step and later on; None
    where there is none, or a single sample a question."""
    found = {name: _of_seeds(own) for name, own in runs.items() if own}
    base = next((seed[0] for seeds in found.values() for seed in seeds if 0 in seed), None)
    if base is None or base.n == 1:
        return None
    count = max(len(seeds) for seeds in found.values())
    correct, steps, left_out = {}, {}, []
    for name, seeds in found.items():
        shared = _in_order(set.intersection(*map(set, seeds)) - {0})
        own = [[seed[step] for seed in seeds] for step in shared]
        if len(seeds) < count or not shared:
            left_out.append(f"{name}: not every seed has been validated yet")
        elif any(e.n != base.n or [*e.correct] != [*base.correct] for at in own for e in at):
            left_out.append(
                f"{name}: validated on other questions, or with other samples, than the base"
            )
        else:
            steps[name] = shared
            correct[name] = np.array([[[*e.correct.values()] for e in at] for at in own])
    base_Q = np.array([*base.correct.values()])
    return Paths(base.n, [*base.correct], base_Q, steps, correct, left_out) if correct else None


def _in_order(steps: set[int | str]) -> list[int | str]:
    """A mix comes last: from the last step a path goes on to it, in a straight line of weights."""
    return [*sorted(s for s in steps if isinstance(s, int)), *(s for s in steps if s == MIXED)]


def _of_seeds(runs: Sequence[RunFolder]) -> list[Validated]:
    """Each run's, without the mix where none of them needed one: `checkpoint.mix: auto`."""
    found = [_validated(run) for run in runs]
    ends = [end for run in runs for end in run.of_kind("done")[-1:]]
    if ends and not any(end.get("mixed", 1) for end in ends):
        for own in found:
            own.pop(MIXED, None)
    return found


def _validated(run: RunFolder) -> Validated:
    found: Validated = {e.step: e for e in run.split("validation") if e.step is not None}
    last = max((step for step in found if isinstance(step, int)), default=None)
    # A mix of another step is on no line from the last one. What is recorded has no step: the last.
    mixed = [e for e in run.split(MIXED) if e.step in (None, last)]
    return found | ({MIXED: mixed[-1]} if mixed else {})


def _line(count_Q: np.ndarray) -> str:
    return " ".join(map(str, count_Q.tolist()))
