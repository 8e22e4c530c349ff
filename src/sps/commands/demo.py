"""`sps demo`: GRPO against SPS on Countdown, with nothing to download."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from sps.commands.compare import run_compare
from sps.commands.terminal import console
from sps.run.folder import LOCK, RESULTS
from sps.run.lock import hold

_QUICK = [
    "rl.steps=30",
    "irl.every=10",
    "evaluation.n=32",
    "evaluation.every=0",
    "checkpoint.every=10",
    "task.test=60",
]


def run_demo(out: Path | None, seeds: int, quick: bool, again: bool) -> None:
    """Base, GRPO, SPS, SPS at the paper's IRL learning rate, early-stopped and hotter GRPO."""
    out = out or Path("runs") / ("demo-quick" if quick else "demo")
    if again and (out / RESULTS).exists():
        _clear(out)
    names = ["countdown_grpo.yaml", "countdown_sps.yaml", "countdown_sps_paper.yaml"]
    recipes = [recipes_folder() / "demo" / name for name in names]
    early, hot = ("10,20", "1.5") if quick else ("100,200", "1.2")
    console.print(_purpose(quick))
    run_compare(recipes, 1 if quick else seeds, out, early, hot, 0, _QUICK if quick else [])


def _clear(out: Path) -> None:
    """Remove what a folder holds, unless a job is using it."""
    hold(out, "sps demo --again")
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _purpose(quick: bool) -> str:
    """What the demo shows, before it does."""
    if not quick:
        return (
            "Countdown: reach a target from four numbers. A small policy has seen mostly\n"
            "aimless attempts; RL sharpens it. Watch Pass@1 rise and Pass@128 fall, and what\n"
            "SPS does about that.\n"
        )
    small = dict(pair.split("=") for pair in _QUICK)
    return (
        f"A smoke test: {small['rl.steps']} steps, {small['task.test']} test problems, one seed. "
        "It shows that everything\nruns; the effect needs the full demo (about 5 minutes).\n"
    )


def recipes_folder() -> Path:
    """The recipes that come with the program: in its source tree, or where it was installed."""
    here = Path(__file__).parents[3] / "recipes"
    return here if here.is_dir() else Path(sysconfig.get_path("data")) / "share" / "sps" / "recipes"
