"""The memory of the engine on a GPU: pages of keys and values, the rows' state, captured steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sps.rollout.cuda import tail
from sps.rollout.cuda.state import PAGE, State, bucket, pages_of
from sps.rollout.native.attention import PREFILL
from sps.types import Request, Sampling

if TYPE_CHECKING:
    from sps.rollout.cuda.decoder import Decoder  # needs triton, which CPUs may lack

_SHARE = 0.6  # of the free memory that pages may take; the rest is for graphs and for training


def free_bytes(device: torch.device) -> float:
    """Memory that one large tensor could have; gaps between others, which torch holds, are none."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def new_pool() -> Any:
    """Memory that captured graphs may share."""
    return torch.cuda.graph_pool_handle()


def captured(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A CUDA graph of the step; the step must do no harm when it runs for warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # a graph that is thrown away during a capture ends it
    try:
        with torch.cuda.graph(graph, pool=pool):
            step()
    finally:
        if collects:
            gc.enable()
    return graph.replay


@dataclass(frozen=True)
class Size:
    """Rows at once, tokens of the longest prompt and of an answer, and the pages of all rows."""

    rows: int
    longest: int
    new: int
    pages: int

    @classmethod
    def of(cls, requests: Sequence[Request], sampling: Sampling, max_rows: int) -> Size:
        """What these requests want."""
        longest = -(-max(len(r.prompt_ids) for r in requests) // 64) * 64
        rows, new = min(max_rows, sum(len(r.samples) for r in requests)), sampling.max_new_tokens
        pages = rows * pages_of(new) + min(rows, len(requests)) * pages_of(longest)
        return cls(bucket(rows, max_rows), longest, new, pages)

    @property
    def one(self) -> int:
        """Pages of a single row and its prompt."""
        return pages_of(self.longest) + pages_of(self.new)

    def with_also(self, other: Size) -> Size:
        """For either, not for both at once: many short rows and few long ones are not many long."""
        return Size(
            max(self.rows, other.rows),
            max(self.longest, other.longest),
            max(self.new, other.new),
            max(self.pages, other.pages),
        )


class Room:
    """Pages, and `size` rows that may point to them; addresses never change.

    Rows take pages as they grow and give them back when they end, so that a short one costs no
    more than its length. There are as many as are asked for, or as `most` and free memory allow,
    and enough for one row.
    """

    def __init__(self, decoder: Decoder, asked: Size, most: float):
        device = decoder.embed.weight.device
        self.asked, self.size = asked, asked.rows
        self.at_once = max(1, PREFILL // asked.longest)
        each = 2 * len(decoder.layers) * decoder.shared * PAGE * decoder.width * 2
        free = _SHARE * free_bytes(device) // each
        self.pages = int(max(asked.one, min(asked.pages, most, free)))
        # Page 0 is nobody's: prompts shorter than others of their batch write there.
        shape = (self.pages + 1, decoder.shared, PAGE, decoder.width)
        pair = torch.zeros(len(decoder.layers), 2, *shape, dtype=decoder.kind, device=device)
        self.cache: list[tuple[Tensor, Tensor]] = [(keys, values) for keys, values in pair]
        self.pages_SM = torch.zeros(self.size, asked.one, dtype=torch.int32, device=device)
        self.length_P = torch.zeros(self.size, dtype=torch.int32, device=device)
        self.state = State.empty(self.size, asked.new, device)
        few, wide = bucket(tail.ROWS, self.size), tail.DEPTH + 1
        self.guess_BD = torch.full((few, wide - 1), -1, device=device)
        self.report_BX = torch.zeros(few, 2 + wide, dtype=torch.int64, device=device)
        self.graphs: dict[tuple, Callable[[], None]] = {}
        self.pool: Any = None
        decoder.prepare(asked.longest + asked.new)

    def serves(self, size: Size) -> bool:
        """Whether it can be used for other work; one short of pages would not be larger if new."""
        own = self.asked
        fits = own.rows >= size.rows and own.longest >= size.longest and own.new >= size.new
        return fits and (self.pages >= size.pages or self.pages < own.pages)

    def graph(
        self, step: Callable[[Room, int, Sampling], None], rows: int, sampling: Sampling
    ) -> Callable[[], None]:
        """The step for this many rows, captured at first use; state is put back afterwards."""
        key = (step.__name__, rows, sampling.temperature, sampling.top_p, sampling.top_k)
        if key not in self.graphs:
            live = self.state.live.clone()
            self.state.live.zero_()  # warm-up and capture must not move any row
            if not self.graphs:
                # Graphs run one after another and leave nothing behind: they share their memory,
                # which is gone for good with the last of them.
                self.pool = new_pool()
            self.graphs[key] = captured(lambda: step(self, rows, sampling), self.pool)
            self.state.live.copy_(live)
        return self.graphs[key]
