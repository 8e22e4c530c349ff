"""The whole diagnosis, of whole and of damaged folders; squeeze and cost by hand."""

import json
import shutil

import numpy as np
import pytest
from made_folders import DAMAGE, make_run, write_evaluation

from sps.diagnose.cost import cost_by_stage
from sps.diagnose.read import read_run
from sps.diagnose.run import diagnose
from sps.diagnose.squeeze import likelihood_quantiles
from sps.run.track import Track
from sps.store.rollouts import RolloutStore
from sps.types import Rollout, Verdict


def _write(folder, step, probabilities):
    store = RolloutStore(folder / "rollouts")
    rows = []
    for sample, p in enumerate(probabilities):
        logprobs = np.log(np.array(p, dtype=np.float32))
        ids = np.zeros(len(p), dtype=np.int32)
        verdict = Verdict("wrong", 0.0)
        rows.append(Rollout("q", ids, ids, logprobs, 0.0, verdict, step, 0, 0, sample))
    store.append(step, rows)


def test_likelihood_quantiles_by_hand(tmp_path):
    _write(tmp_path, 1, [[np.exp(-1.0)], [np.exp(-2.0)], [np.exp(-3.0)]])
    found = likelihood_quantiles(read_run(tmp_path))
    assert found["q50"] == pytest.approx([-2.0], abs=1e-5)
    assert found["q25"] == pytest.approx([-2.5], abs=1e-5)
    assert found["rollouts"] == [3]


def test_cost_by_stage_by_hand():
    records = [
        {
            "kind": "rl",
            "step": 1,
            "time": 13.0,
            "seconds/generate": 1.5,
            "seconds/verify": 0.5,
            "seconds/update": 1.0,
            "tokens": 10,
        },
        {"kind": "irl", "step": 1, "time": 14.0, "seconds/select": 0.25},
        {"kind": "irl", "step": 1, "time": 14.0, "seconds/update": 0.5},
        {"kind": "eval", "step": 1, "time": 20.0},
    ]
    found = cost_by_stage(records)
    seconds = {row["stage"]: row["seconds"] for row in found["stages"]}
    # From the start of step 1 (13 - 3 = 10) to the evaluation (20): 10 s, of which 3.75 are timed.
    assert found["wall_seconds"] == pytest.approx(10.0)
    assert seconds["not timed"] == pytest.approx(6.25)
    assert found["irl_over_rl"] == pytest.approx(0.75 / 3.0)
    assert (seconds["generate"], seconds["verify"]) == (1.5, 0.5)
    assert found["tokens_per_second"] == pytest.approx(10 / 1.5)


def test_diagnosis_of_a_whole_run_is_json(tmp_path):
    found = diagnose(make_run(tmp_path / "run"))
    json.dumps(found)
    assert found["missing"] == []
    assert {e["name"] for e in found["evaluations"]} == {
        "test",
        "validation-000003",
        "validation-000006",
    }
    assert found["likelihood"]["step"] == [1, 2, 3, 4, 5, 6]
    moves = [(p["of"], p["step"], p["to_greedy"]) for p in found["phases"]]
    assert moves == [("rl", 3, 0.01), ("irl", 3, -0.005), ("rl", 6, 0.01), ("irl", 6, -0.005)]
    assert found["warnings"][0]["step"] == 6
    validation = next(q for q in found["questions"] if q["split"] == "validation")
    assert validation["steps"] == [3, 6]
    assert validation["questions"] == 12
    test = next(e for e in found["evaluations"] if e["name"] == "test")
    assert sum(test["buckets"].values()) == 12
    assert 0 < test["distinct"][1] < test["distinct"][0] < test["distinct"][2] < 2


def test_extra_evaluations_are_kept_apart_by_temperature(tmp_path):
    folder = make_run(tmp_path / "run")
    for name in ("test-000003-1", "test-000006-1.4"):
        shutil.copy(folder / "evals" / "test.json", folder / "evals" / f"{name}.json")
    run = read_run(folder)
    assert [e.name for e in run.split("test")] == ["test-000003-1", "test"]
    assert [e.step for e in run.split("test at T=1.4")] == [6]


@pytest.mark.parametrize("damage", DAMAGE)
def test_diagnosis_of_a_damaged_run_says_what_is_missing(tmp_path, damage):
    folder = make_run(tmp_path / "run")
    DAMAGE[damage](folder)
    found = diagnose(folder)
    json.dumps(found)
    if damage != "tokenizer damaged":  # only the report reads it
        assert found["missing"]


def test_reading_writes_nothing(tmp_path):
    folder = make_run(tmp_path / "run")
    shutil.rmtree(folder / "rollouts")
    before = sorted(p for p in folder.rglob("*"))
    diagnose(folder)
    assert sorted(p for p in folder.rglob("*")) == before


def test_a_run_that_has_only_validated_its_start_has_not_finished(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    track = Track(tmp_path / "metrics.jsonl")
    write_evaluation(tmp_path, "validation-000000", 0, 4, track, seed=0)
    assert any("has not finished" in text for text in read_run(tmp_path).missing)


def test_an_evaluation_of_the_base_is_no_unfinished_run_though_it_warned(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    track = Track(tmp_path / "metrics.jsonl")
    track.log("warning", 0, text="3 questions are nearly the same as held-out ones")
    write_evaluation(tmp_path, "test-000000", 0, 4, track, seed=0)
    assert read_run(tmp_path).missing == []
