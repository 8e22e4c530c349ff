"""Which option does an answer name?"""

import json
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sps.data.load import load_problems
from sps.errors import UserError
from sps.tasks.choice import Choice, judge, labelled, options
from sps.types import Problem


def format_options(question, texts, labels="ABCDEFGHIJ"):
    lines = [f"{label}) {text}" for label, text in zip(labels, texts, strict=False)]
    return f"{question}\n\n" + "\n".join(lines)


FOUR = Problem("q", format_options("Which?", ["a dog", "a cat", "12", "none"]), "B")


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{B}",
        r"\boxed{b}",
        r"\boxed{\text{(B)}}",
        r"\boxed{B) a cat}",
        r"\boxed{a cat}",
        r"First \boxed{A}, no: \boxed{B}",
        "The answer is (B).",
        "The correct answer is **B**.",
        "Answer: B",
        "answer is B, because option A is a dog",
        "So option B it is.",
        "B",
        "B. a cat",
        "I thought about it.\n(B)",
    ],
)
def test_judge_reads_the_option(text):
    verdict = judge(FOUR, text)
    assert (verdict.kind, verdict.answer) == ("correct", "B")


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        (r"\boxed{C}", "wrong", "another option"),
        (r"\boxed{G}", "wrong", "there is no such option"),
        (r"\boxed{A, B}", "unparsed", "several options named: A, B"),
        ("The answer is a whole number.", "unparsed", "no option named"),
        ("I cannot say.", "unparsed", "no option named"),
        ("", "unparsed", "empty"),
    ],
)
def test_judge_says_why_not(text, kind, detail):
    verdict = judge(FOUR, text)
    assert (verdict.kind, verdict.detail, verdict.reward) == (kind, detail, 0.0)


def test_numbered_options_as_in_arc():
    problem = Problem("q", format_options("Which?", ["sun", "air", "gas", "dead"], "1234"), "4")
    assert judge(problem, r"\boxed{4}").kind == "correct"
    assert judge(problem, "The answer is 4).").kind == "correct"
    assert judge(problem, "The answer is 3").kind == "wrong"


NUMBERS = Problem("q", format_options("How many?", ["2", "4", "4.5", "-16"]), "B")


@pytest.mark.parametrize(
    ("text", "kind", "label"),
    [
        (r"\boxed{4}", "correct", "B"),
        (r"\boxed{$4$}", "correct", "B"),
        ("The answer is 4.", "correct", "B"),
        ("The answer is **4**", "correct", "B"),
        ("Let me see.\n4", "correct", "B"),
        ("The answer is 4.5.", "wrong", "C"),
        (r"\boxed{45}", "unparsed", ""),
        (r"\boxed{16}", "unparsed", ""),  # no option says 16: one says -16
        (r"\boxed{7}", "wrong", "7"),
        ("The answer is 4 of them.", "wrong", "4"),
    ],
)
def test_a_number_among_letters_is_the_option_that_says_it(text, kind, label):
    verdict = judge(NUMBERS, text)
    assert (verdict.kind, verdict.answer) == (kind, label)


def test_gold_answers_are_the_labels_of_options():
    answers = ["B", "b", "(B)", "B.", " a  cat", "12"]
    problems = [replace(FOUR, answer=answer) for answer in answers]
    assert [p.answer for p in labelled(problems, "x")] == ["B"] * 5 + ["C"]


@pytest.mark.parametrize("answer", ["E", "1", "a horse", "AB"])
def test_a_gold_answer_that_is_no_option_is_refused(answer):
    message = rf"task\.data: f\.csv: row 2: the answer '{answer}' is none of the options A, B, C, D"
    with pytest.raises(UserError, match=message):
        labelled([FOUR, replace(FOUR, answer=answer)], "task.data: f.csv")


COLOURS = ["dog", "red1", "car", "12"]
SHOWN = "Which is colour number 1?\n\nA) dog\nB) red1\nC) car\nD) 12"
ONE = {"question": "Which is colour number 1?", "choices": COLOURS, "answer": "B"}


