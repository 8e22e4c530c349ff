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
