"""The frontier of a comparison: what its results hold of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sps.diagnose.frontier import validation_paths
from sps.diagnose.read import RunFolder, read_run


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
    wide = max(len(name) for name in found["methods"])
    lines = [
        f"frontier on {found['questions']} validation questions: Pass@{k} at equal Pass@1",
        f"  {'':{wide}}  Pass@1 up to  without loss of Pass@{k}  mean Pass@{k} from "
        f"{100 * low:.1f} to {100 * high:.1f}",
    ]
    for name, one in found["methods"].items():
        free = _cell([base + value for value in one["free_gain"]])
        lines.append(
            f"  {name:{wide}} {100 * one['reach']:13.1f}  {free:>{21 + len(str(k))}}  "
            f"{_cell(one['area'])}"
        )
    for gap in found["gaps"]:
        lines.append(
            f"  {gap['name']:>{wide}} minus {gap['minus']}: {_cell(gap['mean'], '+')} points, "
            f"{gap['verdict']}"
        )
    if len(found["gaps"]) > 1:
        lines.append(f"  these {len(found['gaps'])} intervals hold at once")
    return lines + [f"  left out: {text}" for text in found["left_out"]]


def _cell(triple: list[float], sign: str = "") -> str:
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in triple)
    return f"{mean} [{low}, {high}]"
