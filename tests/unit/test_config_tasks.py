"""The task branch of a recipe."""

import pytest

from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.tasks.table import TASKS


def task(**keys):
    return parse_recipe({"task": keys}, "r.yaml").task


def test_a_task_without_a_type_is_countdown():
    assert parse_recipe({}, "r.yaml").task == TASKS["countdown"].config()
    assert task(numbers=3) == TASKS["countdown"].config(numbers=3)


def test_the_type_picks_the_task():
    assert isinstance(task(type="math", data="a.jsonl"), TASKS["math"].config)
    assert isinstance(task(type="choice", data="a.jsonl"), TASKS["choice"].config)
    assert isinstance(task(type="gym", name="sudoku"), TASKS["gym"].config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "maths"}, "type is one of countdown, math, choice, gym and python"),
        ({"numbrs": 3}, "no such key; did you mean 'numbers'"),
        ({"type": "math", "data": "a", "tmplate": "r1"}, "did you mean 'template'"),
        ({"type": "math", "data": "a", "columns": {"qestion": "q"}}, "did you mean 'question'"),
        ({"type": "math"}, "data: name a"),
        (
            {"type": "math", "data": "a", "template": "qwen"},
            "'qwen_boxed', 'r1', 'plain' or 'chat'",
        ),
        ({"seed": -1}, r"task.seed: .*greater than or equal to 0 \(got -1\)"),
        ({"type": "math", "data": "a", "seed": -1}, "task.seed: .*greater than or equal to 0"),
        ({"type": "gym", "name": "sudoku", "seed": -1}, "task.seed: .*greater than or equal to 0"),
        (
            {"type": "gym", "name": "sudoku", "settings": {"seed": 5}},
            "task: settings.seed: leave it out and set task.seed instead",
        ),
        (
            {"type": "gym", "name": "sudoku", "settings": {"size": 5}},
            "settings.size: leave it out and set task.train, task.validation and task.test",
        ),
    ],
)
def test_faults_name_the_key_and_the_fix(keys, message):
    with pytest.raises(UserError, match=message):
        task(**keys)
