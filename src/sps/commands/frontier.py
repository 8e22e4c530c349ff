"""The frontier of a comparison: what its results hold of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sps.algo.frontier import Gap
from sps.diagnose.frontier import validation_paths
from sps.diagnose.read import RunFolder, read_run
from sps.reporting.figures_frontier import gap_sentence
from sps.reporting.style import spelled


def frontier_record(trained: Iterable[tuple[str, Path]]) -> dict[str, Any] | None:
    """Of methods by the folders of their runs, in order; None where none was validated."""
    runs: dict[str, list[RunFolder]] = {}
    for method, folder in trained:
        runs.setdefault(method, []).append(read_run(folder))
    paths = validation_paths(runs)
    return paths.record(paths.compare()) if paths else None


def frontier_lines(found: dict[str, Any]) -> list[str]:
    """A table of the methods, and their verdicts, for a terminal."""
    k, base, (low, high) = found["k"], found["base"]["point"][0], found["range"]
    names = {name: spelled(name) for name in found["methods"]}
    wide = max(map(len, names.values()))
    lines = [
        f"the frontier, on {found['questions']} validation questions:",
        f"  {'':{wide}}  largest Pass@1  without loss of Pass@{k}  mean Pass@{k} at Pass@1 "
        f"{100 * low:.1f} to {100 * high:.1f}",
    ]
    for name, one in found["methods"].items():
        free = _cell([base + value for value in one["free_gain"]])
        lines.append(
            f"  {names[name]:{wide}} {100 * one['reach']:15.1f}  {free:>{21 + len(str(k))}}  "
            f"{_cell(one['area'])}"
        )
    for record in found["gaps"]:
        gap = Gap(**record)
        shown = replace(gap, name=names[gap.name], minus=names[gap.minus])
        lines.append(f"  {gap_sentence(shown, k)}")
    if len(found["gaps"]) > 1:
        lines.append(f"  The {len(found['gaps'])} intervals hold at the same time.")
    return lines + [f"  Left out: {text}" for text in found["left_out"]]


def _cell(triple: list[float]) -> str:
    mean, low, high = (f"{100 * value:.1f}" for value in triple)
    return f"{mean} [{low}, {high}]"
