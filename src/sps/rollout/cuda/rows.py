"""The host's view of the rows being decoded: who they are, which pages they hold, what is done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sps.rollout.cuda.state import PAGE, pages_of
from sps.rollout.native.sampling import row_keys
from sps.types import Completion, Request, Sampling

if TYPE_CHECKING:
    from sps.rollout.cuda.room import Room  # needs triton, which CPUs may lack


@dataclass(frozen=True)
class Wanted:
    """A sample that is to be drawn."""

    request: int  # position in the list of requests
    sample: int


@dataclass(frozen=True)
class Prompt:
    """A prompt in memory, for as long as some row sees it."""

    place: int  # of its length
    pages: list[int]


class Rows:
    """Row i of the room's state belongs to wanted[i]; the youngest are the last."""

    def __init__(self, room: Room, sampling: Sampling):
        self.room, self.sampling = room, sampling
        self.wanted: list[Wanted] = []
        self.slots: list[int] = []
        self.held: list[list[int]] = []  # pages of a row's own tokens
        self.age_B = np.zeros(0, dtype=np.int64)  # steps each row has gone
        self.free_slots = list(range(room.size))[::-1]
        self.free_places = list(range(room.size))[::-1]
        self.free_pages = list(range(1, room.pages + 1))[::-1]
        self.prompts: dict[int, Prompt] = {}  # by request
        self.first_logits: dict[int, Tensor] = {}
        self.tokens, self.ended = 0, 0  # of the rows that are done
        room.state.live.zero_()

    @property
    def count(self) -> int:
        """Rows that are not known to be done."""
        return len(self.wanted)

    def admit(self, waiting: deque[Wanted], requests: list[Request]) -> list[Wanted]:
        """The samples whose rows and prompts should find pages up to their end; one at least.

        Few at a time are not worth running their prompts, unless they are the last.
        """
        # Tokens drawn so far for each row that ended: what a row that may be cut short is worth.
        drawn = self.tokens + int(self.age_B.sum())
        mean = min(drawn // self.ended, self.sampling.max_new_tokens) if self.ended else None
        each = pages_of(max(1, self.sampling.max_new_tokens if mean is None else mean))
        left = self.room.pages - sum(len(p.pages) for p in self.prompts.values())
        left -= sum(max(len(pages), each) for pages in self.held)
        seen = set(self.prompts)
        number = 0
        for want in list(waiting)[: self.room.size - self.count]:
            prompt = requests[want.request].prompt_ids
            cost = each + (0 if want.request in seen else pages_of(len(prompt)))
            if cost > left and (number or self.count):
                break
            left, number = left - cost, number + 1
            seen.add(want.request)
        if number < min(len(waiting), self.count // 7):
            return []
        return [waiting.popleft() for _ in range(number)]

    def take_prompt(self, request: int, tokens: int) -> Prompt:
        """Room for a prompt that is run now."""
        pages = [self.free_pages.pop() for _ in range(pages_of(tokens))]
        self.prompts[request] = Prompt(self.free_places.pop(), pages)
        return self.prompts[request]

    def add(self, take: list[Wanted], requests: list[Request]) -> None:
        """New rows behind those that are there."""
        state, at = self.room.state, self.count
        new = slice(at, at + len(take))
        index = np.array([requests[w.request].index for w in take])
        keys = row_keys(self.sampling.seed, index, np.array([w.sample for w in take]))
        slots = [self.free_slots.pop() for _ in take]
        prompts = [self.prompts[w.request] for w in take]

        def put(target: Tensor, values: Any) -> None:
            values = torch.as_tensor(values, dtype=target.dtype)
            target[new] = values.to(target.device, non_blocking=True)

        put(state.key, keys.view(np.int64))
        put(state.slot, slots)
        put(state.prompt, [p.place for p in prompts])
        state.own[new], state.ended[new], state.live[new] = 0, False, 1
        state.limit[new] = self.sampling.max_new_tokens
        self._write_pages([(slot, 0, p.pages) for slot, p in zip(slots, prompts, strict=True)])
        self.wanted += take
        self.slots += slots
        self.held += [[] for _ in take]
        self.age_B = np.concatenate([self.age_B, np.zeros(len(take), dtype=np.int64)])

    def grow(self, steps: int, waiting: deque[Wanted]) -> None:
        """Pages for the next steps of every row; where too few are left, the youngest rows wait.

        They are drawn again later: the same tokens, since a draw depends on the sample alone.
        """
        while True:
            reach_B = np.minimum(self.age_B + steps, self.sampling.max_new_tokens)
            short_B = -(-reach_B // PAGE)
            short_B -= np.fromiter(map(len, self.held), dtype=np.int64, count=self.count)
            if short_B.sum() <= len(self.free_pages):
                break
            waiting.appendleft(self.wanted[-1])
            self._keep(np.arange(self.count - 1))
        writes = []
        for row in np.flatnonzero(short_B > 0).tolist():
            pages = [self.free_pages.pop() for _ in range(int(short_B[row]))]
            prompt = self.prompts[self.wanted[row].request]
            writes.append((self.slots[row], len(prompt.pages) + len(self.held[row]), pages))
            self.held[row] += pages
        self._write_pages(writes)
        self.age_B += steps

    def _write_pages(self, writes: list[tuple[int, int, list[int]]]) -> None:
        """Page numbers into the lists of slots, each from some place on."""
        flat = [(slot, at + i, page) for slot, at, pages in writes for i, page in enumerate(pages)]
        if flat:
            table = self.room.pages_SM
            slot, at, page = torch.tensor(flat).t().to(table.device)
            table[slot, at] = page.int()

    def harvest(self, requests: list[Request]) -> list[Completion]:
        """Completions of the rows that are done; the others move up."""
        state = self.room.state
        live = state.live[: self.count].cpu().numpy() > 0
        if live.all():
            return []
        over = np.flatnonzero(~live)
        rows = torch.from_numpy(over).to(state.token.device)
        slots = state.slot[rows].long()
        size = (state.own[rows] + 1).tolist()
        width = max(size)
        ids = state.ids_ST[slots, :width].cpu().numpy()
        logprobs = state.logprobs_ST[slots, :width].cpu().numpy()
        ended = state.ended[rows].tolist()
        done = []
        for i, row in enumerate(over):
            want = self.wanted[row]
            done.append(
                Completion(
                    requests[want.request].index,
                    want.sample,
                    ids[i, : size[i]],
                    logprobs[i, : size[i]],
                    ended[i],
                )
            )
        self.tokens, self.ended = self.tokens + sum(size), self.ended + len(over)
        self._keep(np.flatnonzero(live))
        return done

    def _keep(self, rows: np.ndarray) -> None:
        """Only these rows, in their order; what the others held is free."""
        state = self.room.state
        where = torch.from_numpy(rows).to(state.token.device)
        for tensor in state.rows().values():
            moved = tensor[where]
            tensor[: len(rows)] = moved
        state.live[len(rows) :] = 0
        kept = set(rows.tolist())
        for row in range(self.count):
            if row not in kept:
                self.free_slots.append(self.slots[row])
                self.free_pages += self.held[row]
        self.wanted = [self.wanted[i] for i in rows]
        self.slots = [self.slots[i] for i in rows]
        self.held = [self.held[i] for i in rows]
        self.age_B = self.age_B[rows]
        needed = {w.request for w in self.wanted}
        for request in [r for r in self.prompts if r not in needed]:
            prompt = self.prompts.pop(request)
            self.free_places.append(prompt.place)
            self.free_pages += prompt.pages
            self.first_logits.pop(request, None)
