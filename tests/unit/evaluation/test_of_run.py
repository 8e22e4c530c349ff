"""`sps eval` of a run: as its recipe samples, on what it held out, and not in silence otherwise."""

import json
import os
from pathlib import Path

import pytest

from sps.api import evaluate
from sps.cli import main
from sps.commands import evaluate as command
from sps.commands.began import TaskNow
from sps.commands.eval_options import make_options
from sps.commands.evaluate import run_eval
from sps.config.load import dump_recipe, load_recipe, parse_recipe
from sps.errors import UserError
from sps.lifecycle.resume import keep_data
from sps.ranks import Ranks
from sps.rollout.texts import Written
from sps.run.began import keep_place, refuse_elsewhere

CODE = "def judge(problem, text):\n    return 0.5 if text == 'good' else 0\n"


class Fake:
    """Notes what is asked, and how; every answer is 'good'."""

    def write(self, asks, sampling):
        self.asked, self.sampling = [ask.prompt for ask in asks], sampling
        for ask in asks:
            for sample in ask.samples:
                yield Written(ask.index, sample, "good", 1, True, -1.0)

    def close(self):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    rows = [{"id": f"q{i}", "question": f"What is {i}?"} for i in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"type": "python", "path": "mine.py", "data": "rows.jsonl", "workers": 1, "right": 0.5}
    task |= {"template": "plain", "validation": 2, "test": 3, "cut": "judge"}
    tree = {
        "task": task,
        "rollout": {"max_new_tokens": 7},
        "evaluation": {"temperature": 0.9, "n": 3, "seed": 8},
    }
    recipe = parse_recipe({**tree, "model": {"path": "base"}}, "test")
    saved = tmp_path / "run" / "checkpoints" / "step-000002"
    saved.mkdir(parents=True)
    (saved / "config.json").write_text("{}")
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    return saved


def evaluated(monkeypatch, model, bench="", out=None, regrade=False, **given):
    fake = Fake()
    monkeypatch.setattr(command, "make_texts", lambda settings, machinery: fake)
    given = {"n": 2, "workers": 1, **given}
    settings, machinery = make_options(str(model), given, bench, regrade, out)
    return run_eval(settings, machinery, bench, out, regrade)["benchmarks"], fake


def held_out(tmp_path):
    from sps.build import make_task

    task = make_task(load_recipe(tmp_path / "run" / "recipe.yaml"))
    return [task.prompt(p) for p in task.problems("test")]


@pytest.mark.parametrize("named", ["run", "checkpoint"])
def test_a_run_without_bench_is_asked_what_it_held_out_as_it_was(
    run, tmp_path, monkeypatch, capsys, caplog, named
):
    found, fake = evaluated(monkeypatch, run if named == "checkpoint" else "run")
    assert fake.asked == held_out(tmp_path)  # three of ten, in the recipe's template
    assert len(fake.asked) == 3
    assert (fake.sampling.temperature, fake.sampling.max_new_tokens) == (0.9, 7)
    assert found["test"]["avg"][0] == 1.0  # half a point is right in this recipe
    said = " ".join(capsys.readouterr().out.split())
    assert "temperature 0.9" in said
    assert "max_new_tokens 7, template plain, cut judge, right 0.5" in said
    assert not caplog.records


def test_questions_that_were_trained_on_are_warned_of(run, monkeypatch, caplog):
    _, fake = evaluated(monkeypatch, "run", "python:mine.py:rows.jsonl", temperature=0.0)
    assert fake.asked[0] == "Question: What is 0?\n\nAnswer:"  # plain, as the recipe has it
    assert fake.sampling.temperature == 0  # what is given wins
    (warning,) = (r.getMessage() for r in caplog.records if "trained" in r.getMessage())
    assert "run was trained on 5 of these 10 questions" in warning
    assert "`sps eval run` without --bench" in warning


def test_what_reward_is_right_is_as_in_the_run_or_as_given(run, tmp_path, monkeypatch):
    asked = "run", "python:mine.py:rows.jsonl"  # its judge gives half a point
    assert evaluated(monkeypatch, *asked)[0][asked[1]]["avg"][0] == 1.0
    with pytest.raises(UserError, match=r"another right \(0.5, now 0.6\)"):
        evaluated(monkeypatch, *asked, right=0.6)
    assert evaluated(monkeypatch, *asked, tmp_path / "a", right=0.6)[0][asked[1]]["avg"][0] == 0.0
    assert evaluated(monkeypatch, "run", "", tmp_path / "b", right=0.6)[0]["test"]["avg"][0] == 0.0
    with pytest.raises(UserError, match=r"--right 1\.5: a reward above 0 and at most 1"):
        evaluated(monkeypatch, *asked, right=1.5)


