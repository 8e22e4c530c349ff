"""A row whose question is a list of chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sps.errors import UserError
from sps.types import Problem

TURNS = "earlier_turns"  # the key of a problem's meta
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Conversation:
    """What a row asks, and what was said before."""

    question: str  # the last message of the user; a reply to it is no part of the prompt
    system: str = ""
    turns: tuple[dict[str, str], ...] = ()  # of the user and the assistant in turn, before that

    @property
    def meta(self) -> dict[str, Any]:
        """What a problem knows of it besides the question."""
        return {"system": self.system, **({TURNS: [*self.turns]} if self.turns else {})}


def read_messages(messages: list[Any], where: str) -> Conversation:
    """The parts of a conversation; one that is none is an error that begins with `where`."""
    said = [_message(m, i, where) for i, m in enumerate(messages, 1)]
    system = said.pop(0)["content"] if said and said[0]["role"] == "system" else ""
    while said and said[-1]["role"] == "assistant":
        said.pop()
    if not said:
        raise UserError(f"{where}: its messages hold none of the user")
    for i, message in enumerate(said):
        if message["role"] != ("user", "assistant")[i % 2]:
            raise UserError(
                f"{where}: its messages are not the user's and the assistant's in turn, after one "
                "of the system or none; mend or remove that row"
            )
    return Conversation(said[-1]["content"], system, tuple(said[:-1]))


def asked_of(problem: Problem) -> str:
    """All that a problem asks: its question, after what was said before it."""
    turns = problem.meta.get(TURNS, ())
    return "\n".join([*(turn["content"] for turn in turns), problem.question])


def _message(value: Any, number: int, where: str) -> dict[str, str]:
    role = value.get("role") if isinstance(value, Mapping) else None
    if role not in _ROLES:
        raise UserError(
            f"{where}: message {number} has the role {role!r}, not one of {', '.join(_ROLES)}"
        )
    content = value.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise UserError(f"{where}: message {number} has no text for its content: {content!r:.60}")
    return {"role": str(role), "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
