"""Problems from files, whatever their columns are called; errors that name the fix."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sps.data.load import Columns, load_problems
from sps.errors import UserError

ROWS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": 4}]


def write(tmp_path, name, rows):
    path = tmp_path / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        keys = list(rows[0])
        lines = [",".join(keys), *(",".join(str(r[k]) for k in keys) for r in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(
            pa.Table.from_pylist([{k: str(v) for k, v in r.items()} for r in rows]), path
        )
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_every_format_gives_the_same_problems(tmp_path, name):
    problems = load_problems(write(tmp_path, name, ROWS))
    assert [(p.id, p.question, p.answer) for p in problems] == [
        ("a-000000", "1+1?", "2"),
        ("a-000001", "2+2?", "4"),
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path, name):
    path = Path(write(tmp_path, name, ROWS))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [p.question for p in load_problems(str(path))] == ["1+1?", "2+2?"]


def test_the_schema_of_openr1_loads_as_it_is(tmp_path):
    row = {
        "data_source": "",
        "prompt": [
            {"content": "Think first.", "role": "system"},
            {"content": "What is 6*7?", "role": "user"},
        ],
        "target": [{"content": "<think>\n42</think>", "role": "assistant"}],
        "ability": "math",
        "reward_model": {"ground_truth": "42", "style": "rule"},
        "extra_info": {"index": 0, "split": "default"},
    }
    path = tmp_path / "openr1.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    (problem,) = load_problems(str(path))
    assert (problem.question, problem.answer) == ("What is 6*7?", "42")
    assert problem.meta["system"] == "Think first."


def test_columns_can_be_named_and_go_into_structs(tmp_path):
    rows = [{"uid": "a7", "body": {"text": "1+1?"}, "gold": {"value": "2"}}]
    path = write(tmp_path, "x.jsonl", rows)
    (problem,) = load_problems(path, Columns("body.text", "gold.value", "uid"))
    assert (problem.id, problem.question, problem.answer) == ("a7", "1+1?", "2")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("48/2 = <<48/2=24>>24 in May, so 72 in all.\n#### 72", "72"),
        ("so\n#### -1,234", "-1234"),
        ("so\n#### (1, 200)", "(1, 200)"),  # a pair, not a number with its thousands apart
        ("#5 and 3,500", "#5 and 3,500"),
    ],
)
def test_the_answer_of_a_worked_solution_is_what_follows_its_hashes(tmp_path, answer, gold):
    (problem,) = load_problems(write(tmp_path, "x.jsonl", [{"question": "q", "answer": answer}]))
    assert problem.answer == gold


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (ROWS, Columns(question="problems"), r"no column 'problems'; did you mean 'problem'\?"),
        (ROWS, Columns(answer="gold"), r"It has: problem, answer.*task\.columns\.answer"),
        ([{"a": "x", "b": "y"}], None, r"no column that looks like the question\. It has: a, b\."),
        ([*ROWS, {"problem": "3?", "answer": ""}], None, "row 3 has no answer"),
        ([*ROWS, {"problem": "3?", "answer": "so 3 ####"}], None, "row 3 has no answer"),
        ([*ROWS, {"problem": None, "answer": "1"}], None, "row 3 has no question"),
        ([{**r, "id": "same"} for r in ROWS], None, "rows 1 and 2 have the same id 'same'"),
        (
            [{"prompt": [{"role": "system", "content": "x"}], "answer": "1"}],
            None,
            "none of the user",
        ),
    ],
)
def test_wrong_columns_are_errors_that_name_the_right_ones(tmp_path, rows, columns, message):
    path = write(tmp_path, "x.jsonl", rows)
    with pytest.raises(UserError, match=message):
        load_problems(path, columns)


def test_files_that_cannot_be_read(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"problem": "x", "answer": "1"}\n{"problem": \n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        load_problems(str(bad))
    with pytest.raises(UserError, match="there is no file"):
        load_problems(str(tmp_path / "absent.jsonl"))
    with pytest.raises(UserError, match="is a folder"):
        load_problems(str(tmp_path))
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UserError, match=r"only \.jsonl, \.json, \.csv, \.parquet"):
        load_problems(str(tmp_path / "x.txt"))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no rows"):
        load_problems(str(tmp_path / "empty.jsonl"))
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(UserError, match="cannot be read"):
        load_problems(str(tmp_path / "x.parquet"))
