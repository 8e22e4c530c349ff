"""The memory that the GPU engine takes: as much as its rows want, as it may have, and no more."""

import gc
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from sps.rollout.cuda import room
from sps.rollout.cuda.room import Room, Size
from sps.types import Request, Sampling

BYTES = 2 * 2 * 2 * 128 * 16 * 2  # of a page: keys and values of 2 layers and 2 heads, in bf16


def decoder():
    made = SimpleNamespace(layers=[0, 1], shared=2, width=16, kind=torch.bfloat16)
    made.embed = torch.nn.Embedding(4, 4)
    made.prepare = lambda positions: setattr(made, "positions", positions)
    return made


def size_of(prompts, n, new, max_rows=64):
    requests = [Request(i, (1,) * tokens, tuple(range(n))) for i, tokens in enumerate(prompts)]
    return Size.of(requests, Sampling(n, new), max_rows)


def free_pages(monkeypatch, pages):
    monkeypatch.setattr(room, "_SHARE", 0.5)
    monkeypatch.setattr(room, "free_bytes", lambda device: 2 * BYTES * pages)


def test_there_are_pages_for_all_rows_and_one_of_nobody():
    # 3 prompts of up to 3 pages; 9 rows of up to 2 pages, where a step is captured for 12
    made = Room(decoder(), size_of([10, 300, 20], 3, 200), float("inf"))
    assert made.pages == 9 * 2 + 3 * 3
    assert sum(k.nbytes + v.nbytes for k, v in made.cache) == BYTES * (made.pages + 1)
    assert made.pages_SM.shape == (12, 3 + 2)


def test_pages_are_bounded_by_free_memory_and_by_what_was_too_much(monkeypatch):
    size = size_of([10, 300, 20, 30], 4, 200)
    free_pages(monkeypatch, 20.5)
    assert Room(decoder(), size, float("inf")).pages == 20
    assert Room(decoder(), size, 12).pages == 12


@pytest.mark.parametrize(("free", "most"), [(0.1, float("inf")), (1000, 2)])
def test_one_row_has_its_pages_whatever_the_share_and_bound(monkeypatch, free, most):
    free_pages(monkeypatch, free)
    assert Room(decoder(), size_of([300], 1, 200), most).pages == 3 + 2


def test_many_short_rows_and_few_long_ones_do_not_want_many_long():
    short, long = size_of([10] * 16, 4, 100), size_of([400] * 2, 1, 4000)
    both = long.with_also(short)
    assert (both.rows, both.longest, both.new) == (64, 448, 4000)
    assert (short.pages, long.pages, both.pages) == (64 + 16, 2 * 32 + 2 * 4, 64 + 16)
    made = Room(decoder(), both, float("inf"))
    assert made.serves(short)
    assert made.serves(long)
    assert not made.serves(size_of([10] * 16, 4, 4000))
    assert not made.serves(size_of([10], 1, 4001))


def test_memory_of_graphs_is_new_when_all_were_dropped(monkeypatch):
    """CUDA refuses to capture into memory whose last graph is gone."""
    pools = []
    monkeypatch.setattr(room, "new_pool", object)
    monkeypatch.setattr(room, "captured", lambda step, pool: pools.append(pool))
    made = Room(decoder(), size_of([10], 32, 100), float("inf"))
    for rows in (8, 16, 8):
        made.graph(lambda *_: None, rows, Sampling(1, 8))
    made.graphs.clear()
    made.graph(lambda *_: None, 8, Sampling(1, 8))
    assert len(pools) == 3  # captured once each, and once again
    assert pools[0] is pools[1] is not pools[2]
    assert all(pool is not None for pool in pools)


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError])
def test_nothing_is_collected_during_a_capture_and_then_as_before(monkeypatch, collects, error):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    seen, capturing = [], []

    @contextmanager
    def graph(*_, **__):
        capturing.append(True)
        yield

    def step():
        if capturing:
            seen.append(gc.isenabled())
            if error:
                raise error

    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="again"))
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(error) if error else nullcontext():
            assert room.captured(step, None) == "again"
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        (gc.enable if was else gc.disable)()
