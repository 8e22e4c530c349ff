"""A run that is killed again and again, at any instant, ends as one that never was."""

from __future__ import annotations

import os
import random
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from small_runs import recipe_of, run
from test_faults import same_run

KILLS = int(os.environ.get("SPS_KILLS", "50"))
HOW = {
    "rl__steps": 12,
    "irl__lr": None,
    "irl__memory": {"weight": 1.0},
    "evaluation": {"every": 4, "n": 8, "validation_n": 8, "select": "paper"},
}


def attempt(folder: str) -> None:
    """In a process of its own: begin or go on, to the end."""
    torch.set_num_threads(1)
    run(recipe_of(**HOW), Path(folder), resume=True)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def states(folder: Path) -> dict:
    found = {p.parent.name: torch.load(p) for p in folder.glob("checkpoints/*/trainer.pt")}
    return {
        (step, which, name, key): value
        for step, state in found.items()
        for which in ("optimizer", "irl_optimizer")
        for name, of in (state[which] or {}).items()
        for key, value in of.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_kills_at_random_instants_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SPS_CACHE", str(tmp_path / "cache"))
    context = get_context("forkserver")  # which has imported everything: an attempt begins at once
    context.set_forkserver_preload(["test_kills", "sps.build", "sps.loop", "transformers"])

    def start(folder):
        process = context.Process(target=attempt, args=(str(folder),))
        process.start()
        return process

    whole = tmp_path / "whole"
    for folder in (tmp_path / "first", whole):  # the first also makes the embedded policy
        began, process = time.monotonic(), start(folder)
        process.join()
        assert process.exitcode == 0
    seconds = time.monotonic() - began
    rng, kills, runs = random.Random(0), 0, 0
    while kills < KILLS:
        folder, ended = tmp_path / f"run-{runs}", False
        while not ended:
            process = start(folder)
            process.join(rng.uniform(0, seconds))
            process.kill()
            process.join()
            ended = process.exitcode == 0
            assert ended or process.exitcode == -9, "it failed by itself"
            kills += not ended
        same_run(folder, whole, steps=range(2, 13, 2))
        assert files(folder) == files(whole)
        own, theirs = states(folder), states(whole)
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[key], theirs[key]) for key in own)
        runs += 1
    print(f"{kills} kills in {runs} runs of {seconds:.1f} s")  # noqa: T201
