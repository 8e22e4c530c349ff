"""A task is problems, a prompt for each, and a judge of answers."""

from __future__ import annotations

from typing import Protocol

from sps.types import Problem, Verdict


class Task(Protocol):
    """What the loop needs to know of a task."""

    name: str

    def problems(self, split: str) -> list[Problem]:
        """The problems of 'train', 'validation' or 'test', always in the same order."""
        ...

    def prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        """What the policy is shown: plain text, or chat messages for its tokenizer's template."""
        ...

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """The verdict on one completion. Never raises on what a model may write."""
        ...