def read(tmp_path, *rows):
    """As `task: {type: choice}` reads a file of these rows."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return labelled(load_problems(str(path)), "task.data: rows.jsonl")


@pytest.mark.parametrize(
    ("answer", "label"),
    [("B", "B"), ("red1", "B"), (0, "A"), (1, "B"), (3, "D"), ([2], "C"), ("12", "D"), (" c", "C")],
)
def test_the_options_of_a_row_are_put_into_its_question(answer, label, tmp_path):
    (problem,) = read(tmp_path, ONE | {"answer": answer})
    assert (problem.question, problem.answer) == (SHOWN, label)
    assert options(problem.question) == dict(zip("ABCD", COLOURS, strict=True))
    assert SHOWN in Choice({"test": [problem]}, "plain").prompt(problem)
    assert judge(problem, f"\\boxed{{{label}}}").kind == "correct"
    # An integer that counts is not read as what an option says; what is read stays as it is.
    assert labelled([problem], "x")[0].question == SHOWN


@pytest.mark.parametrize(
    ("row", "question", "label"),
    [
        ({"choices": ["4", "2", "1"], "answer": 1}, "?\n\nA) 4\nB) 2\nC) 1", "B"),
        ({"choices": ["4", "2", "1"], "answer": "1"}, "?\n\nA) 4\nB) 2\nC) 1", "C"),
        ({"options": ["x", "y"], "answer": "B", "choices": "x, y"}, "?\n\nA) x\nB) y", "B"),
        ({"choices": ["A) x", "B. y"], "answer": 1}, "?\n\nA) x\nB. y", "B"),
        ({"choices": ["1.5", "2.5"], "answer": "A"}, "?\n\nA) 1.5\nB) 2.5", "A"),
        # Statements in the question are not its options.
        (
            {"question": "True?\n1. a\n2. b", "choices": ["1 alone", "both"], "answer": 1},
            "True?\n1. a\n2. b\n\nA) 1 alone\nB) both",
            "B",
        ),
        # These are.
        ({"question": "?\nA) x\nB) y", "choices": ["x", "y"], "answer": "B"}, None, "B"),
        ({"question": "?\nA) x\nB) y", "choices": ["y", "x"], "answer": "x"}, None, "A"),
        ({"question": "?\n1) x\n2) y", "choices": ["x", "y"], "answer": 1}, None, "1"),
        ({"question": "?\n1) x\n2) y", "answer": 1}, None, "1"),
        ({"question": "?\nA) x\nB) y", "choices": ["A", "B"], "answer": "B"}, None, "B"),
        ({"question": "?\nA) x\nB) y", "choices": [1, 2], "answer": "B"}, None, "B"),
    ],
)
def test_where_options_come_from(row, question, label, tmp_path):
    row = {"question": "?"} | row
    (problem,) = read(tmp_path, row)
    assert (problem.question, problem.answer) == (question or row["question"], label)


def of_arc(labels, key, texts=("sun", "air", "3"), **row):
    """A row as ai2_arc has it: its labels are letters or numbers, and answerKey is one of them."""
    return {"question": "?", "choices": {"text": [*texts], "label": [*labels]}, **row} | (
        {"answerKey": key} if "answer" not in row else {}
    )


@pytest.mark.parametrize(
    ("row", "label"),
    [
        (of_arc("ABC", "B"), "B"),
        (of_arc("123", "2"), "B"),
        (of_arc("123", "3"), "C"),  # the label 3, which is not the option that says 3
        (of_arc("123", "1", ("2", "1", "3")), "A"),
        (of_arc([1, 2, 3], 2), "B"),
        (of_arc("123", "air"), "B"),
        (of_arc("CBA", "C"), "A"),  # by its place
        (of_arc(["(A)", "B.", "c"], "C"), "C"),
        (of_arc("ABC", None, answer="3"), "C"),  # none is labelled 3, one says it
    ],
)
def test_options_with_labels_of_their_own_are_read_as_arc_has_them(row, label, tmp_path):
    (problem,) = read(tmp_path, row)
    texts = row["choices"]["text"]
    assert problem.answer == label
    assert options(problem.question) == dict(zip("ABC", texts, strict=True))
    # The hub's Parquet has the same struct; what is read stays as it is.
    path = tmp_path / "rows.parquet"
    key, value = next((k, row[k]) for k in ("answer", "answerKey") if k in row)
    pq.write_table(pa.Table.from_pylist([row | {key: str(value)}]), path)
    (same,) = labelled(load_problems(str(path)), "x")
    assert (same.question, same.answer) == (problem.question, label)


@pytest.mark.parametrize(
    ("shown", "row", "label"),
    [
        ("?\nA) sun\nB) air\nC) 3", of_arc("ABC", "C"), "C"),
        ("?\n1) sun\n2) air\n3) 3", of_arc("123", "2"), "2"),
        ("?\nA) sun\nB) sun\nC) 3", of_arc("ABC", "B", ("sun", "sun", "3")), "B"),
        ("?\nA) sun\nB) 3\nC) air", of_arc("123", "2"), "C"),  # another order, and other labels
        # By what an option says, not by a label that looks like it: the label 3 says 2.
        ("?\n1) 3\n2) 1\n3) 2", of_arc("ABC", "A", ("3", "1", "2")), "1"),
        ("?\n1) 2\n2) 3\n3) 1", of_arc("ABC", "A", ("3", "1", "2")), "2"),
        ("?\nA) sun\nB) 3\nC) air", of_arc("ABC", "A"), "A"),  # both say so
        ("?\nA) sun\nB) 3\nC) air", of_arc("ABC", "air"), "C"),
        ("?\nA) sun\nB) 12\nC) 1", of_arc("123", "3", ("sun", "1", "12")), "B"),
        # A label that the question alone has is the question's.
        ("?\nA) sun\nB) air\nC) 3", of_arc("123", "B"), "B"),
        ("?\nA) sun\nB) 3\nC) air", of_arc("123", "B"), "B"),
        ("?\n1) sun\n2) air\n3) 3", of_arc("ABC", None, answer=2), "2"),
        # Labels that cannot be read are not needed.
        ("?\nA) sun\nB) air\nC) 3", of_arc("AAB", "B"), "B"),
        ("?\nA) sun\nB) air\nC) 3", of_arc("", "B"), "B"),
        ("?\nA) sun\nB) air", of_arc("AAB", "B", ("x", "y", "z")), "B"),
        ("?\nA) sun\nB) air", of_arc("", "air", ()), "B"),
    ],
)
def test_labels_of_options_that_a_question_shows_are_the_ones_it_shows(shown, row, label, tmp_path):
    (problem,) = read(tmp_path, row | {"question": shown})
    assert (problem.question, problem.answer) == (shown, label)


@pytest.mark.parametrize(
    ("texts", "answer", "label"),
    [(("x + y", "x * y"), "2", "A"), (("<", "=", ">"), "1", "C"), (("10%", "10"), "2", "A")],
)
def test_options_that_differ_by_a_sign_alone_are_told_apart(texts, answer, label, tmp_path):
    shown = [f"{a}) {text}" for a, text in zip("ABC", reversed(texts), strict=False)]
    row = of_arc("123"[: len(texts)], answer, texts)
    (problem,) = read(tmp_path, row | {"question": "\n".join(["Which?", *shown])})
    assert problem.answer == label


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (of_arc("ABC", "D"), "the answer 'D' is none of the labels A, B, C of question"),
        (of_arc("123", "B"), "the answer 'B' is none of the labels 1, 2, 3"),
        (of_arc("123", None, answer=0), "the answer '0' is none of the labels 1, 2, 3"),
        (of_arc("ABC", None, answer=3), "the answer '3' is none of the labels A, B, C"),
        (of_arc("AB", "A"), "has 3 options and the labels A, B; give each"),
        (of_arc("AAB", "A"), "has 3 options and the labels A, A, B; give each"),
        (of_arc("ABC", "A") | {"choices": {"text": ["x", "y"]}}, "has no options"),
    ],
)
def test_labels_that_name_no_option_are_refused(row, message, tmp_path):
    with pytest.raises(UserError, match=rf"task\.data: rows\.jsonl: row 1: .*{message}"):
        read(tmp_path, row)


@pytest.mark.parametrize(
    ("shown", "row", "means"),
    [
        (
            "?\nA) air\nB) sun\nC) 3",
            of_arc("ABC", "A"),
            "B of the options in the question, and A by",
        ),
        (
            "?\n1) sun\n2) air\n3) 3",
            of_arc("234", "2"),
            "1 of the options in the question, and 2 by",
        ),
        (
            "?\n1) 3\n2) 1\n3) 2",
            of_arc("ABC", "3", ("3", "1", "2")),
            "1 of .*, and 3 by its own labels",
        ),
        (
            "?\nA) 3\nB) sun\nC) sun",
            of_arc("123", "1", ("sun", "sun", "3")),
            "B or C of the options in the question;",
        ),
    ],
)
def test_an_answer_that_means_two_options_is_refused(shown, row, means, tmp_path):
    says = f"the answer '.' of question rows-000000 is {means}"
    with pytest.raises(UserError, match=f"row 1: by the labels under .* {says}"):
        read(tmp_path, row | {"question": shown})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"choices": None},
            r"question rows-000001 has no options: .* no lines 'A\) \.\.\.' at its end, and no "
            "list of texts under choices or options in its row; write them at the end",
        ),
        ({"choices": []}, "has no options"),
        ({"choices": [1, 2]}, "has no options"),
        ({"choices": ["x", " "]}, "the 2 options of .* cannot be lettered; give 2 to 10 texts"),
        ({"choices": ["x"]}, "the 1 options .* cannot be lettered"),
        ({"choices": [f"x{i}" for i in range(11)]}, "the 11 options .* cannot be lettered"),
        ({"choices": ["x", "y\nA) z"]}, "cannot be lettered; .* with a line like 'A"),
        ({"answer": 4}, "the answer 4 is none of the 4 options .* counts from 0; give 0 to 3, or"),
        ({"answer": -1}, "the answer -1 is none of the 4 options"),
        ({"answer": "4"}, "the answer '4' is none of the options A, B, C, D"),
    ],
)
def test_rows_without_readable_options_are_refused(row, message, tmp_path):
    with pytest.raises(UserError, match=rf"task\.data: rows\.jsonl: row 2: .*{message}"):
        read(tmp_path, ONE, ONE | row)


def test_ten_options_are_read():
    problem = Problem("q", format_options("Which?", [f"thing {i}" for i in range(10)]), "J")
    assert list(options(problem.question)) == list("ABCDEFGHIJ")
    assert judge(problem, r"\boxed{J}").kind == "correct"


def test_options_are_the_last_run_of_labels():
    question = "Consider:\nA) is true.\nI) is not.\n\nA) first\nB) second"
    assert options(question) == {"A": "first", "B": "second"}


@pytest.mark.parametrize("run", ["answer" + ":" * 5980, "answer" + "\n" * 5980, "answer: " * 750])
def test_a_long_run_of_signs_is_read_in_no_time(run):
    began = time.process_time()
    assert judge(FOUR, run + "z").kind == "unparsed"
    assert judge(Problem("q", "\n" * 6000 + FOUR.question, "B"), "B").kind == "correct"
    # Milliseconds; the square of 6000 signs took a second and more.
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(
    ("text", "kind", "label"),
    [
        ("<think>The answer is C. Hmm, wait...</think>\n\nB", "correct", "B"),
        ("<think>At first the answer is B. But no...</think>\n\nC", "wrong", "C"),
        (r"<think>Maybe \boxed{B}? No.</think> The answer is C.", "wrong", "C"),
        (r"<think>Maybe \boxed{C}? No.</think> **B) a cat**", "correct", "B"),
        ("<think>One.</think> C <think>The answer is C, no.</think> B", "correct", "B"),
        ("<think>The answer is B.</think>", "correct", "B"),
        ("<think>The answer is B.</think> That is all.", "correct", "B"),
        # An answer that names no option is not replaced by a guess from the thoughts.
        (r"<think>\boxed{B} or so.</think> \boxed{}", "unparsed", ""),
        (r"<think>\boxed{B} or so.</think> \boxed{A, B}", "unparsed", ""),
        (r"<think>The answer is B.</think> \boxed{a horse}", "unparsed", ""),
    ],
)
def test_a_thought_counts_only_where_no_option_is_named_after_it(text, kind, label):
    verdict = judge(FOUR, text)
    assert (verdict.kind, verdict.answer) == (kind, label)


def test_cut_off_is_truncated():
    assert judge(FOUR, r"\boxed{B}", finished=False).kind == "truncated"
    assert judge(FOUR, r"\boxed{B} and", finished=False, cut="judge").kind == "correct"


def test_prompt_asks_for_the_letter():
    prompt = Choice({"test": [FOUR]}, "plain").prompt(FOUR)
    assert "B) a cat" in prompt
    assert "the letter of the right option within \\boxed{}" in prompt
