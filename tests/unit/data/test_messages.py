"""Rows whose question is a list of chat messages."""

import pytest

from sps.data.duplicates import drop_duplicates
from sps.data.load import Columns, to_problems
from sps.data.messages import read_messages
from sps.data.overlap import find_overlaps
from sps.errors import UserError


def say(*messages):
    """'u: hello' and so on."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[m[0]], "content": m[3:]} for m in messages]


@pytest.mark.parametrize(
    ("messages", "question", "system", "before"),
    [
        (("u: q",), "q", "", ()),
        (("s: be brief", "u: q"), "q", "be brief", ()),
        (("u: one", "a: two", "u: q"), "q", "", ("u: one", "a: two")),
        (("s: x", "u: q", "a: the reply"), "q", "x", ()),  # a reply is no part of the prompt
        (
            ("s: x", "u: 1", "a: 2", "u: 3", "a: 4", "u: q", "a: r"),
            "q",
            "x",
            ("u: 1", "a: 2", "u: 3", "a: 4"),
        ),
    ],
)
def test_the_last_of_the_user_asks_and_what_came_before_is_kept(messages, question, system, before):
    found = read_messages(say(*messages), "row")
    assert (found.question, found.system) == (question, system)
    assert [*found.turns] == say(*before)


def test_content_in_parts_of_text_is_joined():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert read_messages([{"role": "user", "content": parts}], "row").question == "one two"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "its messages hold none of the user"),
        (say("s: x"), "its messages hold none of the user"),
        (say("s: x", "a: y"), "its messages hold none of the user"),
        (say("u: a", "u: b"), "not the user's and the assistant's in turn"),
        (say("a: b", "u: a"), "not the user's and the assistant's in turn"),
        (say("u: a", "s: b"), "not the user's and the assistant's in turn"),
        (say("u: a", "t: b", "u: c"), "message 2 has the role 'tool'"),
        (["hello"], "message 1 has the role None"),
        ([{"role": "user", "content": None}], "message 1 has no text for its content: None"),
        ([{"role": "user", "content": [{"image": "x"}]}], "message 1 has no text"),
    ],
)
def test_what_is_no_conversation_is_said(messages, message):
    with pytest.raises(UserError, match=rf"^task\.data: rows: row 3: .*{message}"):
        read_messages(messages, "task.data: rows: row 3")


def test_equal_questions_after_other_words_are_others():
    rows = [
        {"prompt": say("u: I have 2.", "a: Yes?", "u: And half of it?"), "answer": "1"},
        {"prompt": say("u: I have 4.", "a: Yes?", "u: And half of it?"), "answer": "2"},
        {"prompt": say("u: I have 4.", "a: Yes?", "u: And half of it?"), "answer": "2"},
    ]
    problems = to_problems(rows, Columns(), "rows", "task.data")
    kept, dropped = drop_duplicates(problems)
    assert [p.answer for p in kept] == ["1", "2"]
    assert [(d.id, d.first) for d in dropped] == [("rows-000002", "rows-000001")]
    found = find_overlaps(problems[:2], {"test": problems[2:]})
    assert [(o.train_id, o.kind) for o in found] == [("rows-000001", "exact")]


def test_the_whole_row_stays_the_judges(tmp_path):
    row = {"prompt": say("s: x", "u: 1", "a: 2", "u: q"), "want": [3]}
    (problem,) = to_problems([row], Columns(), "rows", "task.data", whole=True)
    assert problem.meta == {**row, "system": "x", "earlier_turns": say("u: 1", "a: 2")}
    assert problem.answer == ""
