"""Whole runs with memory: of the run, of the base, and what the meter says of it."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import (
    Killed,
    kill_at,
    killed_and_resumed,
    recipe_of,
    run,
    same_weights,
    stored,
    told,
    weights,
)

from sps import loop
from sps.build import open_run
from sps.errors import UserError
from sps.loop import train
from sps.phases.memory import measured
from sps.types import Verdict
from sps.verify import InlineVerifier

pytestmark = pytest.mark.usefixtures("one_cache")


def meters(folder):
    return [r for r in told(folder) if r["kind"] == "meter"]


def test_the_base_draws_once_however_often_the_run_is_killed(tmp_path):
    memory = {"weight": 1.0, "source": "base", "when": "both", "distinct": False}
    recipe = recipe_of(irl__memory=memory, irl__keep=3)
    run(recipe, tmp_path / "whole")
    first = tmp_path / "run" / "rollouts" / "step-000000.parquet"
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("base", 0)])
    drawn = first.stat()
    with pytest.raises(Killed):  # before the first checkpoint, hence from the beginning
        run(recipe, tmp_path / "run", resume=True, listeners=[kill_at("rl", 1)])
    this, _ = run(recipe, tmp_path / "run", resume=True)
    assert first.stat().st_ino == drawn.st_ino
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    base = [r for r in stored(tmp_path / "run") if r["step"] == 0]
    assert len(base) == 24 * 4  # every training problem
    right = [tuple(r["ids"]) for r in base if r["verdict"] == "correct"]
    assert sorted(tuple(r.ids.tolist()) for r in this.memory) == sorted(right)


def test_rollouts_of_the_base_that_are_lost_are_named(tmp_path):
    recipe = recipe_of(irl__memory={"weight": 1.0, "source": "base"}, irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 3)])
    (tmp_path / "run" / "rollouts" / "step-000000.parquet").unlink()
    with pytest.raises(UserError, match="rollouts of step 0 are missing, and memory learns"):
        open_run(recipe, tmp_path / "run", resume=True)


def test_a_base_that_solves_too_little_is_said(tmp_path):
    recipe = recipe_of(irl__memory={"weight": 1.0, "source": "base"}, rl__steps=1)
    wrong = Verdict("wrong", 0.0)
    this = open_run(recipe, tmp_path / "run")
    this.verifier = InlineVerifier(lambda problem, text, finished: wrong)
    train(this)
    (text,) = [r["text"] for r in told(tmp_path / "run") if "memory is empty" in r.get("text", "")]
    assert "24 training problems" in text


def test_the_meter_reads_on_the_same_memory_after_a_resume(tmp_path, monkeypatch):
    """In phases of 4 steps the second is cut after its second: more is remembered by then."""
    chosen = []

    def noted(this, phase, kind):
        probe = measured(this, phase, kind)
        known = [] if probe is None else [(*p, *c) for p, c in zip(*parts(probe), strict=True)]
        chosen.append((phase.number, kind, known))
        return probe

    def parts(probe):
        return probe.prompts, probe.completions

    monkeypatch.setattr(loop, "measured", noted)
    recipe = recipe_of(irl__memory={"weight": 1.0}, rl__steps=8, irl__every=4)
    run(recipe, tmp_path / "whole")
    whole, chosen[:] = {c[:2]: c[2] for c in chosen}, []
    killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 7))
    resumed = [c for c in chosen if c[0] == 2]
    assert [c[1] for c in resumed] == ["rl", "rl", "irl"]  # of both processes
    assert all(whole[number, kind] == known for number, kind, known in resumed)
    assert len(whole[2, "irl"]) > len(whole[2, "rl"]) > len(whole[1, "rl"]) == 0
    for record in meters(tmp_path / "run"):
        has = record["phase"] == 2 or record["of"] == "irl"
        assert ("memory_gain" in record) == has
        assert not has or np.isfinite(record["memory_logprob"])
