"""docs/first_hour.md as somebody follows it: every file is written and every command run."""

import json
import re
import shlex
from pathlib import Path

import pytest
from test_cli import sps

from sps.commands import init
from sps.run.track import read_records

PAGE = (Path(__file__).parents[2] / "docs" / "first_hour.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Of the page's runs of half a minute: a few steps.
QUICK = ["--set", "rl.steps=2", "--set", "irl.every=2", "--set", "evaluation.every=0"]


@pytest.fixture
def started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(init._POLICY, "steps", 30)
    return tmp_path


def commands(block, monkeypatch):
    for line in block.strip().splitlines():
        name, *arguments = shlex.split(line)
        if name == "cd":
            monkeypatch.chdir(Path.cwd() / arguments[0])
        else:
            assert name == "sps"
            more = QUICK if arguments[0] == "train" else []
            assert sps(*arguments, *more) == 0, line


def test_the_page_can_be_followed(started, monkeypatch, capsys):
    for kind, text in BLOCKS:
        named = re.match(r"# (\S+\.(?:py|yaml))\n", text)
        if kind == "sh":
            commands(text, monkeypatch)
        elif named:
            Path(named[1]).write_text(text)
        elif kind == "json":
            Path("rows.jsonl").write_text(text)
        else:
            assert kind == "yaml"
            Path("mixed.yaml").write_text(f"model: {{path: model}}\n{text}  template: plain\n")
        if named and named[1] == "use.py":
            capsys.readouterr()
            exec(compile(text, "use.py", "exec"), {})
            steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()[-2:]]
            assert steps == ["1", "2"]
    folder = started / "first"
    assert Path.cwd() == folder
    for run in ("starter", "capitals", "python"):
        kinds = [r["kind"] for r in read_records(folder / "runs" / run / "metrics.jsonl")]
        assert kinds[-1] == "done"
    for run in ("starter", "python"):
        assert (folder / "runs" / run / "report.html").stat().st_size > 10_000
    rows = [{"asked": f"The capital of {c}, as JSON", "capital": c} for c in ("A", "B", "C")]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert sps("data", "mixed.yaml") == 0
    said = capsys.readouterr().out
    # 5 and 3 rows at 2 to 1: 5 and 2; 2 of them held out.
    assert re.search(r"^train +5 ", said, re.MULTILINE)
    assert "You answer in JSON.\n\nQuestion: The capital of Italy, as JSON" in said
    assert 'Answer: {"city": "Rome"}\n\nQuestion: The capital of' in said


def test_data_says_counts_lengths_repeats_and_prompts(started, monkeypatch, capsys):
    assert sps("init", "mine") == 0
    monkeypatch.chdir(started / "mine")
    with open("rows.jsonl", "a") as file:
        row = {"id": "again", "question": "Two numbers that make more than 7", "target": 7}
        file.write(json.dumps(row) + "\n")
    capsys.readouterr()
    assert sps("data", "recipe.yaml", "--show", "2") == 0
    said = capsys.readouterr().out
    assert re.search(r"^train +6 +9 +9 +9$", said, re.MULTILINE)
    assert "left out again" in said
    assert said.count("\nids: ") == said.count("\n--- above-") == 2
    assert "Question: Two numbers that make more than" in said


def test_a_folder_in_use_is_not_written_to(started, capsys):
    (started / "mine").mkdir()
    (started / "mine" / "notes.txt").write_text("mine")
    assert sps("init", "mine") == 2
    assert "it is there already, and not empty" in capsys.readouterr().err
    assert [p.name for p in (started / "mine").iterdir()] == ["notes.txt"]
