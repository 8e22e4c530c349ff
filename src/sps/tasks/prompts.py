"""Prompt templates: a question in, what the policy is shown out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sps.data.messages import TURNS

Prompt = str | list[dict[str, str]]
Shots = tuple[tuple[str, str], ...]  # questions and their answers, shown before the question

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LETTER = "Please reason step by step, and put the letter of the right option within \\boxed{}."
TAGGED = "Please reason step by step, and put your final answer between <answer> and </answer>."


@dataclass(frozen=True)
class Preface:
    """What a recipe puts before every question."""

    system: str = ""  # for rows without a system message of their own
    shots: Shots = ()


def plain(question: str, instruction: str, system: str, shots: Shots = ()) -> Prompt:
    """The question, the instruction, and nothing that a tokenizer would have to know."""

    def asked(text: str) -> str:
        return f"Question: {text}\n{instruction}\n\nAnswer:" if instruction else _bare(text)

    head = f"{system}\n\n" if system else ""
    shown = "".join(f"{asked(q)} {a}\n\n" for q, a in shots)
    return f"{head}{shown}{asked(question)}"


def _bare(question: str) -> str:
    return f"Question: {question}\n\nAnswer:"


def qwen_boxed(question: str, instruction: str, system: str, shots: Shots = ()) -> Prompt:
    """ChatML with the instruction as the system message, as Qwen's maths models were trained."""

    def asked(text: str) -> str:
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    shown = "".join(f"{asked(q)}{a}<|im_end|>\n" for q, a in shots)
    return f"<|im_start|>system\n{system or instruction}<|im_end|>\n{shown}{asked(question)}"


def r1(question: str, instruction: str, system: str, shots: Shots = ()) -> Prompt:
    """A dialogue for base models whose answer opens inside a <think> section."""
    rules = system or (
        "Below, an assistant answers a user. It first thinks the question through between <think> "
        f"and </think>, and then writes its answer. {instruction}"
    )
    shown = "".join(f"User: {q}\n\nAssistant: {a}\n\n" for q, a in shots)
    return f"{rules}\n\n{shown}User: {question}\n\nAssistant: <think>\n"


def chat(question: str, instruction: str, system: str, shots: Shots = ()) -> Prompt:
    """Messages for the tokenizer's own chat template. A data set's system message says all there is
    to say; without one the instruction follows the question."""

    def asked(text: str) -> dict[str, str]:
        follows = f"\n\n{instruction}" if instruction and not system else ""
        return {"role": "user", "content": text + follows}

    shown = [m for q, a in shots for m in (asked(q), {"role": "assistant", "content": a})]
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *shown, asked(question)]


TEMPLATES: Mapping[str, Callable[[str, str, str, Shots], Prompt]] = {
    "qwen_boxed": qwen_boxed,
    "r1": r1,
    "plain": plain,
    "chat": chat,
}


def render(
    template: str,
    question: str,
    instruction: str,
    meta: Mapping[str, Any],
    preface: Preface = Preface(),
) -> Prompt:
    """The prompt of a problem; `meta['system']` is the system message its data set came with.

    The recipe's stands where there is none, and beside the instruction, not instead of it. What a
    row says before its question follows the recipe's examples.
    """
    own, turns = meta.get("system") or "", meta.get(TURNS, ())
    if turns and template == "chat":  # as they are: the instruction is the question's alone
        *before, last = _rendered(template, question, instruction, own, preface)
        return [*before, *turns, last]  # type: ignore[list-item]
    said = [turn["content"] for turn in turns]
    shots = (*preface.shots, *zip(said[::2], said[1::2], strict=True))
    return _rendered(template, question, instruction, own, Preface(preface.system, shots))


def _rendered(template: str, question: str, instruction: str, own: str, preface: Preface) -> Prompt:
    make, shots = TEMPLATES[template], preface.shots
    if own or not preface.system:
        return make(question, instruction, own, shots)
    if template == "chat":
        said = make(question, instruction, "", shots)
        return [{"role": "system", "content": preface.system}, *said]  # type: ignore[list-item]
    if template == "plain":  # which has the instruction beside the question
        return make(question, instruction, preface.system, shots)
    return make(question, instruction, f"{preface.system}\n{instruction}".strip(), shots)
