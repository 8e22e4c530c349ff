"""Problems from files, whatever their columns are called; errors that name the fix."""

import json
import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sps.data import load
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
        ([{**r, "id": "same"} for r in ROWS], None, "have the same id 'same'; name another column"),
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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", "id;question;words\n1;q?;3\n", "separated by ';'; separate them by ','"),
        ("x.csv", "id\tquestion\n1\tq?\n", r"separated by '\\t'; separate them by ','"),
        ("x.jsonl", "id,question\n1,q?\n", r"line 1 is not JSON .* like CSV: name the file \.csv"),
        ("x.jsonl", '[\n {"question": "q"}\n]\n', r"JSON array: name the file \.json$"),
        ("x.jsonl", '[{"question": "q"}]\n', r"JSON array: name the file \.json$"),
        ("x.jsonl", '{"question", "q"}\n', r"line 1 is not JSON \([^;]*\)$"),
    ],
)
def test_a_file_of_another_kind_says_what_it_looks_like(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        load_problems(str(tmp_path / name))


def test_a_path_without_its_suffix_is_not_looked_for_on_the_hub(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root.manager, "disable", 0)  # as a judge's worker leaves it
    monkeypatch.setattr(load, "_from_hub", lambda name, *rest: iter(ROWS))
    assert len(load_problems("data/rows")) == 2  # no folder of that name: a hub id
    assert not caplog.records
    (tmp_path / "data").mkdir()
    load_problems("data/rows")
    assert "no file data/rows here; looking for it on the hub" in caplog.text
    write(tmp_path / "data", "rows.jsonl", ROWS)
    with pytest.raises(UserError, match=r"no file data/rows; did you mean data/rows\.jsonl\?"):
        load_problems("data/rows")


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


GOOD = '{"problem": "1+1?", "answer": "2"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "\\ud800?", "answer": "1"}', "row 2 has characters in its question"),
        ('{"problem": "a?", "answer": "\\udfff"}', "row 2 has characters in its answer"),
        ('{"problem": "a\\u0000?", "answer": "1"}', "row 2 has characters in its question"),
        ('{"problem": "a?", "answer": NaN}', "row 2 has nan where its answer should be"),
        ('{"problem": "a?", "answer": -Infinity}', "row 2 has -inf where its answer should be"),
        ('{"problem": "a?", "answer": "NaN"}', "row 2 has NaN where its answer should be"),
        ('{"problem": "a?", "answer": ["1", "2"]}', "row 2 has a list where its answer should be"),
        ('{"problem": {"a": 1}, "answer": "1"}', "row 2 has a dict where its question should be"),
        ('{"problem": [{"role": "user"}], "answer": "1"}', "row 2: message 1 has no text"),
        ('{"problem": [], "answer": "1"}', "row 2: its messages hold none of the user"),
        ('{"problem": "a", "answer": ' + "1" * 5000 + "}", "line 2 is not JSON"),
        ('{"problem": ' + "[" * 100_000, "line 2 is nested too deeply"),
    ],
    ids=lambda value: value[:32],
)
def test_rows_that_no_task_can_use_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(UserError, match=message):
        load_problems(str(path))


def test_a_line_without_an_end_is_not_read_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sps.data.load._LINE", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD + '{"problem": "' + "x" * 2000)
    with pytest.raises(UserError, match="line 2 has more than"):
        load_problems(str(path))
    path = tmp_path / "b.json"
    path.write_text(json.dumps([{"problem": "x" * 2000, "answer": "1"}]))
    with pytest.raises(UserError, match=r"row 1 has more than .* in its question"):
        load_problems(str(path))


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/dev/zero")
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(UserError, match="no plain file"):
            load_problems(str(tmp_path / name))


def test_a_csv_line_may_end_before_columns_that_are_not_needed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,problem,answer,notes\na,1+1?,2\nb,2+2?,4,easy\n  \n , ,\t,\n\n")
    one, two = load_problems(str(path))
    assert (one.id, one.answer, one.meta["notes"]) == ("a", "2", "")
    assert (two.id, two.answer, two.meta["notes"]) == ("b", "4", "easy")
    for whole in (False, True):  # also of a task of one's own
        for lines, lacking in (("a,1+1?", "answer"), ("a", "question")):
            path.write_text(f"id,problem,answer,notes\nb,2+2?,4,easy\n{lines}\n")
            with pytest.raises(UserError, match=rf"a\.csv: row 2 has no {lacking}; mend or remove"):
                load_problems(str(path), whole=whole)
    path.write_text("problem,answer,id\n2+2?,4,b\n1+1?,2\n")
    with pytest.raises(UserError, match="row 2 has no id; mend or remove"):
        load_problems(str(path))


