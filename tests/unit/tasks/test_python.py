"""A task in the user's own file: what its functions may do, and what a run makes of it."""

import json

import pytest

from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.tasks.table import TASKS
from sps.tasks.user_code import verdict_of
from sps.types import Verdict
from sps.verify import open_verifier

PROBLEMS = """
def problems(split):
    return [{"id": f"{split}-{i}", "question": f"{split} {i}?", "answer": str(i)} for i in range(3)]
"""


def made(folder, code, **keys):
    path = folder / "mine.py"
    path.write_text(code)
    tree = {"type": "python", "path": str(path), "workers": 1, "time_limit": 20.0, **keys}
    config = parse_recipe({"task": tree}, "test").task
    return TASKS["python"].make(config)


def judged(task, *texts, problem=None):
    verifier = open_verifier(task)
    try:
        asked = problem or task.problems("train")[0]
        return [f.result(60) for f in [verifier.submit(asked, text, True) for text in texts]]
    finally:
        verifier.close()


@pytest.mark.parametrize(
    ("value", "right", "verdict"),
    [
        (True, 1.0, Verdict("correct", 1.0)),
        (False, 1.0, Verdict("wrong", 0.0)),
        (1, 1.0, Verdict("correct", 1.0)),
        (0.25, 1.0, Verdict("wrong", 0.25)),
        (0.25, 0.25, Verdict("correct", 0.25)),
        (0.9, 0.95, Verdict("wrong", 0.9)),
        (Verdict("unparsed", 0.0, "no number"), 0.5, Verdict("unparsed", 0.0, "no number")),
        (Verdict("wrong", 0.5), 0.1, Verdict("wrong", 0.5)),  # a Verdict says itself what it is
    ],
)
def test_what_a_judge_returns_is_a_verdict(value, right, verdict):
    assert verdict_of(value, right) == verdict


@pytest.mark.parametrize(
    "value",
    [None, "yes", 2, -0.1, float("nan"), float("inf"), [1], Verdict("right", 1.0),
     Verdict("correct", 0.0), Verdict("wrong", 1.0), Verdict("unparsed", 0.5),
     Verdict("wrong", "0")],
)  # fmt: skip
def test_what_is_no_verdict_is_crashed_and_told(value):
    found = verdict_of(value, 1.0)
    assert (found.kind, found.reward) == ("crashed", 0.0)
    assert "judge returned" in found.detail
    assert "a number from 0 to 1" in found.detail


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    assert verdict_of(np.bool_(True), 1.0) == Verdict("correct", 1.0)
    assert verdict_of(np.float32(0.5), 1.0) == Verdict("wrong", 0.5)
    assert verdict_of(np.array([1.0, 1.0]), 1.0).kind == "crashed"


def test_what_a_judge_raises_is_a_verdict_with_its_lines(tmp_path):
    code = PROBLEMS + (
        "def half(text):\n    return int(text) / 2\n\n"
        "def judge(problem, text):\n"
        "    if text == 'leave':\n        raise SystemExit(3)\n"
        "    return half(text) == 1\n"
    )
    task = made(tmp_path, code)
    assert judged(task, "2", "x", "leave", "2") == [
        Verdict("correct", 1.0),
        Verdict(
            "crashed",
            0.0,
            "raised ValueError: invalid literal for int() with base 10: 'x' (mine.py line 10, in "
            "judge: return half(text) == 1; mine.py line 5, in half: return int(text) / 2)",
        ),
        Verdict("crashed", 0.0, "raised SystemExit: 3 (mine.py line 9, in judge: raise "
                "SystemExit(3))"),
        Verdict("correct", 1.0),
    ]  # fmt: skip


def test_a_judge_that_hangs_or_dies_costs_its_answer_alone(tmp_path):
    code = PROBLEMS + (
        "import os, signal\n"
        "def judge(problem, text):\n"
        "    while text == 'hang':\n        try:\n            pass\n        except:\n"
        "            pass\n"
        "    if text == 'die':\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return text == 'right'\n"
    )
    found = judged(made(tmp_path, code, time_limit=0.5), "hang", "right", "die", "right")
    assert [v.kind for v in found] == ["timeout", "correct", "crashed", "correct"]


def test_the_sandbox_holds_unless_it_is_switched_off(tmp_path):
    code = PROBLEMS + (
        "import subprocess\n"
        "def judge(problem, text):\n"
        "    if text == 'run':\n"
        "        return subprocess.run(['true']).returncode == 0\n"
        "    return False\n"
    )
    (locked,) = judged(made(tmp_path, code), "run")
    assert locked.kind == "crashed"
    assert "Error" in locked.detail
    assert "mine.py line 7, in judge" in locked.detail
    (free,) = judged(made(tmp_path, code, sandbox=False), "run")
    assert free == Verdict("correct", 1.0)


