"""Validations whose file, or whose line of the record, was lost before a run is resumed."""

from __future__ import annotations

import json
import shutil

import pytest
from small_runs import Killed, kill_at, learnt, recipe_of, run, same_weights, told, weights

from sps.build import open_run
from sps.commands.frontier import frontier_record
from sps.diagnose.read import read_run
from sps.errors import Stopped
from sps.loop import train
from sps.run.folder import checkpoint_path
from sps.run.lock import release

pytestmark = pytest.mark.usefixtures("one_cache")
KEPT = ("validation-000000", "temperature-0.4-000000", "validation-000002", "validation-000004")


def recipe(**changes):
    usual = {"evaluation__every": 2, "evaluation__temperatures": [0.4], "checkpoint__every": 2}
    return recipe_of(**{**usual, **changes})


def scores(out):
    return {path.stem: json.loads(path.read_text()) for path in (out / "evals").glob("*.json")}


def begun(asked, out, at=("rl", 5)):
    with pytest.raises(Killed):
        run(asked, out, listeners=[kill_at(*at)])
    release(out)


def lose(out, *names, samples=False):
    for name in names:
        (out / "evals" / f"{name}.json").unlink()
        if samples:
            shutil.rmtree(out / "evals" / name)


def warnings(out):
    return [r["text"] for r in told(out) if r["kind"] == "warning" and "lost" in r["text"]]


@pytest.mark.parametrize("samples", [False, True], ids=["scores", "samples too"])
@pytest.mark.parametrize("lora", [{}, {"model__lora": {"rank": 2}}], ids=["whole", "lora"])
def test_lost_validations_are_made_again_and_the_run_goes_on_as_before(tmp_path, samples, lora):
    asked, out = recipe(**lora), tmp_path / "run"
    run(asked, tmp_path / "whole")
    begun(asked, out)
    lose(out, *KEPT, samples=samples)
    run(asked, out, resume=True)
    assert scores(out) == scores(tmp_path / "whole")
    assert learnt(out) == learnt(tmp_path / "whole")
    if not lora:
        assert same_weights(weights(out), weights(tmp_path / "whole"))
    assert not warnings(out)
    assert not list((out / "checkpoints").glob("mixed*"))


@pytest.mark.parametrize("name", KEPT)
def test_after_one_is_made_again_the_run_goes_on_with_its_own_weights(tmp_path, name):
    asked, out = recipe(), tmp_path / "run"
    run(asked, tmp_path / "whole")
    begun(asked, out)
    lose(out, name)
    run(asked, out, resume=True)
    assert scores(out) == scores(tmp_path / "whole")
    assert same_weights(weights(out), weights(tmp_path / "whole"))


def test_weights_that_are_not_as_they_were_saved_are_not_validated(tmp_path):
    begun(recipe(), tmp_path)
    lose(tmp_path, "validation-000002")
    damaged = checkpoint_path(tmp_path, 2) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\0\1\0")
    run(recipe(), tmp_path, resume=True)
    (text,) = warnings(tmp_path)
    assert text.startswith("lost, and cannot be made again (step-000002: model.safetensors is not")
    assert "validation-000002" not in scores(tmp_path)


def test_a_run_that_was_stopped_between_two_checkpoints_goes_on_from_there(tmp_path):
    asked, out = recipe(checkpoint__every=4), tmp_path / "run"
    run(asked, tmp_path / "whole")
    this = open_run(asked, out)

    def stop(record):
        if (record["kind"], record["step"]) == ("rl", 5):
            this.stop.asked = "asked"

    this.track.listeners.append(stop)
    with pytest.raises(Stopped):
        train(this)
    assert (out / "checkpoints" / "stop-000005").is_dir()
    lose(out, *KEPT[:2], "validation-000004")
    run(asked, out, resume=True)
    assert scores(out) == scores(tmp_path / "whole")
    assert same_weights(weights(out), weights(tmp_path / "whole"))


def test_the_weights_of_a_stop_are_those_of_its_step(tmp_path):
    asked, out = recipe(checkpoint__every=6), tmp_path / "run"
    run(asked, tmp_path / "whole")
    this = open_run(asked, out)

    def stop(record):
        if (record["kind"], record["step"]) == ("eval", 4):
            this.stop.asked = "asked"

    this.track.listeners.append(stop)
    with pytest.raises(Stopped):
        train(this)
    lose(out, "validation-000004", samples=True)
    run(asked, out, resume=True)
    assert scores(out) == scores(tmp_path / "whole")
    assert not warnings(out)


