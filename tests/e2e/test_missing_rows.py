"""A name without its row in a table is one sentence that says where the row belongs."""

import json

import pytest
from small_runs import recipe_of

from sps import build
from sps.algo.irl import SELECTORS
from sps.algo.table import ALGORITHMS
from sps.config.load import load_recipe
from sps.errors import UserError
from sps.rollout.table import ENGINES
from sps.schema import Node
from sps.tasks import Bench, TaskType
from sps.tasks.table import TASKS, make_bench

ROWS = [
    (ALGORITHMS, "grpo", r"rl\.algorithm\.type: grpo has no row in ALGORITHMS \(sps/algo/table"),
    (SELECTORS, "l2te", r"irl\.selector\.type: l2te has no row in SELECTORS \(sps/algo/irl\.py\)"),
    (TASKS, "countdown", r"task\.type: countdown has no row in TASKS \(sps/tasks/table\.py\)"),
]


@pytest.mark.parametrize(("table", "name", "message"), ROWS, ids=["algorithm", "selector", "task"])
def test_a_run_is_refused_before_any_work(table, name, message, tmp_path, monkeypatch):
    recipe = recipe_of()
    monkeypatch.delitem(table, name)
    with pytest.raises(UserError, match=rf"{message}.*; add it there .*choose one of "):
        build.open_run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_engine_and_a_benchmarks_task_are_named_too(policy, monkeypatch):
    rollout = recipe_of().rollout
    monkeypatch.delitem(ENGINES, "native")
    with pytest.raises(UserError, match=r"rollout\.engine: native has no row in ENGINES"):
        build.make_engine(policy, 4, rollout)
    monkeypatch.delitem(TASKS, "choice")
    with pytest.raises(UserError, match="benchmark mmlu: choice has no row in TASKS"):
        make_bench(Bench("mmlu"))


def test_the_command_says_it_in_one_paragraph(tmp_path, monkeypatch, capsys):
    from test_cli import sps

    path = tmp_path / "r.yaml"
    path.write_text(json.dumps({"rl": {"algorithm": {"type": "gspo"}}}))
    assert load_recipe(path).rl.algorithm.type == "gspo"
    monkeypatch.delitem(ALGORITHMS, "gspo")
    assert sps("train", path, "--out", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: rl.algorithm.type: gspo has no row in ALGORITHMS")
    assert "Traceback" not in said


def test_keys_of_a_task_that_have_no_type_are_said():
    class Keys(Node):
        size: int = 1

    with pytest.raises(TypeError, match="Keys needs a key `type: Literal"):
        _ = TaskType(Keys, None, None).name
