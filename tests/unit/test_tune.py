"""Equal tuning: which settings are tried, which of them wins, what is refused."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from sps.cli import main
from sps.commands.tune import _show, _write_winner, choose, draw_settings, make_trial
from sps.config.load import load_recipe
from sps.errors import UserError

ROOT = Path(__file__).parents[2]
GRPO = ROOT / "recipes" / "demo" / "countdown_grpo.yaml"
OVER = [("rl.lr", ["1e-4", "2e-4", "4e-4"]), ("irl.every", ["2", "4"])]


def sps(capsys, *arguments):
    """Run the program in this process; its exit code and what it said to the terminal."""
    before, sys.argv = sys.argv, ["sps", *map(str, arguments)]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_same_settings_are_drawn_each_time_and_more_add_to_fewer():
    assert draw_settings(OVER, 2) == {
        4: ["rl.lr=2e-4", "irl.every=4"],
        6: ["rl.lr=4e-4", "irl.every=4"],
    }
    drawn = [draw_settings(OVER, trials) for trials in range(1, 7)]
    for fewer, more in itertools.pairwise(drawn):
        assert fewer.items() <= more.items()
    # All six: the product in its order, the last key fastest.
    assert [*drawn[-1]] == [1, 2, 3, 4, 5, 6]
    assert drawn[-1][2] == ["rl.lr=1e-4", "irl.every=4"]


def test_the_winner_of_a_shipped_recipe_extends_its_file(tmp_path):
    name = Path("demo/countdown_grpo")
    trial = make_trial("grpo", name, 1, ["rl.lr=7e-5"], 1, tmp_path)
    won = load_recipe(_write_winner(trial, name, tmp_path))
    assert won == load_recipe(GRPO, ["rl.lr=7e-5"])


def trials(out, right):
    """Trials of made-up runs: right samples (of 4) of two questions at steps 10, 20, ..., by
    method and number. The base has 1 and 0."""
    made, found = [], {}
    for (method, number), points in right.items():
        made.append(make_trial(method, GRPO, number, [f"rl.lr={number}e-4"], 1, out))
        folder = made[-1].jobs[0].folder
        (folder / "evals").mkdir(parents=True)
        for i, (a, b) in enumerate([(1, 0), *points]):
            scores = {"n": 4, "per_question": {"q1": a, "q2": b}}
            (folder / "evals" / f"validation-{10 * i:06d}.json").write_text(json.dumps(scores))
        found[str(folder)] = {made[-1].name: {"rl_seconds": number, "irl_seconds": 0.5}}
    return made, found


def test_the_winner_has_the_largest_area_over_the_range_of_all_trials(tmp_path):
    right = {
        ("grpo", 1): [(4, 0)],  # Pass@1 1/8 to 1/2 with Pass@4 1/2: area 1/2
        ("grpo", 2): [(2, 2)],  # to 1/2 with Pass@4 1: area 1
        ("grpo", 3): [(1, 0)],  # learns nothing: it counts at 1/8 alone
        ("sps", 1): [(3, 0), (4, 1)],  # beyond 3/8 on to 5/8
        ("sps", 2): [(4, 0), (3, 3)],
    }
    got = choose(*trials(tmp_path, right))
    assert (got["k"], got["questions"], got["seeds"]) == (4, 2, 1)
    # The largest Pass@1 of any grpo trial is 1/2, of any sps trial 3/4.
    assert got["range"] == [1 / 8, 1 / 2]
    rows = {name: row for one in got["methods"].values() for name, row in one["trials"].items()}
    assert rows["grpo 1"]["area"][0] == 1 / 2
    assert rows["grpo 2"]["area"][0] == 1
    assert rows["grpo 3"]["area"][0] == 1 / 2 / 64  # one end of 32 parts
    assert rows["sps 2"]["area"][0] == 1
    assert {m: one["winner"] for m, one in got["methods"].items()} == {
        "grpo": "grpo 2",
        "sps": "sps 1",  # also 1: the first of equals
    }
    assert rows["grpo 3"]["seconds"] == 3.5
    assert rows["grpo 3"]["settings"] == ["rl.lr=3e-4"]


def test_settings_that_taught_nothing_are_said_to_be_told_apart_by_nothing(tmp_path, capsys):
    for number, (right, said) in enumerate([([(1, 0)], True), ([(4, 0)], False)]):
        got = choose(*trials(tmp_path / str(number), {("grpo", 1): right, ("grpo", 2): right}))
        _show(got)
        assert ("nothing was told apart" in capsys.readouterr().out.replace("\n", " ")) == said


def test_a_trial_without_scores_is_named(tmp_path):
    made, found = trials(tmp_path, {("grpo", 1): [(4, 0)], ("grpo", 2): [(2, 2)]})
    shutil.rmtree(made[1].jobs[0].folder / "evals")
    with pytest.raises(UserError, match=r"nothing can be chosen: grpo 2: not every seed"):
        choose(made, found)


def test_trials_that_end_with_another_step_are_chosen_from_at_one_temperature(tmp_path):
    made, found = trials(tmp_path, {("grpo", 1): [(4, 0)], ("grpo", 2): [(2, 2)]})
    for trial in made:  # the base's are there, those of the last step are not
        evals = trial.jobs[0].folder / "evals"
        shutil.copy(evals / "validation-000000.json", evals / "temperature-0.5-000000.json")
    assert choose(made, found)["methods"]["grpo"]["winner"] == "grpo 2"


def test_a_trial_is_never_evaluated_on_test_problems(tmp_path):
    trial = make_trial("grpo", GRPO, 3, ["evaluation.final=true"], 2, tmp_path)
    assert [job.recipe.evaluation.final for job in trial.jobs] == [False, False]
    assert [job.recipe.seed for job in trial.jobs] == [0, 1]
    assert [str(job.folder.relative_to(tmp_path)) for job in trial.jobs] == [
        "grpo/trial-3/seed-0",
        "grpo/trial-3/seed-1",
    ]


TINY = """
extends: {parent}
rl: {{steps: 2}}
task: {{train: 40, validation: 5, test: 5}}
evaluation: {{n: 2, every: 1, validation_n: 2}}
rollout: {{prompts: 2}}
"""


def test_tune_from_end_to_end_and_again_from_disk(tmp_path, capsys):
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(TINY.format(parent=GRPO))
    command = ["tune", path, "--over", "rl.lr=1e-3,2e-4", "--trials", 2, "--out", out]
    code, said = sps(capsys, *command)
    assert code == 0, said
    first = json.loads((out / "tune.json").read_text())
    one = first["methods"]["grpo"]
    assert list(one["trials"]) == ["grpo 1", "grpo 2"]
    winner = one["trials"][one["winner"]]
    assert winner["area"][0] == max(row["area"][0] for row in one["trials"].values())
    # The winner's recipe is the method's with its settings, and goes to `sps compare`.
    assert yaml.safe_load((out / "grpo.yaml").read_text())["extends"] == "../tiny.yaml"
    assert load_recipe(out / "grpo.yaml") == load_recipe(path, winner["settings"])
    assert f"sps compare {out / 'grpo.yaml'}" in said.replace("\n", "")
    # Both were validated before and after each step, and no test problem was touched.
    names = {p.name for p in out.rglob("evals/*.json")}
    assert names == {f"validation-{step:06d}.json" for step in range(3)}
    written = {p: p.stat().st_mtime_ns for p in out.rglob("metrics.jsonl")}
    assert len(written) == 2
    assert sps(capsys, *command)[0] == 0
    assert json.loads((out / "tune.json").read_text()) == first
    assert {p: p.stat().st_mtime_ns for p in written} == written


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--over", "rl.lrr=1,2"], "a.yaml: --over rl.lrr=2: rl.lrr: no such key; did you mean"),
        (["--over", "rl.lr=1,2", "--trials", 3], "--trials 3: --over has 2 combinations"),
        (["--over", "rl.lr"], "--over rl.lr: write it as key.path=value,value"),
        (["--over", "rl.lr=1,1"], "1 is there twice"),
        (["--over", "rl.lr=1", "--over", "rl.lr=2"], "--over rl.lr: it is there twice"),
        (["--over", "rl.lr=-1"], "--over rl.lr=-1: rl.lr"),
        # DAPO of a.yaml has it, GRPO of b.yaml has not.
        (
            ["--over", "rl.algorithm.eps_high=0.3"],
            r"b.yaml: --over rl.algorithm.eps_high=0.3: .*no such key; .*every recipe must take",
        ),
        (["--over", "task.test=5"], "a with task.test=5: not the task"),
        (["--over", "evaluation.every=5"], "not the evaluation"),
        (["--over", "seed=5"], "not the seed"),
        (["--over", "name=x"], "not the name"),
        (["--over", "rollout.max_new_tokens=8,20", "--trials", 2], "max_new_tokens differs"),
        (["--over", "model.path=here,there", "--trials", 2], "model.path differs .here of a, th"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_any_work(
    tmp_path, capsys, monkeypatch, arguments, wanted
):
    monkeypatch.setattr("sps.commands.tune.have_done", lambda *_: pytest.fail("it went to work"))
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("name: a\nrl: {algorithm: {type: dapo}}")
    b.write_text("name: b")
    more = [] if "--trials" in arguments else ["--trials", 1]
    code, said = sps(capsys, "tune", a, b, *arguments, *more, "--out", tmp_path / "out")
    assert code == 2
    assert "Traceback" not in said
    assert re.search(wanted, said), said
    assert not (tmp_path / "out").exists()


def test_without_validation_nothing_can_be_chosen(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    for text in ("evaluation: {every: 0}", "evaluation: {validation_n: 1}"):
        path.write_text(text)
        code, said = sps(capsys, "tune", path, "--over", "rl.lr=1", "--trials", 1)
        assert code == 2
        assert "set evaluation.every above 0 and evaluation.validation_n above 1" in said
