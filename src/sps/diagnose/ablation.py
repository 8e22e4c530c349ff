"""Sampling size: SPS with k of n rollouts kept, from runs that differ in irl.keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sps.diagnose.read import read_run
from sps.run.folder import find_runs


def sampling_sizes(folder: Path, results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method whose runs have IRL steps, by rollouts kept."""
    rows = []
    for name, scores in (results.get("methods") or {}).items():
        runs = find_runs(folder, _glob(name))
        if not runs:
            continue
        run = read_run(runs[0])
        if not run.setting("irl", "steps"):
            continue
        curve = scores.get("pass_at_k") or {}
        rows.append(
            {
                "method": name,
                "keep": run.setting("irl", "keep"),
                "n": run.setting("rollout", "n"),
                "irl_lr": next((r["lr"] for r in run.of_kind("irl") if "lr" in r), None)
                or run.setting("irl", "lr"),
                "pass_at_k": curve,
                "seeds": scores.get("seeds"),
            }
        )
    return sorted(rows, key=lambda r: (r["keep"] or 0, r["method"]))


def _glob(name: str) -> str:
    """The name as a pattern that matches only itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