def test_csv_cells_have_a_column_each(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("problem,answer\n1+1?,2\n1,5+1?,3\n")
    with pytest.raises(UserError, match="line 3 has more cells than there are columns"):
        load_problems(str(path))
    path.write_text("problem,answer,answer\n1+1?,2,3\n")
    with pytest.raises(UserError, match="two columns have the same name"):
        load_problems(str(path))


def test_a_parquet_file_of_endless_rows_is_refused(tmp_path):
    # Run lengths: 30 million rows of one value take under 100 kilobytes.
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000_000, pa.int8()), ["q"])
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("problem", column.type)])) as file:
        for _ in range(10):
            file.write_table(pa.table({"problem": column}))
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(UserError, match="more than 20 million rows"):
        load_problems(str(tmp_path / "a.parquet"))


ANY = [7, 2.5, True, None, [1, "a", {"b": None}], ["one"], {"x": [1.5]}, "  as text ", "0"]


@pytest.mark.parametrize("first", range(len(ANY)))
def test_answers_of_any_type_stay_as_they_are_where_the_judge_is_the_users(tmp_path, first):
    answers = [*ANY[first:], *ANY[:first]]  # whichever of them is in the first row
    rows = [{"question": f"{i}?", "answer": answer} for i, answer in enumerate(answers)]
    found = [p.answer for p in load_problems(write(tmp_path, "x.jsonl", rows), whole=True)]
    want = [answer.strip() if isinstance(answer, str) else answer for answer in answers]
    assert found == want
    assert [*map(type, found)] == [*map(type, want)]


def test_a_cell_of_a_table_that_is_empty_is_no_answer_of_any_type(tmp_path):
    path = tmp_path / "a.jsonl"
    for bad, message in (("NaN", "has nan"), ('""', "has no answer")):
        path.write_text(GOOD + f'{{"problem": "q", "answer": {bad}}}')
        with pytest.raises(UserError, match=f"row 2 {message}"):
            load_problems(str(path), whole=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "rows.json",
            b'{"problem": "?"}\n{"problem": "!"}',
            r"values: one a line belong in a \.jsonl",
        ),
        (
            "rows.json",
            b'{"data": [{"problem": "?"}], "version": 1}',
            "it has lists under data: write",
        ),
        ("rows.json", b'{"problem": "?"}', r"not a list of objects, \[\{\.\.\.\}, \{\.\.\.\}\]$"),
        ("rows.json", b"[1, 2]", r"not a list of objects, \[\{\.\.\.\}, \{\.\.\.\}\]$"),
        ("rows.json", b"[1, 2", "Expecting ',' delimiter"),
        (
            "rows.csv",
            "problem,answer\nZähl,1\n".encode("latin-1"),
            r"no UTF-8 \(line 2, byte 16\); save it",
        ),
        (
            "rows.csv",
            "problem,answer\nx,1\n".encode("utf-16"),
            r"no UTF-8 \(line 1, byte 0\); save it as UTF-8",
        ),
        # Far into a file, where it is read in many pieces; of a row of 12 bytes the fifth.
        (
            "rows.csv",
            b"a,b\n" + b"1234,678901\n" * 9999 + b"1234\xe4 ",
            r"line 10001, byte 119996\)",
        ),
        ("rows.jsonl", b'{"a": "\xc3\xa4"}\n' * 9999 + b"\xe4 ", r"line 10000, byte 119988\)"),
        ("rows.json", b'[{"a": "\xc3\xa4"},\n{"a": "\xe4"}]', r"line 2, byte 21\)"),
        ("rows.jsonl", b'{"a": 1}\n\xc3', r"no UTF-8 \(its end\)"),
    ],
)
def test_a_file_of_another_form_is_told_with_what_to_do(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"task\.data: .*{name} cannot be read: .*{message}"):
        load_problems(str(path))


def test_a_parquet_file_with_a_text_that_is_not_utf8_has_no_line_to_name(tmp_path):
    ends, letters = pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xe4 ")
    asked = pa.Array.from_buffers(pa.string(), 1, [None, ends, letters])
    pq.write_table(pa.table({"problem": asked, "answer": ["1"]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet cannot be read: .* \(one of its texts\)"):
        load_problems(str(tmp_path / "rows.parquet"))
