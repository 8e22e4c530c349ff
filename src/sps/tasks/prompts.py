"""Prompt templates: a question in, what the policy is shown out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Prompt = str | list[dict[str, str]]

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LETTER = "Please reason step by step, and put the letter of the right option within \\boxed{}."
TAGGED = "Please reason step by step, and put your final answer between <answer> and </answer>."


def plain(question: str, instruction: str, system: str) -> Prompt:
    """The question, the instruction, and nothing that a tokenizer would have to know."""
    head = f"{system}\n\n" if system else ""
    asked = f"{question}\n{instruction}" if instruction else question
    return f"{head}Question: {asked}\n\nAnswer:"


def qwen_boxed(question: str, instruction: str, system: str) -> Prompt:
    """ChatML with the instruction as the system message, as Qwen's maths models were trained."""
    return (
        f"<|im_start|>system\n{system or instruction}<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def r1(question: str, instruction: str, system: str) -> Prompt:
    """A dialogue for base models whose answer opens inside a <think> section."""
    rules = system or (
        "Below, an assistant answers a user. It first thinks the question through between <think> "
        f"and </think>, and then writes its answer. {instruction}"
    )
    return f"{rules}\n\nUser: {question}\n\nAssistant: <think>\n"


def chat(question: str, instruction: str, system: str) -> Prompt:
    """Messages for the tokenizer's own chat template. A data set's system message says all there is
    to say; without one the instruction follows the question."""
    if system:
        return [{"role": "system", "content": system}, {"role": "user", "content": question}]
    asked = f"{question}\n\n{instruction}" if instruction else question
    return [{"role": "user", "content": asked}]


TEMPLATES: Mapping[str, Callable[[str, str, str], Prompt]] = {
    "qwen_boxed": qwen_boxed,
    "r1": r1,
    "plain": plain,
    "chat": chat,
}


def render(template: str, question: str, instruction: str, meta: Mapping[str, Any]) -> Prompt:
    """The prompt of a problem; `meta['system']` is the system message its data set came with."""
    return TEMPLATES[template](question, instruction, meta.get("system") or "")