def test_an_evaluation_of_before_there_was_a_reward_that_is_right_had_1(run, tmp_path, monkeypatch):
    evaluated(monkeypatch, "run", "", tmp_path / "a")
    about = tmp_path / "a" / "eval.json"
    told = json.loads(about.read_text())
    assert told.pop("right") == 0.5
    about.write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"another right \(1.0, now 0.5\)"):
        evaluated(monkeypatch, "run", "", tmp_path / "a")


def test_what_is_no_run_has_the_usual_defaults_and_needs_a_benchmark(run, tmp_path):
    settings, machinery = make_options(str(tmp_path), {})
    assert (settings.temperature, settings.max_new_tokens, settings.template) == (0.7, 4096, "chat")
    assert machinery.cut == "zero"
    with pytest.raises(UserError, match="neither a run's folder nor a checkpoint"):
        run_eval(settings, machinery, "")


def test_a_checkpoint_that_is_not_there_is_said_first_and_leaves_nothing(
    run, tmp_path, monkeypatch, capsys
):
    """One that is forgotten by now is judged again all the same."""
    saved = run.parent
    evaluated(monkeypatch, run, out=tmp_path / "before")
    for name in ("mixed", "stop-000003", "step-000010"):
        (saved / name).mkdir()
    (saved / "damaged-step-000001").mkdir()
    before = sorted(tmp_path.iterdir())
    there = f"in {saved}: step-000002, step-000010, stop-000003, mixed"
    capsys.readouterr()
    for bench in ("", "countdown"):
        with pytest.raises(UserError, match="step-99: there is no such checkpoint") as said:
            evaluated(monkeypatch, saved / "step-99", bench)
        assert str(said.value).endswith(there)
    assert sorted(tmp_path.iterdir()) == before
    assert capsys.readouterr().out == ""
    run.rename(tmp_path / "gone")
    assert make_options(str(run), {"endpoint": "http://localhost/v1"})[0].model == str(run)
    again = ["sps", "eval", str(run), "--out", "before", "--n", "2", "--regrade"]
    monkeypatch.setattr("sys.argv", again)
    main()
    assert "test: 0 verdicts changed" in capsys.readouterr().out


def test_its_own_test_problems_get_the_samples_of_the_recipe(run, monkeypatch, capsys):
    found, fake = evaluated(monkeypatch, "run", n=None)
    assert (fake.sampling.n, fake.sampling.seed, found["test"]["n"]) == (3, 8, 3)
    assert ", n 3, " in " ".join(capsys.readouterr().out.split())
    by_name = make_options("run", {}, " test", out=Path("new"))[0]
    assert by_name.n == 3
    assert ", n 3, " in " ".join(capsys.readouterr().out.split())
    given = make_options("run", {"n": 5, "seed": 0})[0]
    assert (given.n, given.seed) == (5, 0)  # what is given wins
    assert make_options("run", {}, "countdown")[0].n == 16
    assert make_options("run", {}, "countdown")[0].seed == 8
    assert make_options("run", {}, "test,countdown")[0].n == 16
    assert make_options("base", {})[0].seed == 0
    assert ", n " not in capsys.readouterr().out
    assert make_options("base", {})[0].n == 16
    line = ["sps", "eval", "run", "--bench", "countdown", "--limit", "1", "--out", "a"]
    monkeypatch.setattr("sys.argv", line)
    main()  # with the model of before, which answers at once
    assert fake.sampling.n == 16
    fake.sampling = None
    evaluate("run", "countdown", "b", limit=1)
    assert fake.sampling.n == 16


