"""Which checkpoint a run reports."""

from __future__ import annotations

import json

import pytest
from small_runs import (
    Killed,
    kill_at,
    recipe_of,
    run,
    same_weights,
    told,
    weights,
)

from sps.evaluation.scores import count_scores
from sps.lifecycle.measure import measure
from sps.run.folder import checkpoint_path

pytestmark = pytest.mark.usefixtures("one_cache")


def test_honest_selection_takes_the_best_on_validation(tmp_path):
    # A rate at which the policy breaks: the last weights are not the best.
    recipe = recipe_of(
        rl__lr=0.03, evaluation__select="honest", evaluation__every=2, evaluation__final=True
    )
    this, scores = run(recipe, tmp_path / "run")
    by_step = {step: s.correct_Q.sum() for step, s in this.scores.items()}
    assert list(by_step) == [0, 2, 4, 6]  # what it starts from is scored, too
    del by_step[0]  # but is no checkpoint
    done = told(tmp_path / "run")[-1]
    assert done["kind"] == "done"
    best = max(by_step.values())
    assert done["selected"] == min(step for step, right in by_step.items() if right == best)
    assert done["selected"] != 6
    chosen = weights(tmp_path / "run", done["selected"])
    assert same_weights(chosen, dict(this.policy.model.named_parameters()))
    written = json.loads((tmp_path / "run" / "evals" / "test.json").read_text())
    assert sum(written["per_question"].values()) == scores.correct_Q.sum()
    (record,) = [r for r in told(tmp_path / "run") if r.get("name") == "test"]
    assert record["distinct"] == written["distinct"]
    assert not {"per_question", "solutions"} & set(record)  # a line a question would be too long


def test_the_best_of_the_saved_checkpoints_is_spared_and_selected(tmp_path, monkeypatch):
    # Right of 4 on validation. The best, 0 and 3, are not saved; of those saved, 2 is the best.
    right = {0: 4, 1: 1, 2: 3, 3: 4, 4: 2, 5: 0, 6: 1}

    def faked(this, name, problems, n, step):
        if not name.startswith("validation-"):
            return measure(this, name, problems, n, step)
        rows = [
            {"problem_id": "q", "verdict": kind, "detail": "", "length": 1, "sum_logprob": -1.0}
            for kind in ["correct"] * right[step] + ["wrong"] * (4 - right[step])
        ]
        return count_scores(["q"], 4, rows, None)

    monkeypatch.setattr("sps.lifecycle.measure.measure", faked)
    recipe = recipe_of(
        evaluation={"select": "honest", "every": 1, "n": 4},
        checkpoint={"every": 2, "keep": 1},
        irl__steps=0,
    )
    run(recipe, tmp_path / "run")
    saved = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step-000002", "step-000006"]
    assert told(tmp_path / "run")[-1]["selected"] == 2


def test_paper_selection_takes_the_best_on_the_test_set(tmp_path):
    recipe = recipe_of(rl__lr=0.03, evaluation__select="paper", evaluation__final=True)
    this, scores = run(recipe, tmp_path / "run")
    right = {}
    for step in (2, 4, 6):
        path = tmp_path / "run" / "evals" / f"select-{step:06d}.json"
        right[step] = sum(json.loads(path.read_text())["per_question"].values())
    selected = told(tmp_path / "run")[-1]["selected"]
    assert selected == min(s for s in right if right[s] == max(right.values()))
    assert selected != 6
    assert scores.correct_Q.sum() == right[selected]  # the same samples, drawn again
    chosen = weights(tmp_path / "run", selected)
    assert same_weights(chosen, dict(this.policy.model.named_parameters()))


def test_selection_of_the_last_is_the_default(tmp_path):
    recipe = recipe_of(rl__lr=0.03, evaluation__final=True)
    _, scores = run(recipe, tmp_path / "run")
    assert told(tmp_path / "run")[-1]["selected"] == 6
    assert scores.n == 4
    assert len(scores.ids) == 4


def test_a_resumed_run_selects_what_the_whole_one_did(tmp_path):
    recipe = recipe_of(
        rl__lr=0.03, evaluation__select="honest", evaluation__every=2, evaluation__final=True
    )
    whole, scores = run(recipe, tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    resumed, again = run(recipe, tmp_path / "run", resume=True)
    assert {s: x.summary() for s, x in resumed.scores.items()} == {
        s: x.summary() for s, x in whole.scores.items()
    }
    assert again.summary() == scores.summary()
    assert told(tmp_path / "run")[-1]["selected"] == told(tmp_path / "whole")[-1]["selected"] != 6


def test_test_samples_of_another_selection_are_drawn_anew(tmp_path):
    recipe, out = recipe_of(rl__lr=0.03, evaluation__final=True), tmp_path / "run"
    honest = {"select": "honest", "every": 3, "final": True, "n": 4, "validation_n": 4}
    changes = {"rl__lr": 0.03, "evaluation": honest, "checkpoint__every": 3}
    run(recipe_of(**changes), out)
    assert told(out)[-1]["selected"] == 3
    (checkpoint_path(out, 3) / "config.json").write_text("{}")
    _, scores = run(recipe_of(**changes), out, resume=True)
    assert told(out)[-1]["selected"] == 6
    _, last = run(recipe, tmp_path / "last")  # the same training
    assert scores.summary() == last.summary()
