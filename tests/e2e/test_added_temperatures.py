"""What a comparison measures beside its runs: the base's temperatures, once for all of them, and
temperatures that are asked for when runs have ended."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import Future

import pytest
from small_runs import Killed, kill_at, recipe_of, run, told

from sps.build import open_run
from sps.commands import jobs, points
from sps.commands.frontier import frontier_record
from sps.commands.jobs import Extra, Job, plan, run_extra, run_job, run_jobs
from sps.config.load import load_recipe
from sps.diagnose.cost import cost_by_stage
from sps.errors import UserError
from sps.lifecycle import measure
from sps.run.folder import checkpoint_path, mixed_path
from sps.run.lock import release
from sps.run.track import read_records

pytestmark = pytest.mark.usefixtures("one_cache")
HEATS = (0.3, 1.6)


class Here:
    """A pool whose worker is this process."""

    def __init__(self, *about):
        self.about = about

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, do, job):
        future = Future()
        future.set_result(do(job))
        return future

    def shutdown(self, **how):
        pass


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", Here)


@pytest.fixture
def measured(monkeypatch):
    """Folder and name of each evaluation that a run makes, in order."""
    real, found = measure._put_on_record, []

    def noted(this, name, *rest, **more):
        real(this, name, *rest, **more)
        found.append((this.folder, name))

    monkeypatch.setattr(measure, "_put_on_record", noted)
    return found


def recipe(name="a", heats=HEATS, **changes):
    usual = {"threads": 1, "evaluation__every": 3, "evaluation__final": True}
    usual |= {"evaluation__temperatures": heats, "checkpoint__every": 3}
    return recipe_of(name=name, **usual, **changes)


def compare(out, *recipes, seeds=1):
    made = plan({one.name: one for one in recipes}, seeds, out, {}, threads=1)
    run_jobs(made, lambda *shown: None, workers=1)
    return [job for job in made if job.train]


def scores(folder, name):
    return json.loads((folder / "evals" / f"{name}.json").read_text())


def told_with_times(folder):
    return read_records(folder / "metrics.jsonl")


def of_base(found):
    return [(folder, name) for folder, name in found if name in TEMPERED]


TEMPERED = [f"temperature-{heat:g}-000000" for heat in HEATS]


def test_the_base_is_measured_once_for_all_runs(tmp_path, here, measured):
    out = tmp_path / "out"
    made = compare(out, recipe("a"), recipe("b", rl__lr=2e-3), seeds=2)
    (base,) = (out / "base").glob("temperatures-*")
    assert of_base(measured) == [(base, name) for name in TEMPERED]
    alone = tmp_path / "alone"
    run(made[0].recipe, alone)
    assert len(made) == 4
    for job in made:
        names = [r["name"] for r in told(job.folder) if r["kind"] == "eval"]
        assert sorted(names) == sorted(r["name"] for r in told(alone) if r["kind"] == "eval")
        for name in TEMPERED:
            assert scores(job.folder, name) == scores(alone, name)
    record = frontier_record((job.method, job.folder) for job in made)
    assert record["methods"]["base at other temperatures"]["steps"] == ["T=1.6", 0, "T=0.3"]
    del measured[:]
    written = [path.stat().st_mtime_ns for path in sorted(out.rglob("evals/*.json"))]
    compare(out, recipe("a"), recipe("b", rl__lr=2e-3), seeds=2)
    assert measured == []
    assert [path.stat().st_mtime_ns for path in sorted(out.rglob("evals/*.json"))] == written
    open_run(made[0].recipe, made[0].folder, resume=True).close()  # it keeps them
    assert (made[0].folder / "evals" / f"{TEMPERED[0]}.json").exists()
    release(made[0].folder)


def test_other_bases_are_measured_apart(tmp_path, here, measured):
    out = tmp_path / "out"
    few, many = compare(out, recipe("few"), recipe("many", evaluation__validation_n=8))
    assert len(of_base(measured)) == 2 * len(HEATS)
    assert {folder for folder, _ in of_base(measured)} == {few.base, many.base}
    assert scores(few.folder, TEMPERED[0])["n"] == 4
    assert scores(many.folder, TEMPERED[0])["n"] == 8
    del measured[:]  # another one is the first now
    compare(out, recipe("many", evaluation__validation_n=8), recipe("few"))
    assert measured == []


@pytest.mark.parametrize("name", TEMPERED)
def test_a_comparison_killed_at_the_base_goes_on_there(tmp_path, here, measured, monkeypatch, name):
    real = measure._put_on_record

    def dying(this, asked, *rest, **more):
        if asked == name:
            raise Killed
        real(this, asked, *rest, **more)

    monkeypatch.setattr(measure, "_put_on_record", dying)
    with pytest.raises(Killed):
        compare(tmp_path, recipe())
    monkeypatch.setattr(measure, "_put_on_record", real)
    assert len(of_base(measured)) == TEMPERED.index(name)
    (job,) = compare(tmp_path, recipe())
    assert of_base(measured) == [(job.base, name) for name in TEMPERED]
    assert [scores(job.folder, name) for name in TEMPERED] == [
        scores(job.base, name) for name in TEMPERED
    ]


def test_a_comparison_killed_while_it_shares_the_base_shares_it_once(tmp_path, here, monkeypatch):
    real = points.write_whole

    def dying(path, text):
        if path.stem == TEMPERED[1]:
            raise Killed
        real(path, text)

    monkeypatch.setattr(points, "write_whole", dying)
    with pytest.raises(Killed):
        compare(tmp_path, recipe())
    monkeypatch.setattr(points, "write_whole", real)
    (job,) = compare(tmp_path, recipe())
    names = [r["name"] for r in told(job.folder) if r["kind"] == "eval"]
    assert [name for name in names if name in TEMPERED] == TEMPERED
    assert scores(job.folder, TEMPERED[1]) == scores(job.base, TEMPERED[1])


@pytest.mark.parametrize(
    "more",
    [{}, {"checkpoint__mix": 0.5}, {"model__lora": {"rank": 2}, "checkpoint__mix": 0.5}],
    ids=["plain", "mixed", "lora"],
)
def test_temperatures_are_added_to_runs_that_have_ended(tmp_path, here, monkeypatch, more):
    asked, (job,) = recipe(**more), compare(tmp_path / "out", recipe(heats=[0.3], **more))
    run(asked, tmp_path / "whole")
    trained = [r for r in told(job.folder) if r["kind"] in ("rl", "irl", "done")]
    monkeypatch.setattr("sps.loop.train", lambda *_: pytest.fail("it trained"))
    compare(tmp_path / "out", asked)
    for path in (tmp_path / "whole" / "evals").glob("*.json"):
        assert scores(job.folder, path.stem) == scores(tmp_path / "whole", path.stem)
    assert [r for r in told(job.folder) if r["kind"] in ("rl", "irl", "done")] == trained
    names = [r["name"] for r in told(job.folder) if r["kind"] == "eval"]
    assert sorted(names) == sorted(p.stem for p in (tmp_path / "whole" / "evals").glob("*.json"))
    assert load_recipe(job.folder / "recipe.yaml").evaluation.temperatures == HEATS
    with pytest.raises(UserError, match=r"again: 0\.3,1\.6 \(.* --out"):
        compare(tmp_path / "out", recipe(heats=[1.6], **more))


def test_they_are_of_the_weights_that_were_selected(tmp_path, here, monkeypatch):
    def earlier(*_):
        return 3

    monkeypatch.setattr(measure, "best_step", earlier)
    asked = {"evaluation__select": "honest"}
    (job,) = compare(tmp_path / "out", recipe(heats=[], **asked))
    run(recipe(**asked), tmp_path / "whole")
    compare(tmp_path / "out", recipe(**asked))
    for heat in HEATS:
        name = f"temperature-{heat:g}-000003"
        assert scores(job.folder, name) == scores(tmp_path / "whole", name)


def test_samples_of_another_end_are_not_counted(tmp_path, here):
    (job,) = compare(tmp_path / "out", recipe(heats=[]))
    other = job.folder / "evals" / "temperature-0.3-000006"
    shutil.copytree(job.folder / "evals" / "validation-000006", other)
    (other / "end").write_text("step 6, 0.5 of the base\n")
    run(recipe(), tmp_path / "whole")
    compare(tmp_path / "out", recipe())
    assert scores(job.folder, other.name) == scores(tmp_path / "whole", other.name)


def test_a_run_that_another_command_uses_is_left_alone(tmp_path, here):
    (job,) = compare(tmp_path / "out", recipe(heats=[]))
    monitor = []

    def used(run, by):
        monitor.append((run, by))
        raise UserError("in use")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "hold", used)
        with pytest.raises(UserError, match="in use"):
            compare(tmp_path / "out", recipe())
    assert monitor == [(job.folder, "sps compare")]


def test_a_run_that_was_begun_without_them_ends_with_them(tmp_path, here):
    before, out = recipe(heats=[]), tmp_path / "out" / "a" / "seed-1"
    with pytest.raises(Killed):
        run(before, out, listeners=[kill_at("rl", 5)])
    release(out)
    (job,) = compare(tmp_path / "out", recipe())
    run(recipe(), tmp_path / "whole")
    assert job.folder == out
    for path in (tmp_path / "whole" / "evals").glob("*.json"):
        assert scores(out, path.stem) == scores(tmp_path / "whole", path.stem)


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_runs_whose_end_is_lost_are_named_before_any_work(tmp_path, here, monkeypatch, mix):
    (job,) = compare(tmp_path, recipe(heats=[], checkpoint__mix=mix))
    end = mixed_path(job.folder) if mix else checkpoint_path(job.folder, 6)
    shutil.move(end, tmp_path / "end")
    compare(tmp_path, recipe(heats=[], checkpoint__mix=mix))  # nothing is asked of it
    monkeypatch.setattr(jobs, "run_job", lambda _: pytest.fail("it worked"))
    wanted = (
        rf"seed-1: it has ended, and {end}, .*not there\. Put it back .*; or leave out .*--temp"
    )
    with pytest.raises(UserError, match=wanted):
        compare(tmp_path, recipe(checkpoint__mix=mix))


def test_weights_that_are_not_as_they_were_saved_are_not_evaluated(tmp_path, here):
    (job,) = compare(tmp_path, recipe(heats=[]))
    weights = checkpoint_path(job.folder, 6) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\1\0")
    with pytest.raises(
        UserError, match=r"step-000006, .* cannot be used: model\.safetensors is not"
    ):
        run_job(Job("a", recipe(), job.folder, base=tmp_path / "base"))


@pytest.mark.parametrize("heats", [[0.3], HEATS], ids=["the same", "more"])
def test_a_run_that_was_resumed_after_its_end_ends_again(tmp_path, here, heats):
    """Its record has no end until then: it is not known to be mixed."""
    usual = {"checkpoint__mix": 0.5}
    (job,) = compare(tmp_path / "out", recipe(heats=[0.3], **usual))
    run(recipe(heats=heats, **usual), tmp_path / "whole")
    with pytest.raises(Killed):
        run(job.recipe, job.folder, resume=True, listeners=[kill_at("eval", 6)])
    release(job.folder)
    compare(tmp_path / "out", recipe(heats=heats, **usual))
    for path in (tmp_path / "whole" / "evals").glob("*.json"):
        assert scores(job.folder, path.stem) == scores(tmp_path / "whole", path.stem)


def test_without_its_record_nobody_knows_what_a_run_ended_with(tmp_path, here):
    (job,) = compare(tmp_path, recipe(heats=[], checkpoint__mix=0.5))
    (job.folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl: the record of this run is missing"):
        compare(tmp_path, recipe(checkpoint__mix=0.5))


@pytest.mark.parametrize("known", [True, False])
def test_damaged_scores_of_the_base_are_named_and_not_shared(tmp_path, here, known):
    (job,) = compare(tmp_path, recipe())
    (job.base / "evals" / f"{TEMPERED[0]}.json").write_text("{")
    if known:
        (job.folder / "evals" / f"{TEMPERED[0]}.json").unlink()
    with pytest.raises(UserError, match=rf"{TEMPERED[0]}\.json cannot be read .* remove it"):
        compare(tmp_path, recipe(), seeds=1 if known else 2)
    (job.base / "evals" / f"{TEMPERED[0]}.json").unlink()
    compare(tmp_path, recipe(), seeds=2)
    assert scores(job.folder, TEMPERED[0]) == scores(job.base, TEMPERED[0])


def test_what_is_put_on_record_after_the_end_is_no_time_of_the_run(tmp_path, here, monkeypatch):
    (job,) = compare(tmp_path, recipe(heats=[]))
    before = cost_by_stage(told_with_times(job.folder))
    now = time.time
    monkeypatch.setattr("sps.run.track.time.time", lambda: now() + 3600)
    compare(tmp_path, recipe())
    assert cost_by_stage(told_with_times(job.folder)) == before


def test_an_earlier_checkpoint_that_is_lost_is_named(tmp_path, here):
    (job,) = compare(tmp_path, recipe(heats=[]))
    shutil.rmtree(checkpoint_path(job.folder, 3))
    asked = Job("a", recipe(heats=[]), job.folder, (Extra("a @3", step=3),), train=False)
    with pytest.raises(UserError, match=r"seed-1: it has ended, and .*step-000003, .*--early"):
        run_extra(asked)
