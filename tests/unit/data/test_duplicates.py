"""Questions that occur twice are used once, and it is said."""

import pytest

from sps.data.duplicates import describe, drop_duplicates
from sps.types import Problem


def problems(*pairs: tuple[str, str]) -> list[Problem]:
    return [Problem(f"p{i}", question, answer) for i, (question, answer) in enumerate(pairs)]


def rows(*pairs: tuple[str, str]) -> list[list[str]]:
    return [d.row() for d in drop_duplicates(problems(*pairs))[1]]


def test_different_questions_stay_as_they_are():
    different = problems(("What is 1?", "1"), ("What is 2?", "1"), ("?", "1"), ("!", "1"))
    assert drop_duplicates(different) == (different, [])
    assert describe([], "x") == ""


@pytest.mark.parametrize(
    ("again", "answer"),
    [
        ("Find $x + 1$.", "\\frac{1}{2}"),
        ("find \\(x+1\\)", "\\frac12"),
        ("FIND  x  + 1 !", "$\\frac{1}{2}$"),
        ("Find x 1", "frac12"),
    ],
)
def test_the_same_letters_and_answer_are_one_question(again, answer):
    assert rows(("Find $x + 1$.", "\\frac{1}{2}"), (again, answer)) == [["p1", "p0", "same"]]


def test_another_answer_contradicts_the_first():
    assert rows(("Find x.", "1"), ("find x", "2"), ("Find x!", "3"), ("Find x", "1")) == [
        ["p1", "p0", "contradicts"],
        ["p3", "p0", "same"],
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f on k > 0", "f on k < 0"),
        ("sin(60)", "sin(-60)"),
        ("sin(60)", "sin(\u221260)"),
        ("round 3.5", "round 35"),
        ("what is 5", "what is 5!"),
    ],
)
def test_a_sign_tells_questions_apart_where_the_answers_differ(one, other):
    assert rows((one, "1"), (other, "2")) == []


def test_a_hyphen_or_another_minus_is_no_other_question():
    assert rows(("non-negative 2-x", "1"), ("nonnegative 2\u2212x", "2")) == [
        ["p1", "p0", "contradicts"]
    ]


def test_what_was_dropped_is_said_with_counts_and_ids():
    pairs = [("a", "1"), ("b", "1"), *([("a", "1")] * 6), ("b", "2")]
    assert describe(drop_duplicates(problems(*pairs))[1], "f.jsonl") == (
        "task.data: f.jsonl: 7 questions are there more than once and used once: left out p2, p3, "
        "p4, p5, p6 and 2 more. 1 have another answer than the first: p1 and p8; mend them"
    )
