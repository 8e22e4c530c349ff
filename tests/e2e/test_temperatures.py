"""The base and what a run ends with, sampled at other temperatures: evaluation.temperatures."""

from __future__ import annotations

import json

import pytest
from small_runs import Killed, recipe_of, run, told

from sps.build import make_engine, make_policy, make_task
from sps.commands.estimate import evaluations
from sps.commands.frontier import frontier_record
from sps.diagnose.frontier import TEMPERED_BASE, validation_paths
from sps.diagnose.read import read_run
from sps.diagnose.recorded import compared_runs
from sps.evaluation.evaluate import EvalJob, evaluate
from sps.lifecycle import measure
from sps.run.folder import checkpoint_path, mixed_path
from sps.run.lock import release
from sps.store.evals import EvalStore
from sps.types import Sampling
from sps.verify import open_verifier

pytestmark = pytest.mark.usefixtures("one_cache")
HEATS = (0.3, 1.6)


def tempered(**changes):
    return recipe_of(evaluation__every=3, evaluation__temperatures=HEATS, **changes)


def sampled(recipe, place, folder, temperature, seed):
    """Right samples of each validation problem of the weights in a place."""
    task, policy = make_task(recipe), make_policy(recipe, place and str(place))
    engine, verifier = make_engine(policy, 64), open_verifier(task)
    job = EvalJob(
        task,
        task.problems("validation"),
        Sampling(4, 8, temperature, seed=seed),
        verifier,
        EvalStore(folder),
    )
    found = evaluate(policy, engine, job).summary()["per_question"]
    engine.close()
    verifier.close()
    return found


def counts(out, name):
    return json.loads((out / "evals" / f"{name}.json").read_text())["per_question"]


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_the_base_and_the_end_are_validated_at_each(tmp_path, mix):
    recipe, out = tempered(checkpoint__mix=mix), tmp_path / "run"
    run(recipe, out)
    names = [r["name"] for r in told(out) if r["kind"] == "eval"]
    ends = ["mixed-000006"] * bool(mix)
    assert names == [
        *("validation-000000", "temperature-0.3-000000", "temperature-1.6-000000"),
        *("validation-000003", "validation-000006", *ends),
        *("temperature-0.3-000006", "temperature-1.6-000006"),
    ]
    end, seed = mixed_path(out) if mix else checkpoint_path(out, 6), recipe.evaluation.seed
    for heat in HEATS:
        for step, place in ((0, None), (6, end)):
            wanted = sampled(recipe, place, tmp_path / f"{heat} {step}", heat, seed)
            assert counts(out, f"temperature-{heat:g}-{step:06d}") == wanted


def test_training_and_what_is_reported_are_as_without(tmp_path):
    final = {"evaluation__final": True, "evaluation__every": 3}
    _, scores = run(recipe_of(evaluation__temperatures=HEATS, **final), tmp_path / "a")
    _, plain = run(recipe_of(**final), tmp_path / "b")
    assert scores.summary() == plain.summary()
    assert counts(tmp_path / "a", "validation-000006") == counts(
        tmp_path / "b", "validation-000006"
    )


@pytest.mark.parametrize("killed", [f"temperature-{h:g}-{s:06d}" for h in HEATS for s in (0, 6)])
def test_a_run_that_is_killed_between_them_ends_alike(tmp_path, monkeypatch, killed):
    recipe = tempered()
    run(recipe, tmp_path / "whole")
    real = measure._put_on_record

    def dying(this, name, *rest, **more):
        if name == killed:
            raise Killed
        real(this, name, *rest, **more)

    monkeypatch.setattr(measure, "_put_on_record", dying)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run")
    release(tmp_path / "run")
    monkeypatch.setattr(measure, "_put_on_record", real)
    run(recipe, tmp_path / "run", resume=True)
    for path in (tmp_path / "whole" / "evals").glob("*.json"):
        assert counts(tmp_path / "run", path.stem) == counts(tmp_path / "whole", path.stem)
    names = [r["name"] for r in told(tmp_path / "run") if r["kind"] == "eval"]
    assert sorted(names) == sorted(p.stem for p in (tmp_path / "whole" / "evals").glob("*.json"))


def test_scores_of_another_end_are_not_shown_until_its_own_are_there(tmp_path, monkeypatch):
    recipe, out = tempered(checkpoint__mix="auto"), tmp_path / "run"
    run(recipe, out)
    release(out)

    def dying(*_):
        raise Killed

    monkeypatch.setattr("sps.loop.measure_end", dying)
    with pytest.raises(Killed):
        run(recipe, out, resume=True)
    left = [e.name for e in read_run(out).evaluations if e.name.startswith("temperature-")]
    assert left == ["temperature-0.3-000000", "temperature-1.6-000000"]


def test_the_path_goes_on_from_the_end_and_the_base_has_one(tmp_path):
    folders = [tmp_path / f"run-{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        run(tempered(seed=seed), folder)
    record = frontier_record([("x", folder) for folder in folders])
    assert record["methods"]["x"]["steps"] == [3, 6, "T=1.6", 6, "T=0.3"]
    assert record["methods"][TEMPERED_BASE]["steps"] == ["T=1.6", 0, "T=0.3"]
    assert [(gap["name"], gap["minus"]) for gap in record["gaps"]] == [(TEMPERED_BASE, "x")]
    at_03 = record["methods"]["x"]["correct"][-1][0].split()
    assert at_03 == [str(c) for c in counts(folders[0], "temperature-0.3-000006").values()]
    again = validation_paths(compared_runs(tmp_path / "results.json", {"frontier": record}))
    assert again.record(again.compare()) == record  # from the file alone


def test_temperatures_of_another_step_than_the_last_are_no_points_of_the_path(tmp_path):
    run(tempered(), tmp_path / "run")
    folder = read_run(tmp_path / "run")
    folder.evaluations = [e for e in folder.evaluations if e.name != "validation-000006"]
    assert validation_paths({"x": [folder]}).steps["x"] == [3]


def test_what_is_counted_before_a_run():
    (found,) = evaluations(tempered())
    assert found.times == 3 + 2 * len(HEATS)
