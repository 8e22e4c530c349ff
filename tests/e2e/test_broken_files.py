"""Task files and data files with a fault: exit code 2 and one paragraph, before any work."""

import json

import pytest
from test_cli import said

GOOD = "def judge(problem, text):\n    return text == problem.answer\n"
ROWS = "".join(json.dumps({"question": f"q{i}?", "answer": str(i)}) + "\n" for i in range(9))
GIVES = "def problems(split):\n    return "
# Of each: the task file, and what must be said of it.
FILES = {
    "syntax": ("def judge(problem, text)\n", ["my_task.py", "line 1", "is not Python"]),
    "import": ("import no_such_module_at_all\n", ["my_task.py line 1", "ModuleNotFoundError"]),
    "raises": ("x = 1\n1 / 0\n", ["my_task.py line 2", "ZeroDivisionError"]),
    "exits": ("import sys\nsys.exit(0)\n", ["my_task.py line 2", "SystemExit"]),
    "empty": ("", ["no function judge", "def judge(problem, text)"]),
    "name": ("def grade(problem, text): return 1\n", ["no function judge", "it has grade"]),
    "value": ("judge = 3\n", ["judge is a int, not a function"]),
    "arguments": ("\ndef judge(text): return 1\n", ["line 2", "judge(problem, text)"]),
    "async": ("async def judge(problem, text): return 1\n", ["line 1", "judge is async"]),
    "none": ("\n\ndef judge(p, t): pass\n", ["line 3", "judge returned None", "True, False"]),
    "above one": ("def judge(p, t): return 7\n", ["line 1", "judge returned 7", "from 0 to 1"]),
    "text": ("def judge(p, t): return 'yes'\n", ["line 1", "judge returned 'yes'"]),
    "always raises": (
        "def judge(p, t):\n    return p.meta['gold'] == t\n",
        ["my_task.py line 2", "KeyError: 'gold'", "return False for what it cannot read",
         "columns of its row: question, answer", " texts, such as '"],
    ),
    "mode raises": (
        GOOD + "def mode(problem, text):\n    return text.solution\n",
        ["my_task.py line 4", "mode raised AttributeError", "which judge finds right",
         "return None for what it cannot read"],
    ),
    "hangs": ("def judge(p, t):\n    while True: pass\n", ["line 1", "task.time_limit"]),
    "writes": (
        "def judge(p, t):\n    open('log.txt', 'a').write(t)\n    return True\n",
        ["my_task.py line 2", "PermissionError", "task.sandbox: false"],
    ),
    "asks a server": (
        "from urllib.request import urlopen\n\n"
        "def judge(p, t):\n    return urlopen('http://127.0.0.1:9').read() == t\n",
        ["my_task.py line 4", "URLError", "task.sandbox: false"],
    ),
    "takes the problem for its row": (
        "def judge(problem, text):\n    return problem['gold'] == text\n",
        ["my_task.py line 2", "it has id, question, answer, and meta, which is the row"],
    ),
    "both": (GOOD + "def problems(split): return []\n", ["line 3", "task.data: remove one"]),
    "prompt": (GOOD + "def prompt(problem): return 3\n", ["line 3", "prompt('rows-", "returned 3"]),
    "prompt raises": (
        GOOD + "def prompt(problem):\n    return problem.text\n",
        ["my_task.py line 4", "AttributeError", "answer, and meta, which is the row"],
    ),
}  # fmt: skip
# The same without task.data.
GENERATORS = {
    "no problems": (GOOD, ["no problems", "task.data", "problems(split)"]),
    "nothing": (GOOD + GIVES + "[]\n", ["line 3", "problems('train') returns []"]),
    "wrong rows": (GOOD + GIVES + "['a']\n", ["line 3", "rows of str", "a list of dicts"]),
    "no question": (GOOD + GIVES + "[{'a': 1}]\n", ["problems('train')", "It has: a"]),
    "one for all": (
        GOOD + GIVES + "[{'id': 1, 'question': 'q'}]\n",
        ["line 3", "'1' is an id of train and again of validation"],
    ),
    "random": (
        "import random\n" + GOOD + GIVES + "[{'question': str(random.random())}]\n",
        ["line 4", "others the second time", "random.Random(split)"],
    ),
    "set": (
        GOOD + GIVES + "[{'id': split, 'question': split, 'seen': {1}}]\n",
        ["problem train", "its meta holds a set"],
    ),
}
# Of each: name and text of the data file, and what must be said of it.
DATA = {
    "missing": (None, "", ["there is no file rows.jsonl"]),
    "no rows": ("rows.jsonl", "", ["rows.jsonl holds no rows"]),
    "not JSON": ("rows.jsonl", '{"question": 1\n', ["rows.jsonl", "line 1 is not JSON"]),
    "not a row": ("rows.jsonl", "[1]\n", ["line 1 is not an object"]),
    "no question": ("rows.jsonl", '{"ask": "q"}\n' * 9, ["looks like the question", "It has: ask"]),
    "empty question": ("rows.jsonl", ROWS + '{"question": ""}\n', ["row 10 has no question"]),
    "too few": (
        "rows.jsonl",
        ROWS[: len(ROWS) // 3],
        ["task.data: rows.jsonl has 3 problems: too few", "task.validation: 2"],
    ),
    "same id": (
        "rows.jsonl",
        '{"id": 1, "question": "q"}\n' * 2,
        ["rows 1 and 2", "the same row", "same id '1'; remove one"],
    ),
    "binary": ("rows.jsonl", "\0\1\2", ["rows.jsonl", "line 1 is not JSON"]),
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe whose model is nowhere: nothing gets as far as that."""
    monkeypatch.chdir(tmp_path)

    def write(code, data):
        (tmp_path / "my_task.py").write_text(code)
        keys = "type: python, path: my_task.py, validation: 2, test: 2, workers: 1, time_limit: 2"
        rows = f", data: {data}" if data else ""
        text = f"model: {{path: nowhere/model}}\ntask: {{{keys}{rows}}}\n"
        (tmp_path / "recipe.yaml").write_text(text)
        return tmp_path / "recipe.yaml"

    return write


@pytest.mark.parametrize("name", FILES)
def test_a_broken_task_file_is_one_paragraph(name, recipe, tmp_path, capsys):
    code, words = FILES[name]
    (tmp_path / "rows.jsonl").write_text(ROWS)
    text = said(capsys, "train", recipe(code, "rows.jsonl"))
    assert "task.path: my_task.py" in text
    assert [word for word in words if word not in text] == []
    assert "such as ''" not in text  # which says little


@pytest.mark.parametrize("name", GENERATORS)
def test_problems_that_cannot_be_used_are_one_paragraph(name, recipe, capsys):
    code, words = GENERATORS[name]
    text = said(capsys, "train", recipe(code, None))
    assert "task.path: my_task.py" in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", DATA)
def test_a_broken_data_file_is_one_paragraph(name, recipe, tmp_path, capsys):
    file, content, words = DATA[name]
    if file:
        (tmp_path / file).write_text(content)
    text = said(capsys, "train", recipe(GOOD, "rows.jsonl"))
    assert [word for word in words if word not in text] == []


def test_a_task_file_that_is_not_there_names_the_folder(recipe, tmp_path, capsys):
    path = recipe(GOOD, "rows.jsonl")
    (tmp_path / "my_task.py").unlink()
    text = said(capsys, "train", path)
    assert "task.path: my_task.py: there is no such file" in text
    assert str(tmp_path) in text
