"""Training on a task in the user's own file: parts of a point, crashes, and other files."""

import hashlib

import pyarrow.compute as pc
import pytest
from test_train_tasks import BASE, SMALL

from sps.build import open_run
from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.loop import train
from sps.run.lock import release
from sps.run.track import read_records
from sps.store.rollouts import RolloutStore

# By the signs of a text: parts of a point, right from 0.75 on, and a crash now and then.
# One problem is never solved.
CODE = """
def problems(split):
    return [{"id": f"{split}{i}", "question": f"{len(split)} {i} -> 9 :"} for i in range(4)]

def prompt(problem):
    return problem.question

def judge(problem, text):
    if sum(map(ord, text)) % 3 == 1:
        raise KeyError("five")
    return min(len(text) % 4, 1 if problem.id == "train0" else 3) / 4
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    task = {"type": "python", "path": str(path), "right": 0.75, "workers": 1, "cut": "judge"}
    tree = {"model": {"path": str(BASE)}, "task": task, **SMALL}
    tree["rollout"] = {"prompts": 4, "n": 4, "max_new_tokens": 6}
    return parse_recipe(tree, "test")


def trained(recipe, folder, resume=False):
    run = open_run(recipe, folder, resume)
    try:
        return train(run)
    finally:
        run.verifier.close()


def test_parts_of_a_point_train_and_right_counts_in_pass_at_k(recipe, tmp_path):
    scores = trained(recipe, tmp_path / "run")
    table = RolloutStore(tmp_path / "run" / "rollouts").read()
    rewards = dict(zip(table["reward"].to_pylist(), table["verdict"].to_pylist(), strict=True))
    assert {reward for reward in rewards if 0 < reward < 0.75}
    for reward, kind in rewards.items():
        assert (kind == "correct") == (reward >= 0.75)
    crashed = table.filter(pc.field("verdict") == "crashed")["detail"].to_pylist()
    assert crashed
    for detail in crashed:
        assert "KeyError: 'five' (mine.py line 10, in judge: raise KeyError" in detail
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    (step,) = (r for r in records if r["kind"] == "rl")
    said = [r["text"] for r in records if r["kind"] == "warning"]
    assert ["KeyError: 'five' (mine.py line 10" in text for text in said].count(True) == 1
    assert f"the judge failed at {step['verdict/crashed']:.0%}" in " ".join(said)
    mean = sum(table["reward"].to_pylist()) / len(table)
    assert step["reward"] == pytest.approx(mean)
    assert step["reward"] > step["verdict/correct"] * 0.75
    right = [k == "correct" for k in table.sort_by([("group", "ascending")])["verdict"].to_pylist()]
    groups = [any(right[i : i + 4]) for i in range(0, 16, 4)]
    assert step["solved"] == sum(groups) / 4 < 1
    assert scores.kinds["correct"] == scores.correct_Q.sum()


def test_a_mode_that_raises_is_said_once_and_on_record(recipe, tmp_path):
    code = CODE + "\ndef mode(problem, text):\n    return len(text) // (not text)\n"
    (tmp_path / "mine.py").write_text(code)
    trained(recipe, tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    said = [r["text"] for r in records if "in mode" in r.get("text", "")]
    assert len(said) == 1
    assert "ZeroDivisionError" in said[0]


def test_a_run_keeps_its_task_file_and_goes_on_with_no_other(recipe, tmp_path):
    folder, file = tmp_path / "run", tmp_path / "mine.py"
    trained(recipe, folder)
    assert (folder / "task.py").read_text() == CODE
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    assert (folder / "task.sha256").read_text() == f"{digest}  mine.py\n"
    file.write_text(CODE.replace("% 4", "% 5"))
    with pytest.raises(
        UserError, match=r"mine\.py is not the file that the run began with"
    ) as said:
        open_run(recipe, folder, resume=True)
    assert f"cp {folder}/task.py {file}" in str(said.value)
    assert f"--set model.path={folder}/checkpoints/step-000001" in str(said.value)
    assert (folder / "task.py").read_text() == CODE
    file.write_text(CODE)
    open_run(recipe, folder, resume=True).verifier.close()


def test_rows_whose_other_columns_changed_are_not_gone_on_with(recipe, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"question": "{i} -> 9 :", "want": 1}}\n' for i in range(9)))
    (tmp_path / "mine.py").write_text(
        "def judge(p, text):\n    return p.meta['want'] == len(text)\n"
    )
    keys = {"data": str(data), "template": "plain", "validation": 2, "test": 2}
    task = recipe.task.model_copy(update=keys)
    recipe = recipe.model_copy(update={"task": task})
    trained(recipe, tmp_path / "run")
    data.write_text(data.read_text().replace('"want": 1', '"want": 2'))
    with pytest.raises(UserError, match="not those the run began with"):
        open_run(recipe, tmp_path / "run", resume=True)


def test_nor_where_there_is_no_checkpoint_yet(recipe, tmp_path):
    """An evaluation of the base that was cut short has verdicts that would be gone on with."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"question": "{i} -> 9 :", "answer": 1}}\n' for i in range(9)))
    (tmp_path / "mine.py").write_text("def judge(p, text):\n    return p.answer == len(text)\n")
    keys = {"data": str(data), "template": "plain", "validation": 2, "test": 2}
    recipe = recipe.model_copy(update={"task": recipe.task.model_copy(update=keys)})
    for resume in (False, True):
        open_run(recipe, tmp_path / "run", resume).close()
        release(tmp_path / "run")
    data.write_text(data.read_text().replace('"answer": 1', '"answer": 2'))
    with pytest.raises(UserError, match="not those the run began with"):
        open_run(recipe, tmp_path / "run", resume=True)
