"""The tail of a rollout, when too few sequences are left to keep a GPU busy: tokens are guessed.

A step reads all weights however few rows it has, so that a row may as well bring several tokens:
the latest, and guesses of what follows. A draw depends on (seed, problem, sample, position) alone,
so that a guess is not accepted or refused by chance: it is what is drawn, or it is not. What is
drawn is the same with and without guesses, but for the rounding of products with more rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from sps.rollout.cuda.guesses import Group
from sps.types import Completion, Request

if TYPE_CHECKING:
    from sps.rollout.cuda.rows import Rows, Wanted

ROWS = 32  # or fewer are left: the tail
DEPTH = 3  # guesses a row and step
_PAYS = 1.3  # tokens of a row and step; with fewer, plain steps are faster
_MEMORY = 32  # steps that their mean looks back
_FINISHED = 16  # texts of a group that guesses are looked for in, beside those under way


class Tail:
    """Guesses for the rows that are left, and whether guessing pays."""

    def __init__(self, rows: Rows, requests: list[Request], speculate: bool):
        self.rows, self.requests = rows, requests
        self.finished: dict[int, list[np.ndarray]] = {}  # by index of the problem, as are groups
        self.groups: dict[int, Group] = {}
        self.texts: dict[Wanted, tuple[Group, int]] = {}  # of the rows; empty outside the tail
        self.mean = 2.0 if speculate else 0.0  # tokens a row and step

    def begins(self, waiting: deque[Wanted]) -> bool:
        """Whether the next step is to check guesses."""
        return self.pays and not waiting and self.rows.count <= ROWS

    @property
    def reach(self) -> int:
        """Tokens that a row may go on by in one step."""
        return DEPTH + 1

    @property
    def pays(self) -> bool:
        """Whether guesses are worth their time; once they are not, there are no more."""
        return self.mean >= _PAYS

    def prepare(self, waiting: deque[Wanted]) -> None:
        """While plain steps are under way: look through what is done, when the tail is near."""
        self.texts.clear()
        if not self.pays or waiting or self.rows.count > 2 * ROWS:
            self.groups.clear()
            return
        for request in self.rows.prompts:
            index = self.requests[request].index
            if index not in self.groups:
                self.groups[index] = Group(self.requests[request].prompt_ids)
            for ids in self.finished.pop(index, ()):
                self.groups[index].add(ids.tolist())

    def keep(self, finished: list[Completion]) -> None:
        """After plain steps: what is done, of problems of which something is not."""
        if finished and self.pays:
            for done in finished:
                self.finished.setdefault(done.index, []).append(done.ids)
            left = {self.requests[request].index for request in self.rows.prompts}
            self.finished = {i: t[-_FINISHED:] for i, t in self.finished.items() if i in left}

    def advance(self, replay: Callable[[], None]) -> list[Completion]:
        """One step of every row, for which there are pages; completions of the rows that end."""
        rows, room = self.rows, self.rows.room
        if list(self.texts) != rows.wanted:  # the first step, or some had to wait for pages
            self._read()
        guess_BD = np.full((rows.count, DEPTH), -1)
        before_B = rows.age_B - self.reach  # they have grown for this step
        for guess_D, (group, text) in zip(guess_BD, self.texts.values(), strict=True):
            found = group.guess(text, DEPTH)
            guess_D[: len(found)] = found
        room.guess_BD[: rows.count].copy_(torch.from_numpy(guess_BD))
        replay()
        for group in self.groups.values():  # while the step is under way
            group.look()
        report_BX = room.report_BX[: rows.count].cpu().numpy()
        rows.age_B = report_BX[:, 0].copy()
        taken_B = rows.age_B - before_B
        if taken_B.any():  # a row that ended with its first token takes none
            self.mean += (taken_B[taken_B > 0].mean() - self.mean) / _MEMORY
        drawn = zip(self.texts.values(), report_BX[:, 2:].tolist(), taken_B.tolist(), strict=True)
        for (group, text), ids, taken in drawn:
            group.extend(text, ids[:taken])
        if report_BX[:, 1].all():
            return []
        done = rows.harvest(self.requests)
        self.texts = {want: self.texts[want] for want in rows.wanted}
        return done

    def _read(self) -> None:
        """The texts of the rows that are left."""
        rows, state = self.rows, self.rows.room.state
        self.prepare(deque())
        slots = torch.tensor(rows.slots, device=state.ids_ST.device)
        own_B = state.own[: rows.count].tolist()
        ids_BT = state.ids_ST[slots, : max(own_B) + 1].tolist()
        for want, ids, own in zip(rows.wanted, ids_BT, own_B, strict=True):
            group = self.groups[self.requests[want.request].index]
            self.texts[want] = group, group.add(ids[: own + 1])
