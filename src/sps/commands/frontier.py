"""The frontier of a comparison: what its results hold of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sps.algo.frontier import NO_RANGE
from sps.diagnose.frontier import TEMPERED_BASE, validation_paths
from sps.diagnose.read import RunFolder, read_run
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
    names |= {TEMPERED_BASE: "base, other T"} if TEMPERED_BASE in names else {}  # 80 columns
    wide = max(map(len, names.values()))
    lines = [
        f"the frontier, on {found['questions']} validation questions (mean: over Pass@1 from "
        f"{100 * low:.1f} to {100 * high:.1f}):",
        f"  {'':{wide}}  largest Pass@1  without loss of Pass@{k}  mean Pass@{k}",
    ]
    for name, one in found["methods"].items():
        free = _cell([base + value for value in one["free_gain"]])
        lines.append(
            f"  {names[name]:{wide}} {100 * one['reach']:15.1f}  {free:>{21 + len(str(k))}}  "
            f"{_cell(one['area'])}"
        )
    own = found["methods"].get(TEMPERED_BASE)
    if own and own["reach"] < high:
        lines.append("  (the base counts as 0 where it does not reach)")
    rows, apart = [], []
    for gap in found["gaps"]:
        pair = f"{names[gap['name']]:>{wide}} against {names[gap['minus']]}"
        if gap["verdict"] == NO_RANGE:
            apart.append(f"    {pair} {NO_RANGE} of Pass@1")
        else:
            rows.append((pair, *(100 * value for value in gap["mean"]), gap["verdict"]))
    if found["gaps"]:
        lines.append(f"  at equal Pass@1, in points of Pass@{k}:")
        lines += [*(f"    {line}" for line in difference_lines(rows)), *apart]
    if len(rows) > 1:
        lines.append(f"  The {len(rows)} intervals hold at the same time.")
    return lines + [f"  Left out: {text}" for text in found["left_out"]]


def difference_lines(rows: Sequence[tuple[str, float, float, float, str]]) -> list[str]:
    """Differences under each other: of what, the mean, its interval and the verdict."""
    texts = [(what, f"[{low:+.1f}, {high:+.1f}]") for what, _, low, high, _ in rows]
    of, between = (max((len(text[i]) for text in texts), default=0) for i in (0, 1))
    return [
        f"{what:<{of}} {mean:+6.1f} {interval:<{between}}  {verdict}"
        for (what, interval), (_, mean, _, _, verdict) in zip(texts, rows, strict=True)
    ]


def _cell(triple: list[float]) -> str:
    mean, low, high = (f"{100 * value:.1f}" for value in triple)
    return f"{mean} [{low}, {high}]"
