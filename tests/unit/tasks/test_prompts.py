"""System messages and examples in every template."""

import pytest

from sps.tasks.prompts import TEMPLATES, Preface, render

BOTH = Preface("Be brief.", (("1 + 1?", "2"), ("2 + 2?", "4")))
WANT = {
    "plain": (
        "Be brief.\n\nQuestion: 1 + 1?\nBox it.\n\nAnswer: 2\n\nQuestion: 2 + 2?\nBox it.\n\n"
        "Answer: 4\n\nQuestion: 3 + 3?\nBox it.\n\nAnswer:"
    ),
    "qwen_boxed": (
        "<|im_start|>system\nBe brief.\nBox it.<|im_end|>\n"
        "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\n3 + 3?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "r1": (
        "Be brief.\nBox it.\n\nUser: 1 + 1?\n\nAssistant: 2\n\nUser: 2 + 2?\n\nAssistant: 4\n\n"
        "User: 3 + 3?\n\nAssistant: <think>\n"
    ),
    "chat": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?\n\nBox it."},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2?\n\nBox it."},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3 + 3?\n\nBox it."},
    ],
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_system_message_and_examples_come_before_the_question(template):
    assert render(template, "3 + 3?", "Box it.", {}, BOTH) == WANT[template]


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_message_of_a_row_goes_before_that_of_the_recipe(template):
    own, other = {"system": "Think."}, Preface("Be brief.")
    assert render(template, "q?", "Box it.", own, other) == render(template, "q?", "Box it.", own)


def test_no_instruction_leaves_no_gap():
    assert render("plain", "q?", "", {}) == "Question: q?\n\nAnswer:"
    assert render("chat", "q?", "", {}) == [{"role": "user", "content": "q?"}]


TURNS = {
    "earlier_turns": [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Good day."},
    ]
}
AFTER = {
    "plain": "Question: Hello.\nBox it.\n\nAnswer: Good day.\n\nQuestion: 3 + 3?",
    "qwen_boxed": "user\nHello.<|im_end|>\n<|im_start|>assistant\nGood day.<|im_end|>\n",
    "r1": "User: Hello.\n\nAssistant: Good day.\n\nUser: 3 + 3?",
}


@pytest.mark.parametrize("template", AFTER)
def test_what_a_row_says_before_its_question_follows_the_examples(template):
    found = render(template, "3 + 3?", "Box it.", TURNS, BOTH)
    assert 0 < found.index("2 + 2?") < found.index(AFTER[template])
    assert found.endswith(WANT[template][-20:])


def test_in_a_chat_what_was_said_before_stays_as_it_is():
    found = render("chat", "3 + 3?", "Box it.", {**TURNS, "system": ""}, BOTH)
    assert found == [*WANT["chat"][:-1], *TURNS["earlier_turns"], WANT["chat"][-1]]
    own = render("chat", "q?", "Box it.", {**TURNS, "system": "Think."})
    assert own == [
        {"role": "system", "content": "Think."},
        *TURNS["earlier_turns"],
        {"role": "user", "content": "q?"},  # the system message says all there is to say
    ]
