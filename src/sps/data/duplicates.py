"""Questions that a data set holds more than once, under whatever ids: only the first is used.

Otherwise one copy is trained on and another is held out, and the score is of what was learnt by
heart. Questions are equal that have the same letters and digits (`$x+1$`, `\\(x + 1\\)`) and the
same answer. With another answer they contradict each other, unless a sign tells them apart:
`k > 0` and `k < 0` are two questions, and both stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sps.data.messages import asked_of
from sps.data.overlap import letters
from sps.types import Problem

_SHOWN = 5  # ids in a sentence; the record has all
_SIGNS = re.compile(r"[^\W_]+|[-+*/^=<>|!%≤≥≠]|(?<=\d)\.(?=\d)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_SPELT = str.maketrans("\u2212\u2013\u2014\u00d7\u00b7\u00f7", "---**/")


@dataclass(frozen=True)
class Duplicate:
    """A question that is left out, and the earlier one that it repeats."""

    id: str
    first: str  # id of the one that is used
    contradicts: bool  # the answers differ

    def row(self) -> list[str]:
        """For the record."""
        return [self.id, self.first, "contradicts" if self.contradicts else "same"]


def drop_duplicates(problems: Sequence[Problem]) -> tuple[list[Problem], list[Duplicate]]:
    """The problems without those that repeat an earlier one, and what was left out."""
    kept, dropped = [], []
    seen: dict[str, list[Problem]] = defaultdict(list)  # by letters and digits
    for problem in problems:
        asked = asked_of(problem)
        alike = seen[letters(asked) or asked]
        answer, question = _signs(problem.answer_text), _signs(asked)
        same = next((p for p in alike if _signs(p.answer_text) == answer), None)
        first = same or next((p for p in alike if _signs(asked_of(p)) == question), None)
        if first is not None:
            dropped.append(Duplicate(problem.id, first.id, contradicts=same is None))
        else:
            kept.append(problem)
            alike.append(problem)
    return kept, dropped


def describe(dropped: Sequence[Duplicate], source: str) -> str:
    """A few sentences for the record; none where nothing was dropped."""
    if not dropped:
        return ""
    text = (
        f"task.data: {source}: {len(dropped)} questions are there more than once and used once: "
        f"left out {_some([d.id for d in dropped])}"
    )
    against = [f"{d.first} and {d.id}" for d in dropped if d.contradicts]
    if against:
        text += f". {len(against)} have another answer than the first: {_some(against)}; mend them"
    return text


def _signs(text: str) -> str:
    """Letters, digits and signs of arithmetic: what is left of a text when its spelling is not."""
    return "".join(_SIGNS.findall(_HYPHEN.sub("", text.lower().translate(_SPELT))))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
