"""What a bed makes of a run's last weights: mixes between the base and them, other temperatures."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from small_runs import recipe_of, run

from bench import bed_ends, beds
from bench.bed_tables import points
from bench.methods import settings_of, trained, way
from sps.build import make_policy

pytestmark = pytest.mark.usefixtures("one_cache")


def weights(policy):
    return torch.cat([w.detach().double().flatten() for w in policy.model.parameters()])


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What is evaluated of a run's end, share by share: how far from the base, temperature, seed"""
    recipe = recipe_of(seed=3)
    run(recipe, tmp_path / "run")
    steps = recipe.rl.steps
    base = weights(make_policy(recipe))
    last = weights(make_policy(recipe, str(tmp_path / "run" / "checkpoints" / f"step-{steps:06d}")))

    class Scores:
        def __init__(self, policy, job):
            far = float((weights(policy) - base).norm() / (last - base).norm())
            self.seen = round(far, 3), job.sampling.temperature, job.sampling.seed

        def summary(self):
            return {"seen": self.seen}

    monkeypatch.setattr(bed_ends, "evaluate", lambda policy, engine, job: Scores(policy, job))

    def of(*ways):
        found = bed_ends.ends(tmp_path / "run", ways)
        return {
            (share, heat): one["seen"] for share, own in found.items() for heat, one in own.items()
        }

    return of


def test_mixes_are_as_far_from_the_base_as_their_share(seen):
    assert seen("mixed") == {(f"{s}", "1"): (s, 1.0, 12345) for s in (0.1, 0.3, 0.5, 0.7, 0.9)}


def test_the_last_weights_are_sampled_at_other_temperatures(seen):
    heats = (1.4, 0.8, 0.6, 0.4, 0.2)
    assert seen("tempered") == {("1", f"{heat}"): (1.0, heat, 12345) for heat in heats}


def test_the_middle_mixes_are_sampled_at_other_temperatures_too(seen):
    found = seen("mixed_tempered")
    assert len(found) == 5 + 3 * 3 + 5
    assert found["0.3", "0.6"] == (0.3, 0.6, 12345)
    assert ("0.1", "0.6") not in found


def test_the_base_is_drawn_by_the_run_s_seed(seen):
    assert seen()["0", "0.4"] == (0.0, 0.4, 12348)


def test_names_of_ends():
    assert trained("a_mixed_tempered:x=1") == "a:x=1"
    assert [way(f"memory{end}") for end in ("", "_mixed", "_tempered", "_mixed_tempered")] == [
        "",
        "mixed",
        "tempered",
        "mixed_tempered",
    ]
    assert way("memory_0.3_tempered:irl.keep=1") == "tempered"
    assert way("base_tempered") == ""
    assert settings_of("embedded", "base_tempered") == ["rl.steps=1"]


def test_a_path_goes_from_a_point_through_its_temperatures_and_back():
    heats = {"1.4": [14], "0.8": [8], "0.6": [6]}
    line = {"right": {"0": [0], "5": [5], "10": [10]}, "tempered": {"10": heats}}
    assert np.ravel(points(line)).tolist() == [5, 10, 8, 6, 8, 10, 14, 10]
    base = {"right": {"0": [1]}, "tempered": {"0": {"0.8": [8], "0.6": [6]}}}
    assert np.ravel(points(base)).tolist() == [8, 6, 8]
    base["tempered"]["0"]["1.4"] = [14]
    assert np.ravel(points(base)).tolist() == [8, 6, 8, 1, 14, 1]
    assert np.ravel(points({"right": {"0": [0], "5": [5], "10": [10]}})).tolist() == [5, 10]


def test_a_run_of_the_same_recipe_is_kept_once_its_last_checkpoint_is_there(tmp_path):
    recipe, folder = recipe_of(), tmp_path / "run"
    assert not beds._kept(folder, recipe)
    run(recipe, folder)
    fewer = recipe.checkpoint.model_copy(update={"every": 1})
    assert beds._kept(folder, recipe.model_copy(update={"checkpoint": fewer}))
    assert not beds._kept(folder, recipe.model_copy(update={"seed": 9}))
    shutil.rmtree(folder / "checkpoints" / f"step-{recipe.rl.steps:06d}")
    assert not beds._kept(folder, recipe)
