"""Runs of which only the counts of their validations are left, in the file of a comparison or as
lines of one run each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sps.algo.passk import Counts
from sps.diagnose.frontier import MIXED, TEMPERED_BASE
from sps.diagnose.read import Evaluation, RunFolder
from sps.errors import UserError
from sps.run.folder import TEMPERED
from sps.run.reading import read_json, read_text

Recorded = dict[str, list[RunFolder]]  # of each method, one a seed
Point = int | str  # of a path (diagnose/frontier.py)
Heats = Mapping[int, Mapping[str, Sequence[int]]]  # right samples by step and temperature
Means = dict[int, dict[int, float]]  # Pass@k by step and k
_MOST = 10**6  # samples a question
# Of a file that is JSON but not what it should be.
_WRONG = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


def read_results(path: Path) -> dict[str, Any]:
    """The file that a comparison leaves."""
    try:
        results = read_json(path)
        if isinstance(results.get("methods"), dict):
            return results
        why = "it has no `methods`"
    except (OSError, ValueError, AttributeError) as error:
        why = str(error)
    raise UserError(f"{path}: no results of sps compare ({why}); give its results.json")


def compared_runs(path: Path, results: Mapping[str, Any]) -> Recorded:
    """The validated runs of a comparison, from the counts in its `frontier`."""
    found = results.get("frontier")
    if not found:
        return {}
    try:
        n, base = int(found["k"]), _numbers(found["base"]["correct"])
        own = float(found.get("temperature", 1.0))
        paths = {name: _seeds(one) for name, one in found["methods"].items()}
        bases = paths.pop(TEMPERED_BASE, [])
        return {
            name: [
                _run(path, name, n, {0: base} | seed, _heats(seed, bases[i] if bases else {}), own)
                for i, seed in enumerate(seeds)
            ]
            for name, seeds in paths.items()
        }
    except _WRONG as error:
        raise UserError(f"{path}: its `frontier` cannot be read ({error!r})") from None


def _seeds(one: Mapping[str, Any]) -> list[dict[Point, list[int]]]:
    """Right samples at each point of a method's path, by seed."""
    counts = ([_numbers(line) for line in of_seeds] for of_seeds in one["correct"])
    return [dict(zip(one["steps"], seed, strict=True)) for seed in zip(*counts, strict=True)]


def _heats(seed: Mapping[Point, list[int]], base: Mapping[Point, list[int]]) -> Heats:
    """What stands at other temperatures: of the last step, and of the base."""
    last = max((p for p in seed if isinstance(p, int)), default=0)
    return {
        step: {p[2:]: counts for p, counts in own.items() if isinstance(p, str) and p != MIXED}
        for step, own in ((last, seed), (0, base))
    }


def compared_counts(scores: Mapping[str, Any]) -> list[Counts]:
    """Right samples of each test question of a method, by seed; none where they were not kept."""
    try:
        n = int(scores["n"])
        return [(_checked(_numbers(line), n), n) for line in scores.get("correct", ())]
    except _WRONG:
        return []


def compared_means(results: Mapping[str, Any], method: str) -> Means:
    """Pass@k of a method's validations, where a file has `validation`: means without counts."""
    try:
        steps = results.get("validation", {}).get(method, {})
        return {
            int(step): {int(k): float(value[0]) for k, value in curve.items()}
            for step, curve in steps.items()
        }
    except _WRONG:
        return {}


def listed_runs(path: Path) -> Recorded:
    """The runs of a file with one line each: method, seed, n, and `right` by step, the right
    samples of each question; also `tempered`, by step and temperature, and the `temperature` of the
    others. Of a run that is there twice, the line with more steps counts."""
    found: dict[tuple[str, int], RunFolder] = {}
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    for i, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            key = str(told["method"]), int(told["seed"])
            steps: dict[Point, Any] = {int(s): counts for s, counts in told["right"].items()}
            heats = {int(s): own for s, own in told.get("tempered", {}).items()}
            ordered, own = dict(sorted(steps.items())), float(told.get("temperature", 1.0))
            run = _run(path, key[0], int(told.get("n", 0)), ordered, heats, own)
        except _WRONG as error:
            raise UserError(
                f"{path}, line {i}: no run's results ({error!r}); a line has method, seed, n, and "
                "`right`, the right samples of each question by step"
            ) from None
        if key not in found or _validations(run) >= _validations(found[key]):
            found[key] = run
    if not found:
        raise UserError(f"{path}: holds no line")
    methods = sorted({method for method, _ in found})
    return {m: [found[key] for key in sorted(found) if key[0] == m] for m in methods}


def _validations(run: RunFolder) -> int:
    return len(run.split("validation"))


def _run(
    path: Path,
    name: str,
    n: int,
    steps: Mapping[Point, Sequence[int]],
    heats: Heats,
    temperature: float,
) -> RunFolder:
    validated = []

    def add(split: str, step: int | None, counts: Sequence[int]) -> None:
        known, tail = _checked(counts, n), "" if step is None else f"-{step:06d}"
        validated.append(Evaluation(f"{split}{tail}", split, step, n, known, {}))

    for point, counts in steps.items():
        if point == MIXED:
            add(MIXED, None, counts)
        elif not str(point).startswith("T="):
            add("validation", int(point), counts)
    for step, own in heats.items():
        for heat, counts in own.items():
            add(f"{TEMPERED}{float(heat):g}", step, counts)
    recipe = {} if temperature == 1 else {"evaluation": {"temperature": temperature}}
    return RunFolder(path / name, name, recipe=recipe, evaluations=validated)


def _numbers(line: str) -> list[int]:
    return [int(count) for count in line.split()]


def _checked(counts: Sequence[int], n: int) -> dict[str, int]:
    """Right samples by question, which is known by its place."""
    if not 1 <= n <= _MOST:
        raise ValueError(f"n = {n} samples a question")
    if not counts or not all(isinstance(c, int) and 0 <= c <= n for c in counts):
        raise ValueError(f"right samples of a question are not from 0 to n = {n}")
    return {str(i): count for i, count in enumerate(counts)}
