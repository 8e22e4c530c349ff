"""Answers of any type reach the judge of a user's own task, in its worker process."""

import json
import logging
from dataclasses import replace

import pytest
from test_python import judged, made

from sps.data.splits import digest

ANSWERS = [7, 2.5, True, None, [1, "a", {"b": None}], ["one"], {"x": [1.5], "y": {}}, "text"]


def test_a_judge_gets_each_answer_as_its_row_has_it(tmp_path):
    rows = [{"question": f"{i}?", "answer": answer} for i, answer in enumerate(ANSWERS)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = (
        "def judge(problem, text):\n"
        "    same = type(problem.answer) is type(problem.meta['answer'])\n"
        "    return same and repr(problem.answer) == text\n"
    )
    task = made(tmp_path, code, data=str(data), template="plain", validation=1, test=1)
    problems = [p for split in ("train", "validation", "test") for p in task.problems(split)]
    assert sorted(repr(p.answer) for p in problems) == sorted(map(repr, ANSWERS))
    for problem in problems:
        right, wrong = judged(task, repr(problem.answer), "other", problem=problem)
        assert (right.kind, wrong.kind) == ("correct", "wrong")


@pytest.mark.parametrize("answer", [(1, (2, 3)), {1: "one", (2, 3): ["x"]}, [], None])
def test_a_file_may_make_answers_that_no_row_could_hold(tmp_path, answer):
    code = (
        "from sps.types import Problem\n"
        "def problems(split):\n"
        f"    return [Problem(split, 'q?', {answer!r})]\n"
        f"def judge(problem, text):\n    return problem.answer == {answer!r}\n"
    )
    task = made(tmp_path, code)
    (verdict,) = judged(task, "x")
    assert verdict.kind == "correct"
    # And a run can tell them from others.
    own, other = (
        {"train": [replace(p, answer=a) for p in task.problems("train")]} for a in (answer, 1)
    )
    assert digest(own, whole=True) != digest(other, whole=True)


@pytest.mark.parametrize(
    ("compared", "warned"), [("problem.answer", 1), ("str(problem.answer)", 0)]
)
def test_a_text_that_is_compared_with_a_number_is_warned_of(
    tmp_path, caplog, monkeypatch, compared, warned
):
    monkeypatch.setattr(logging.root.manager, "disable", 0)  # as a judge's worker leaves it
    data = tmp_path / "rows.jsonl"
    rows = ({"question": f"{i} + 40?", "answer": i + 40} for i in range(3))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = f"def judge(problem, text):\n    return text.strip() == {compared}\n"
    made(tmp_path, code, data=str(data), validation=1, test=1)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == warned
    assert all("does not find '4" in text and "str(problem.answer)" in text for text in said)


OTHER = "a, b = map(float, text.split('x'))\n    return a * b == float(problem.answer)"
EXACT = "a, b = map(int, text.split('x'))\n    return a * b == problem.answer"


@pytest.mark.parametrize(
    ("name", "body", "warned"),
    [
        # Right is another thing than the answer: a product, say. No type would change that.
        ("rows.jsonl", EXACT, ""),
        ("rows.jsonl", OTHER, ""),
        ("rows.csv", OTHER, ""),
        ("rows.jsonl", "return text.strip() == problem.answer", "str(problem.answer)"),
        ("rows.csv", "return text.strip() == problem.answer", ""),
        ("rows.csv", "return text.isdigit() and int(text) == problem.answer", "float(problem"),
        ("rows.csv", "return text != '' and float(text) == problem.answer", "float(problem"),
        ("rows.jsonl", "return text.isdigit() and int(text) == problem.answer", ""),
        ("rows.csv", "return text != '' and float(text) == float(problem.answer)", ""),
        ("words.csv", "return text == problem.answer.upper()", ""),
        ("words.csv", "return text != '' and float(text) == float(problem.answer) + 1", ""),
    ],
)
def test_only_a_comparison_of_types_is_warned_of(tmp_path, caplog, monkeypatch, name, body, warned):
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    data = tmp_path / name
    answers = ["one", "inf", "9" * 400] if name == "words.csv" else [40, 41, 42]
    if data.suffix == ".csv":
        lines = [f"{i} + 40?,{answer}\n" for i, answer in enumerate(answers)]
        data.write_text("question,answer\n" + "".join(lines))
    else:
        rows = [{"question": f"{i} + 40?", "answer": answer} for i, answer in enumerate(answers)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = f"def judge(problem, text):\n    {body}\n"
    if "split" in body:
        code = code.replace("    a, b", "    if 'x' not in text: return False\n    a, b")
    made(tmp_path, code, data=str(data), validation=1, test=1)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == bool(warned)
    assert all("does not find '4" in text and warned in text for text in said)
