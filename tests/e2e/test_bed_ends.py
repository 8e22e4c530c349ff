"""What a bed makes of a run's last weights: mixes between the base and them, other temperatures."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import recipe_of, run

from bench import bed_ends, beds
from bench.bed_tables import ends, paths_of, points
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
    heats = (1.4, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05)
    assert seen("tempered") == {("1", f"{heat}"): (1.0, heat, 12345) for heat in heats}


def test_the_middle_mixes_are_sampled_at_other_temperatures_too(seen):
    found = seen("mixed_tempered")
    assert len(found) == 5 + 3 * 4 + 7
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


def test_seeds_are_ranges_and_single_ones():
    assert beds.seeds_of("2-4") == [2, 3, 4]
    assert beds.seeds_of("3") == [3]
    assert beds.seeds_of("0-3,5-6,9") == [0, 1, 2, 3, 5, 6, 9]


def test_the_base_is_as_each_seed_sampled_it(tmp_path):
    """Of two questions x 2 samples, the base had 1 and 0 right in one draw, 2 and 0 in another."""
    draws = {0: [1, 0], 1: [2, 0]}
    lines = [
        {"bed": "b", "method": "grpo", "seed": seed, "ended": True, "n": 2, "seconds": 1.0}
        | {"right": {"0": base, "10": [2, 1]}}
        for seed, base in draws.items()
    ]
    (tmp_path / "bed_b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths = paths_of(tmp_path / "bed_b.jsonl", "b")
    assert paths.base.tolist() == [[1, 0], [2, 0]]
    assert paths.seeds == 2
    # Pass@1: (1/2 + 0 + 1 + 0) / 4; Pass@2: a question with any right one, (1 + 0 + 1 + 0) / 4.
    (said,) = [row for row in ends(tmp_path, {"b": "bed"}, {"grpo": "GRPO"}) if "base" in row]
    assert said == "| base | 37.5 / 50.0 |"


def test_an_end_that_is_cut_off_says_so(tmp_path, monkeypatch):
    """The run itself has ended, its mixes have not."""
    answers = iter([0, None])
    monkeypatch.setattr(beds, "_run", lambda *_: next(answers))
    monkeypatch.setattr(beds, "_kept", lambda folder, recipe: False)
    monkeypatch.setattr(
        beds, "_validations", lambda folder: [Path("validation-000000"), Path("validation-000009")]
    )
    monkeypatch.setattr(Path, "read_text", lambda path: '{"n": 2, "per_question": {"q": 1}}')
    told = SimpleNamespace(bed="embedded", more=[], skip=0, runs=tmp_path)
    plain, mixed = beds.one("embedded", ["grpo", "grpo_mixed"], 0, told, 0.0)
    assert (plain["how"], plain["ended"]) == ("ended", True)
    assert (mixed["how"], mixed["ended"]) == ("cut short", False)


def test_draws_of_the_base_at_other_temperatures_count_for_seeds_in_turn(tmp_path):
    def line(method, seed, right, **more):
        own = {"bed": "b", "method": method, "seed": seed, "ended": True, "n": 9, "seconds": 1.0}
        return json.dumps(own | {"right": right} | more) + "\n"

    draws = {5: [1, 2], 6: [3, 4]}
    lines = [
        line("base_tempered", seed, {"0": [0, 0]}, tempered={"0": {"0.5": own}})
        for seed, own in draws.items()
    ]
    lines += [line("grpo", seed, {"0": [0, 0], "10": [8, 9]}) for seed in (2, 3, 4, 7)]
    (tmp_path / "bed_b.jsonl").write_text("".join(lines))
    paths = paths_of(tmp_path / "bed_b.jsonl", "b", [2, 3, 4])
    assert paths.right["base_tempered"].tolist() == [[[1, 2], [3, 4], [1, 2]]]
    assert paths.right["grpo"].shape == (1, 3, 2)
    assert not paths.fewer
    said = ends(tmp_path, {"b": "bed"}, {"grpo": "GRPO", "base_tempered~0.5": "colder"})
    assert said[-1] == "| colder |  |"  # it is in a file of its own
    (tmp_path / "bed_b_tempered.jsonl").write_text(lines[0])
    said = ends(tmp_path, {"b": "bed"}, {"grpo": "GRPO", "base_tempered~0.5": "colder"})
    assert said[-1] == "| colder | 16.7 / 100.0 (1) |"  # Pass@1: (1/9 + 2/9) / 2


def test_what_was_validated_is_noted_while_a_run_goes_on(tmp_path, monkeypatch):
    """Two looks at one validation, one at two: a line for the first and the third."""
    there = [
        ["validation-000000"],
        ["validation-000000"],
        ["validation-000000", "validation-000009"],
    ]
    looks = iter(there)

    def run(typed, log, deadline, tick=lambda: None):
        for now in looks:
            monkeypatch.setattr(beds, "_validations", lambda folder, now=now: list(map(Path, now)))
            tick()
        return 0

    monkeypatch.setattr(beds, "_run", run)
    monkeypatch.setattr(beds, "_kept", lambda folder, recipe: False)
    monkeypatch.setattr(Path, "read_text", lambda path: '{"n": 2, "per_question": {"q": 1}}')
    told, noted = SimpleNamespace(bed="embedded", more=[], skip=0, runs=tmp_path), []
    (last,) = beds.one("embedded", ["grpo"], 0, told, 0.0, noted.extend)
    assert [(line["how"], line["ended"], sorted(line["right"])) for line in noted] == [
        ("going on", False, [0]),
        ("going on", False, [0, 9]),
    ]
    assert (last["how"], last["ended"], sorted(last["right"])) == ("ended", True, [0, 9])


def test_a_record_that_is_half_written_does_not_end_the_bed(tmp_path, monkeypatch):
    folder = tmp_path / "embedded_memory_0"

    def run(typed, log, deadline, tick=lambda: None):
        (folder / "evals").mkdir(parents=True)
        scores = '{"n": 2, "per_question": {"q": 1}}'
        (folder / "evals" / "validation-000000.json").write_text(scores)
        (folder / "metrics.jsonl").write_text('{"kind": "rl", "st')
        tick()
        (folder / "metrics.jsonl").write_text("")
        return 0

    monkeypatch.setattr(beds, "_run", run)
    told, noted = SimpleNamespace(bed="embedded", more=[], skip=0, runs=tmp_path), []
    (last,) = beds.one("embedded", ["memory"], 0, told, 0.0, noted.extend)
    assert [(line["how"], line["right"]) for line in (*noted, last)] == [
        ("going on", {0: [1]}),
        ("ended", {0: [1]}),
    ]


def test_of_a_run_the_longest_line_stays(tmp_path):
    def line(seed, steps, how):
        own = {"bed": "b", "method": "grpo", "seed": seed, "how": how, "ended": how == "ended"}
        return own | {"right": {str(step): [1] for step in range(steps)}}

    written = [line(0, 1, "going on"), line(1, 2, "going on"), line(0, 2, "going on")]
    written += [line(0, 2, "ended"), line(1, 1, "cut short")]
    path = tmp_path / "bed_b.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in written))
    beds.drop_shorter(path)
    kept = [json.loads(one) for one in path.read_text().splitlines()]
    assert kept == [line(1, 2, "going on"), line(0, 2, "ended")]
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_is_looked_at_while_it_goes_on_and_ended_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(beds, "_EVERY", 0.05)
    typed, looks = [sys.executable, "-c", "import time; time.sleep(0.5)"], []
    soon = lambda: looks.append(time.time())  # noqa: E731
    assert beds._run(typed, tmp_path / "log", time.time() + 60, soon) == 0
    assert len(looks) > 1
    endless = [sys.executable, "-c", "import time; time.sleep(600)"]
    began = time.time()
    assert beds._run(endless, tmp_path / "log", began + 1, soon) is None
    assert time.time() - began < 60
    assert beds._run([sys.executable, "-c", "exit(3)"], tmp_path / "log", time.time() + 60) == 3