def test_parts_of_a_point_come_through_the_pool_and_right_says_what_counts(tmp_path):
    code = PROBLEMS + "def judge(problem, text):\n    return len(text) / 10\n"
    task = made(tmp_path, code, right=0.5)
    assert judged(task, "", "1234", "12345") == [
        Verdict("wrong", 0.0),
        Verdict("wrong", 0.4),
        Verdict("correct", 0.5),
    ]


def test_rows_of_a_file_reach_the_judge_whole(tmp_path):
    rows = [{"prompt": f"Sort {i}", "want": [3, i], "level": {"n": i}} for i in range(9)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = "def judge(problem, text):\n    return text == str(problem.meta['want'])\n"
    task = made(tmp_path, code, data=str(data), validation=2, test=3)
    assert {s: len(task.problems(s)) for s in ("train", "validation", "test")} == {
        "train": 4, "validation": 2, "test": 3,
    }  # fmt: skip
    for split in ("train", "test"):
        for problem in task.problems(split):
            row = rows[int(problem.question.split()[1])]
            assert problem.meta == row
            assert problem.answer == ""
    problem = task.problems("train")[0]
    assert judged(task, str(problem.meta["want"]), problem=problem) == [Verdict("correct", 1.0)]
    assert task.prompt(problem) == [{"role": "user", "content": problem.question}]


def test_its_own_prompt_and_mode_are_used_and_a_mode_that_fails_tells_nothing_apart(tmp_path):
    code = PROBLEMS + (
        "def judge(problem, text):\n    return False\n"
        "def prompt(problem):\n    return f'{problem.question} Say a number:'\n"
        "def mode(problem, text):\n    return int(text)\n"
    )
    task = made(tmp_path, code)
    task.warn = (said := []).append
    problem = task.problems("test")[1]
    assert task.prompt(problem) == "test 1? Say a number:"
    assert task.mode(problem, "07") == "7"
    assert not said
    assert [task.mode(problem, text) for text in ("seven", "eight")] == [None, None]
    (text,) = said  # once
    assert "mine.py line 9, in mode" in text
    assert "'test-1'" in text


def test_a_mode_that_fails_at_all_it_is_tried_with_is_warned_of_where_none_is_right(
    tmp_path, monkeypatch
):
    said = []
    monkeypatch.setattr("sps.tasks.Task.warn", said.append)
    broken = "def mode(problem, text):\n    return problem.text\n"
    made(tmp_path, PROBLEMS + "def judge(problem, text):\n    return False\n" + broken)
    (text,) = said
    assert "mode raised AttributeError" in text
    assert "mine.py line 7" in text


def test_a_judge_of_rows_without_answers_is_shown_their_columns(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"question": "q{i}?", "capital": "Rome"}}\n' for i in range(9)))
    code = "def judge(problem, text):\n    return text == problem.meta['town']\n"
    with pytest.raises(UserError, match="its row: question, capital") as raised:
        made(tmp_path, code, data=str(data), validation=1, test=1)
    assert "problem.meta['capital']" in str(raised.value)
    assert "problem.answer" not in str(raised.value)


def test_a_module_is_found_where_sps_is_started(tmp_path, monkeypatch):
    package = tmp_path / "own_package_of_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rule.py").write_text("WORD = 'yes'\n")
    (package / "task.py").write_text(
        PROBLEMS + "from own_package_of_tests.rule import WORD\n"
        "def judge(problem, text):\n    return text == WORD\n"
    )
    monkeypatch.chdir(tmp_path)
    tree = {"type": "python", "module": "own_package_of_tests.task", "workers": 1}
    task = TASKS["python"].make(parse_recipe({"task": tree}, "test").task)
    assert task.source == package / "task.py"
    assert [v.kind for v in judged(task, "yes", "no")] == ["correct", "wrong"]


def test_a_file_or_a_module_and_not_both():
    for keys in ({}, {"path": "a.py", "module": "a"}):
        with pytest.raises(UserError, match=r"give path: my_task\.py, or module"):
            parse_recipe({"task": {"type": "python", **keys}}, "r.yaml")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\n    os._exit(3)", "judge: the verifier's worker was ended with code 3, tried"),
        ("return 1 / 0", "judge raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_judge_that_always_dies_is_told_before_any_work(code, said, tmp_path):
    with pytest.raises(UserError, match=said):
        made(tmp_path, f"{PROBLEMS}\ndef judge(problem, text):\n    {code}\n")
