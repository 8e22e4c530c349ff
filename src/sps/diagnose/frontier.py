"""The paths of methods through training, from what their runs were validated with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sps.algo.frontier import Frontier, frontier
from sps.diagnose.alike import other_base, other_questions
from sps.diagnose.read import Evaluation, RunFolder
from sps.run.folder import TEMPERED

Runs = Mapping[str, Sequence[RunFolder]]  # of each method, one a seed
Point = int | str  # an RL step; MIXED; or what `at` calls a sampling temperature
Validated = dict[Point, Evaluation]
MIXED = "mixed"  # after the last step, mixed with the base
TEMPERED_BASE = "base at other temperatures"


def at(temperature: float) -> str:
    """A point of a path: what its end is at another sampling temperature."""
    return f"T={temperature:g}"


@dataclass(frozen=True)
class Paths:
    """Correct samples, out of n, of the same questions and seeds along every method's training."""

    n: int
    questions: list[str]
    base_Q: np.ndarray  # before the first step
    steps: dict[str, list[Point]]  # of each method
    correct: dict[str, np.ndarray]  # [step, seed, question]
    left_out: list[str]  # a sentence for each method without a path, or without a part of it
    temperature: float  # of the points that do not name one

    def compare(self) -> Frontier:
        """Every method against the first."""
        first = next(iter(self.correct))
        return frontier(self.base_Q, self.correct, self.n, first, aside=[TEMPERED_BASE])

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
            "temperature": self.temperature,
            "questions": len(self.questions),
            "base": {"point": list(found.base), "correct": _line(self.base_Q)},
            "range": list(found.range),
            "methods": methods,
            "gaps": [asdict(gap) for gap in found.gaps],
            "left_out": self.left_out,
        }


def validation_paths(runs: Runs) -> Paths | None:
    """Paths of the methods whose runs were all validated before the first step and later on, and of
    the base where it was at other temperatures; None where there is none, or a single sample a
    question."""
    found = {name: _of_seeds(own) for name, own in runs.items() if own}
    first = next((run for of in runs.values() for run in of if 0 in _steps(run)), None)
    if first is None or (base := _steps(first)[0]).n == 1:
        return None
    own = _temperature(first, 1.0)
    odd = {name: _unlike(of, first, own, base) for name, of in runs.items()}
    alike = {name: of for name, of in runs.items() if not odd[name]}
    count = max(len(seeds) for seeds in found.values())
    correct, steps, left_out = {}, {}, []
    for name, seeds in {**found, TEMPERED_BASE: _bases(alike, count)}.items():
        shared = _in_order(set.intersection(*map(set, seeds)) if seeds else set(), own)
        points = [[seed[point] for seed in seeds] for point in shared]
        if name == TEMPERED_BASE and not shared:
            continue
        if len(seeds) < count or not shared:
            left_out.append(f"{name}: not every seed has been validated yet")
        elif odd.get(name):
            left_out.append(f"{name}: {odd[name]}")
        elif any(e.n != base.n or [*e.correct] != [*base.correct] for of in points for e in of):
            left_out.append(
                f"{name}: validated on other questions, or with other samples, than the base"
            )
        else:
            steps[name] = shared
            correct[name] = np.array([[[*e.correct.values()] for e in of] for of in points])
    if not correct.keys() - {TEMPERED_BASE}:
        return None
    left_out += _without_heats(steps)
    left_out += [
        f"{name}: {lost} of {run.folder} was lost, and is no point of its path"
        for name, own in runs.items()
        for run in own
        for lost in run.lost()
    ]
    base_Q = np.array([*base.correct.values()])
    return Paths(base.n, [*base.correct], base_Q, steps, correct, left_out, own)


def _unlike(runs: Sequence[RunFolder], first: RunFolder, own: float, base: Evaluation) -> str:
    """Why these runs' path is none from the first run's base; empty where it is."""
    for run in runs:
        if _temperature(run, own) != own:
            return f"not validated at the base's sampling temperature, {own:g}"
        if why := other_base(run, first) or other_questions(run, first, base.correct):
            return why
    return ""


def _without_heats(steps: Mapping[str, Sequence[Point]]) -> list[str]:
    """A sentence for each method that is compared with others where these are at temperatures and
    it is not."""
    heats = {name: {p for p in own if str(p).startswith("T=")} for name, own in steps.items()}
    every = sorted(set().union(*heats.values()), key=lambda p: -float(str(p)[2:]))
    return [
        f"{name}: its path has no {', '.join(lost)}, as others have: not every run was asked for "
        "that, has ended, and ended with its last step"
        for name, own in heats.items()
        if (lost := [str(p) for p in every if p not in own])
    ]


def _in_order(points: set[Point], own: float) -> list[Point]:
    """Steps; the mix, as from the last step a path goes on to it in a straight line of weights; and
    then temperatures: hotter ones, and back, and colder ones. The base is left out."""
    path: list[Point] = sorted(p for p in points if isinstance(p, int) and p)
    path += [p for p in points if p == MIXED]
    heats = sorted(float(p[2:]) for p in points if isinstance(p, str) and p != MIXED)
    hot, cold = [h for h in heats if h > own], [h for h in reversed(heats) if h < own]
    end = path[-1:] or [0]  # of the base, where it begins
    back = [*map(at, hot[-2::-1]), *end] if hot and cold else []
    return [*path, *map(at, hot), *back, *map(at, cold)]


def _temperature(run: RunFolder, unknown: float) -> float:
    """The one that a run was validated at."""
    told = run.setting("evaluation", "temperature")
    return float(told) if isinstance(told, int | float) else unknown


def _bases(runs: Runs, count: int) -> list[Validated]:
    """The base at other temperatures, which is the same to all methods, in as many seeds as they
    have."""
    for own in runs.values():
        found = [{0: base[0]} | _heats(run, 0) for run in own if 0 in (base := _steps(run))]
        if len(found) == count and all(len(seed) > 1 for seed in found):
            return found
    return []


def _of_seeds(runs: Sequence[RunFolder]) -> list[Validated]:
    """Each run's, without the mix where none of them needed one: `checkpoint.mix: auto`."""
    found = [_validated(run) for run in runs]
    ends = [end for run in runs for end in run.of_kind("done")[-1:]]
    if ends and not any(end.get("mixed", 1) for end in ends):
        for own in found:
            own.pop(MIXED, None)
    return found


def _validated(run: RunFolder) -> Validated:
    steps = _steps(run)
    last = max(steps, default=None)
    # A mix of another step is on no line from the last one. What is recorded has no step: the last.
    mixed = [e for e in run.split(MIXED) if e.step in (None, last)]
    found: Validated = {**steps, **({MIXED: mixed[-1]} if mixed else {})}
    return found | (_heats(run, last) if last else {})


def _steps(run: RunFolder) -> dict[int, Evaluation]:
    return {e.step: e for e in run.split("validation") if e.step is not None}


def _heats(run: RunFolder, step: int) -> Validated:
    """What a step's weights are at other temperatures."""
    found: Validated = {}
    for one in run.evaluations:
        if one.split.startswith(TEMPERED) and one.step == step:
            with suppress(ValueError):  # a name that no run gives
                found[at(float(one.split.removeprefix(TEMPERED)))] = one
    return found


def _line(count_Q: np.ndarray) -> str:
    return " ".join(map(str, count_Q.tolist()))
