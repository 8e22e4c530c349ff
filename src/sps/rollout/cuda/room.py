"""The memory of the engine on a GPU: pages of keys and values, the rows' state, captured steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sps.rollout.cuda.decoder import Decoder
from sps.rollout.cuda.state import PAGE, State, pages_of
from sps.types import Sampling

_SHARE = 0.6  # of the free memory that pages may take; the rest is for graphs and for training
_PREFILL = 65_536  # prompt tokens run at once


def free_bytes(device: torch.device) -> float:
    """Memory that could be allocated now."""
    if device.type != "cuda":
        return float("inf")
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def captured(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A CUDA graph of the step; the step must do no harm when it runs for warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


class Room:
    """Pages, and `size` rows that may point to them; addresses never change.

    Rows take pages as they grow and give them back when they end, so that a short one costs no
    more than its length. There are as many as all rows could need, or as free memory allows.
    """

    def __init__(self, decoder: Decoder, size: int, longest: int, new: int, prompts: int):
        device = decoder.embed.weight.device
        self.size, self.longest, self.new = size, longest, new
        self.at_once = max(1, _PREFILL // longest)
        self.wanted = size * pages_of(new) + prompts * pages_of(longest)
        each = 2 * len(decoder.layers) * decoder.shared * PAGE * decoder.width * 2
        self.pages = int(min(self.wanted, _SHARE * free_bytes(device) // each))
        if self.pages < pages_of(new) + pages_of(longest):
            raise torch.OutOfMemoryError("no memory for the keys and values of one sequence")
        # Page 0 is nobody's: prompts shorter than others of their batch write there.
        shape = (self.pages + 1, decoder.shared, PAGE, decoder.width)
        pair = torch.zeros(len(decoder.layers), 2, *shape, dtype=decoder.kind, device=device)
        self.cache: list[tuple[Tensor, Tensor]] = [(keys, values) for keys, values in pair]
        most = pages_of(longest) + pages_of(new)
        self.pages_SM = torch.zeros(size, most, dtype=torch.int32, device=device)
        self.length_P = torch.zeros(size, dtype=torch.int32, device=device)
        self.state = State.empty(size, new, device)
        self.graphs: dict[tuple, Callable[[], None]] = {}
        # Graphs run one after another and leave nothing behind: they share their memory.
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        decoder.prepare(longest + new)

    def serves(self, size: int, longest: int, new: int, prompts: int) -> bool:
        """Whether it can be used for other work; one short of pages would not be larger if new."""
        fits = self.size >= size and self.longest >= longest and self.new >= new
        wanted = size * pages_of(new) + prompts * pages_of(longest)
        return fits and (self.pages >= wanted or self.pages < self.wanted)

    def graph(
        self, step: Callable[[Room, int, Sampling], None], rows: int, sampling: Sampling
    ) -> Callable[[], None]:
        """The step for this many rows, captured at first use; state is put back afterwards."""
        key = (rows, sampling.temperature, sampling.top_p, sampling.top_k)
        if key not in self.graphs:
            live = self.state.live.clone()
            self.state.live.zero_()  # warm-up and capture must not move any row
            self.graphs[key] = captured(lambda: step(self, rows, sampling), self.pool)
            self.state.live.copy_(live)
        return self.graphs[key]
