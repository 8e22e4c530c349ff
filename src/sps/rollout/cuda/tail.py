"""The tail of a rollout, when too few sequences are left to keep a GPU busy: tokens are guessed.

A step reads all weights however few rows it has, so that a row may as well bring several tokens:
the latest, and guesses of what follows. A draw depends on (seed, problem, sample, position) alone,
so that a guess is not accepted or refused by chance: it is what is drawn, or it is not. What is
drawn is the same with and without guesses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from sps.rollout.cuda.guesses import Group
from sps.rollout.native.sampling import row_keys, uniforms
from sps.types import Completion, Request

if TYPE_CHECKING:
    from sps.rollout.cuda.rows import Rows, Wanted

ROWS = 16  # or fewer are left: the tail
DEPTH = 4  # guesses a row and step
_PAYS = 1.2  # tokens of a row and step; with fewer, plain steps are faster
_MEMORY = 32  # steps that their mean looks back
_FINISHED = 16  # texts of a group that guesses are looked for in, beside those under way


class Tail:
    """Guesses for the rows that are left, and whether guessing pays."""

    def __init__(self, rows: Rows, requests: list[Request]):
        self.rows, self.requests = rows, requests
        self.finished: dict[int, list[np.ndarray]] = {}  # by the problem's index
        self.texts: dict[Wanted, tuple[Group, int]] = {}  # of the rows; empty outside the tail
        self.uniforms: dict[Wanted, list[float]] = {}
        self.mean = 2.0  # tokens a row and step

    def begins(self, waiting: deque[Wanted]) -> bool:
        """Whether the next step is to check guesses."""
        return not waiting and self.rows.count <= ROWS and self.mean >= _PAYS

    def keep(self, finished: list[Completion]) -> None:
        """After plain steps: what is done, in which guesses may be found."""
        self.texts.clear()
        for done in finished:
            self.finished.setdefault(done.index, []).append(done.ids)
        if finished:
            left = {self.requests[request].index for request in self.rows.prompts}
            self.finished = {i: t[-_FINISHED:] for i, t in self.finished.items() if i in left}

    def advance(self, replay: Callable[[], None]) -> list[Completion]:
        """One step of every row, for which there are pages; completions of the rows that end."""
        rows, room = self.rows, self.rows.room
        if list(self.texts) != rows.wanted:  # the first step, or some had to wait for pages
            self._read()
        guess_BD = np.full((rows.count, DEPTH), -1)
        before_B = rows.age_B - DEPTH - 1  # they have grown for this step
        for guess_D, want, own in zip(guess_BD, rows.wanted, before_B.tolist(), strict=True):
            group, text = self.texts[want]
            found = group.guess(text, self.uniforms[want][own + 1 : own + 1 + DEPTH])
            guess_D[: len(found)] = found
        room.guess_BD[: rows.count] = torch.from_numpy(guess_BD).to(room.guess_BD.device)
        replay()
        report_BX = room.report_BX[: rows.count].cpu().numpy()
        rows.age_B = report_BX[:, 0].copy()
        taken_B = rows.age_B - before_B
        self.mean += (taken_B.mean() - self.mean) / _MEMORY
        for want, drawn_W, taken in zip(rows.wanted, report_BX[:, 2:], taken_B, strict=True):
            group, text = self.texts[want]
            group.extend(text, drawn_W[:taken].tolist())
        if report_BX[:, 1].all():
            return []
        done = rows.harvest(self.requests)
        self.texts = {want: self.texts[want] for want in rows.wanted}
        return done

    def _read(self) -> None:
        """The texts of the rows that are left, and of their groups."""
        rows, state = self.rows, self.rows.room.state
        groups: dict[int, Group] = {}
        self.texts.clear()
        slots = torch.tensor(rows.slots, device=state.ids_ST.device)
        own_B = state.own[: rows.count].tolist()
        ids_BT = state.ids_ST[slots, : max(own_B) + 1].cpu().numpy()
        for want, ids_T, own in zip(rows.wanted, ids_BT, own_B, strict=True):
            request = self.requests[want.request]
            if request.index not in groups:
                groups[request.index] = Group(request.prompt_ids)
                for ids in self.finished.get(request.index, ()):
                    groups[request.index].add(ids)
            group = groups[request.index]
            self.texts[want] = group, group.add(ids_T[: own + 1])
            key = row_keys(rows.sampling.seed, np.array([request.index]), np.array([want.sample]))
            self.uniforms[want] = uniforms(key, 0, rows.sampling.max_new_tokens)[0].tolist()