@pytest.mark.parametrize("regrade", [False, True])
def test_an_evaluation_goes_on_with_the_seed_and_the_samples_that_it_was_begun_with(
    run, tmp_path, monkeypatch, capsys, regrade
):
    """The run's recipe has 8 and 3, which older versions did not go by."""
    for bench, samples in (("", 2), ("countdown", 2)):
        out = tmp_path / f"of-{bench}"
        evaluated(monkeypatch, "run", bench, out, seed=0, limit=2)
        capsys.readouterr()
        asked = {"limit": 2, "n": samples if bench else None, "regrade": regrade}
        found, _ = evaluated(monkeypatch, "run", bench, out, **asked)
        assert found[bench or "test"]["n"] == samples
        said = capsys.readouterr().out
        assert f"as in {out / 'eval.json'}: seed 0{'' if bench else ', n 2'}\n" in said
        assert "seed 8" not in said
        if regrade:  # with no other than that of its samples
            with pytest.raises(UserError, match=r"another seed \(0, now 8\)"):
                evaluated(monkeypatch, "run", bench, out, **asked, seed=8)
    evaluated(monkeypatch, "run", "", out, n=None, limit=2)  # it has no test problems yet
    assert json.loads((out / "eval.json").read_text())["n"] == 3


@pytest.mark.parametrize("spoilt", [{"seed": "0"}, {"seed": None}, {"seed": True}])
def test_a_seed_that_is_no_number_is_not_gone_on_with(run, tmp_path, monkeypatch, spoilt):
    evaluated(monkeypatch, "run", "", tmp_path / "a")
    about = tmp_path / "a" / "eval.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | spoilt))
    with pytest.raises(UserError, match=r"another seed \(.*, now 8\)"):
        evaluated(monkeypatch, "run", "", tmp_path / "a")


def test_a_run_whose_recipe_cannot_be_read_is_evaluated_with_the_usual_defaults(
    run, tmp_path, monkeypatch, caplog
):
    """As one of another version, which has other keys."""
    with (tmp_path / "run" / "recipe.yaml").open("a") as file:
        file.write("newer: 1\n")
    _, fake = evaluated(monkeypatch, "run", "countdown", limit=1)
    assert (fake.sampling.temperature, fake.sampling.seed) == (0.7, 0)
    assert "options that are not given have their usual defaults" in caplog.text


def test_whether_a_checkpoint_is_damaged_is_looked_at_by_one_rank(run, monkeypatch):
    class Several(Ranks):
        within = 0

        def broadcast(self, make):
            self.within += 1
            try:
                return make()
            finally:
                self.within -= 1

    ranks, seen = Several(), []
    monkeypatch.setattr(command, "join_ranks", lambda device: ranks)
    monkeypatch.setattr(command, "refuse_damaged", lambda model: seen.append((model, ranks.within)))
    evaluated(monkeypatch, run)
    evaluated(monkeypatch, run)  # nothing is left to draw
    assert seen == [(str(run), 1)]


