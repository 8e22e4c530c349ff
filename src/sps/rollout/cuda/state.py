"""What a decode step on a GPU reads and writes beside keys and values, and how these are counted.

Axes: B rows being decoded, S slots, T own tokens, D guesses, W = D + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

PAGE = 128  # tokens of a page of the cache


@dataclass(frozen=True)
class State:
    """What a step reads and writes, a number or flag a row; addresses never change."""

    token: Tensor  # the latest one
    key: Tensor  # of its random numbers
    own: Tensor  # its number among the row's own tokens
    slot: Tensor  # where its tokens and the list of its pages are
    prompt: Tensor
    live: Tensor
    limit: Tensor
    ended: Tensor  # by an end token, not by the limit
    ids_ST: Tensor
    logprobs_ST: Tensor

    @classmethod
    def empty(cls, size: int, new: int, device: torch.device) -> State:
        """No row is live."""
        kinds = {"token": torch.int64, "key": torch.int64, "ended": torch.bool}
        rows = {
            field.name: torch.zeros(size, dtype=kinds.get(field.name, torch.int32), device=device)
            for field in fields(cls)
            if not field.name.endswith("_ST")
        }
        ids_ST = torch.zeros(size, new, dtype=torch.int32, device=device)
        return cls(**rows, ids_ST=ids_ST, logprobs_ST=torch.zeros(size, new, device=device))

    def rows(self) -> dict[str, Tensor]:
        """Everything that rows have, by name; slots keep what was drawn."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name[-3:] != "_ST"}

    def __getitem__(self, some: slice) -> State:
        return replace(self, **{name: tensor[some] for name, tensor in self.rows().items()})

    def with_guesses(self, guess_BD: Tensor) -> State:
        """Each row W times, side by side: as it is, and with each guess of what follows drawn.

        A guess is -1 where there is none; then, and past a row's limit, nothing is done.
        """
        ahead_W = torch.arange(guess_BD.shape[1] + 1, dtype=self.own.dtype, device=self.own.device)
        token_BW = torch.cat([self.token[:, None], guess_BD], 1)
        own_BW = self.own[:, None] + ahead_W
        live_BW = (self.live > 0)[:, None] & (token_BW >= 0) & (own_BW + 1 < self.limit[:, None])
        wide = {
            name: tensor[:, None].expand_as(live_BW).contiguous().flatten()
            for name, tensor in self.rows().items()
        }
        wide["token"] = token_BW.clamp(min=0).flatten()
        wide["live"] = live_BW.to(self.live.dtype).flatten()
        # One that does nothing still reads the numbers of its pages, and must find some.
        wide["own"] = torch.where(live_BW, own_BW, self.own[:, None]).flatten()
        return replace(self, **wide)


def pages_of(tokens: int) -> int:
    """How many pages hold this many tokens."""
    return -(-tokens // PAGE)


def bucket(count: int, most: int) -> int:
    """The least number of rows a step is captured for that holds `count`: 8, 12, 16, 24, 32, ..."""
    size = 8
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, most)