def test_the_base_of_a_run_that_went_on_from_adapters_has_these(tmp_path):
    first = recipe_of(model__lora={"rank": 2}, rl__lr=3e-2, irl__lr=3e-2)
    run(first, tmp_path / "first")
    path = str(checkpoint_path(tmp_path / "first", 6))
    asked, out = recipe(model__path=path, model__lora={"rank": 2}), tmp_path / "run"
    run(asked, tmp_path / "whole")
    begun(asked, out)
    lose(out, *KEPT, samples=True)
    run(asked, out, resume=True)
    assert scores(out) == scores(tmp_path / "whole")
    assert learnt(out) == learnt(tmp_path / "whole")


def test_what_is_lost_is_said_once_and_a_lost_mix_too(tmp_path):
    asked, out = recipe(checkpoint__mix=0.5), tmp_path / "run"
    run(asked, out)
    release(out)
    lose(out, "validation-000002", "mixed-000006")
    said = [f"x: {name} of {out} was lost" for name in ("validation-000002", "mixed-000006")]
    assert [s.partition(",")[0] for s in frontier_record([("x", out)])["left_out"]] == said
    shutil.rmtree(checkpoint_path(out, 2))
    for _ in range(2):
        run(asked, out, resume=True)
        release(out)
    assert len(warnings(out)) == 1
    assert "mixed-000006" in scores(out)


def test_what_cannot_be_made_again_is_named(tmp_path):
    asked, out = recipe(), tmp_path / "run"
    begun(asked, out)
    lose(out, "validation-000002")
    shutil.rmtree(checkpoint_path(out, 2))
    run(asked, out, resume=True)
    (text,) = warnings(out)
    assert text == (
        "lost, and cannot be made again (step-000002: it is not there): "
        "evals/validation-000002.json. The run's path and evaluation.select go without, unless it "
        "is put back from a copy"
    )
    assert "validation-000002" not in scores(out)
    assert "validation-000006" in scores(out)


def test_of_a_base_that_is_away_the_lost_scores_are_named(tmp_path):
    run(recipe(checkpoint__mix=0.5), tmp_path / "mixed")
    asked = recipe(model__path=str(tmp_path / "mixed" / "checkpoints" / "mixed"))
    begun(asked, tmp_path / "run")
    lose(tmp_path / "run", *KEPT[:2])
    (tmp_path / "mixed").rename(tmp_path / "away")
    run(asked, tmp_path / "run", resume=True)
    (text,) = warnings(tmp_path / "run")
    assert text.startswith("lost, and cannot be made again (the base cannot be read (")
    assert f": {', '.join(f'evals/{name}.json' for name in KEPT[:2])}. The run" in text


@pytest.mark.parametrize("at", [("rl", 5), ("eval", 0, 2)], ids=["later", "before the first step"])
def test_scores_whose_line_of_the_record_was_lost_are_kept(tmp_path, at):
    asked, out = recipe(), tmp_path / "run"
    run(asked, tmp_path / "whole")
    begun(asked, out, at)
    record = out / "metrics.jsonl"
    lines = record.read_text().splitlines()
    lost = [line for line in lines if '"eval"' in line]
    record.write_text("".join(f"{line}\n" for line in lines if line not in lost))
    for name in {*KEPT} & {*scores(out)}:  # that it is not made again
        path = out / "evals" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mean_length": 1.5}))
    run(asked, out, resume=True)
    made = [r for r in told(out) if r["kind"] == "eval"]
    assert sorted(r["name"] for r in made) == sorted(scores(tmp_path / "whole"))
    kept = [r["name"] for r in made if r["mean_length"] == 1.5]
    assert kept == sorted(json.loads(line)["name"] for line in lost)
    assert len(kept) >= 2


def test_a_file_of_another_name_is_no_validation_of_the_last_step(tmp_path):
    run(recipe(), tmp_path)
    release(tmp_path)
    shutil.copy(tmp_path / "evals/validation-000002.json", tmp_path / "evals/validation-best.json")
    this, _ = run(recipe(), tmp_path, resume=True)
    assert this.scores[6].summary() == scores(tmp_path)["validation-000006"]
    assert "validation-best" not in [r.get("name") for r in told(tmp_path)]


def test_what_was_lost_of_a_run_that_has_ended_is_said_where_it_is_shown(tmp_path):
    folders = [tmp_path / f"run-{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        run(recipe(seed=seed), folder)
        release(folder)
    assert not read_run(folders[0]).lost()
    lose(folders[1], "validation-000002")
    record = frontier_record([("x", folder) for folder in folders])
    said = f"x: validation-000002 of {folders[1]} was lost, and is no point of its path"
    assert record["left_out"] == [said]
    (note,) = [text for text in read_run(folders[1]).missing if "validation-000002" in text]
    assert note.endswith(f"sps train {folders[1]}/recipe.yaml --out {folders[1]} --resume")
    run(recipe(seed=2), folders[1], resume=True)
    assert frontier_record([("x", folder) for folder in folders])["left_out"] == []