def test_adapters_of_a_run_are_not_evaluated_on_another_base(run, tmp_path, monkeypatch):
    """Nor where their base is not; a run that trained all weights has them in its checkpoint."""
    tree = load_recipe("run/recipe.yaml").model_dump()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"others")
    (tmp_path / "run" / "base.sha256").write_text("0123456789abcdef\n")
    keep_place(tmp_path / "run", {})
    evaluated(monkeypatch, "run", "countdown", tmp_path / "whole")
    tree["model"]["lora"] = {"rank": 4}
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(parse_recipe(tree, "test")))
    with pytest.raises(UserError, match=r"run: base \(model\.path\) holds other weights now"):
        evaluated(monkeypatch, "run", "countdown", tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    with pytest.raises(UserError, match=r"model\.path: base is not in .*/away but in"):
        evaluated(monkeypatch, "../run", "countdown")


def test_another_task_file_than_the_runs_is_warned_of(run, tmp_path, monkeypatch, caplog):
    (tmp_path / "run" / "task.sha256").write_text("0" * 64 + "  mine.py\n")
    evaluated(monkeypatch, "run")
    assert "mine.py is not the file that run was trained with" in caplog.text


def add_rows(tmp_path):
    """What the run began with is kept; then it has more rows, and another split."""
    before = held_out(tmp_path)
    config = load_recipe(tmp_path / "run" / "recipe.yaml").task
    keep_data(TaskNow(config).data, tmp_path / "run")
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.writelines(f'{{"id": "q{i}", "question": "What is {i}?"}}\n' for i in range(10, 40))
    assert held_out(tmp_path) != before


def test_test_problems_that_are_drawn_anew_are_not_said_to_be_held_out(
    run, tmp_path, monkeypatch, capsys, caplog
):
    add_rows(tmp_path)
    evaluated(monkeypatch, "run")
    assert "not trained on" not in " ".join(capsys.readouterr().out.split())
    (warning,) = (r.getMessage() for r in caplog.records)
    assert "run: task.data (rows.jsonl) changed since it was trained" in warning
    assert "may have been trained on some of these" in warning
    assert "Put the data back as it was, or name questions it has not seen with --bench" in warning


def test_test_problems_that_are_as_they_were_are_said_to_be_held_out(
    run, tmp_path, monkeypatch, capsys, caplog
):
    rows = (tmp_path / "rows.jsonl").read_text()
    add_rows(tmp_path)
    (tmp_path / "rows.jsonl").write_text(rows)
    evaluated(monkeypatch, "run")
    assert "which it was not trained on" in " ".join(capsys.readouterr().out.split())
    assert not caplog.records


def test_which_questions_were_trained_on_is_not_known_of_other_rows(
    run, tmp_path, monkeypatch, caplog
):
    add_rows(tmp_path)
    evaluated(monkeypatch, "run", "python:mine.py:rows.jsonl")
    (warning,) = (r.getMessage() for r in caplog.records)
    assert "cannot tell which questions were trained on: task.data (rows.jsonl) changed" in warning


def test_from_another_folder_a_run_is_not_evaluated_but_said_where_it_is(
    run, tmp_path, monkeypatch, caplog
):
    """The paths in its recipe are relative: they start at the folder that sps is started in."""
    away = tmp_path / "away"
    away.mkdir()
    keep_place(tmp_path / "run", {})
    monkeypatch.chdir(away)
    where = rf"task\.data: rows\.jsonl is not in {away} but in {tmp_path}, where this run was"
    with pytest.raises(UserError, match=where) as said:
        evaluated(monkeypatch, "../run")
    assert str(said.value).endswith(f"(cd {tmp_path}); the run is {tmp_path / 'run'}")
    evaluated(monkeypatch, "../run", "python:../mine.py:../rows.jsonl")
    (warning,) = (r.getMessage() for r in caplog.records)
    assert "cannot tell which questions were trained on (../run: task.data: rows.jsonl" in warning
    (tmp_path / "rows.jsonl").rename(away / "rows.jsonl")
    with pytest.raises(UserError, match=r"task\.path: mine\.py is not in"):
        evaluated(monkeypatch, "../run")
    (away / "mine.py").write_text(CODE)  # then all is as if it had been started here
    evaluated(monkeypatch, "../run")
    (away / "rows.jsonl").unlink()
    with pytest.raises(UserError, match=r"there is no file rows\.jsonl"):  # nor is it there
        evaluated(monkeypatch, "../run")


def test_every_path_of_a_recipe_is_looked_for_where_the_run_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "rows.jsonl", "own"):
        (tmp_path / name).touch()
    keep_place(tmp_path, {})
    monkeypatch.chdir("/")
    sources = [{"data": "openai/gsm8k"}, {"data": "rows.jsonl"}]
    for tree, key in [
        ({"model": {"path": "base"}}, "model.path: base"),
        ({"task": {"sources": sources}}, "task.sources.data: rows.jsonl"),
        ({"task": {"data_dir": "own", "data": None}}, "task.data_dir: own"),
    ]:
        with pytest.raises(UserError, match=key):
            refuse_elsewhere(tmp_path, tree)
    for other in ("/base", str(tmp_path / "base"), "owner/name", "~/base", None):
        refuse_elsewhere(tmp_path, {"model": {"path": other}})
    (tmp_path / "started_in").unlink()  # of an older version
    refuse_elsewhere(tmp_path, {"model": {"path": "base"}})


def test_a_place_that_may_not_be_looked_into_counts_as_not_there(tmp_path, monkeypatch):
    """The folder that a run was started in may be another user's."""
    monkeypatch.chdir(tmp_path)
    keep_place(tmp_path, {})
    (tmp_path / "base").touch()
    monkeypatch.chdir("/")
    stat = os.stat

    def closed(path, **how):
        if str(path).startswith(str(tmp_path / "base")):
            raise PermissionError(13, "Permission denied")
        return stat(path, **how)

    monkeypatch.setattr("os.stat", closed)
    refuse_elsewhere(tmp_path, {"model": {"path": "base"}})
