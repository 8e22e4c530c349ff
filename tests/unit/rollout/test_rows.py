"""The host's bookkeeping of rows and pages; the step itself is played by a few lines of torch."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sps.rollout.cuda.rows import Rows, Wanted
from sps.rollout.cuda.state import PAGE, State, bucket, pages_of
from sps.types import Request, Sampling

LOOK = 8


def make_room(size, pages, longest, new):
    most = pages_of(longest) + pages_of(new)
    return SimpleNamespace(
        size=size,
        pages=pages,
        state=State.empty(size, new, torch.device("cpu")),
        pages_SM=torch.zeros(size, most, dtype=torch.int32),
        length_P=torch.zeros(size, dtype=torch.int32),
    )


def step(room, count, length_PG, wanted):
    """What a captured step does to the state: a token is its own number among the row's."""
    state = room.state
    for row in range(count):
        if not state.live[row]:
            continue
        state.own[row] += 1
        state.ids_ST[state.slot[row], state.own[row]] = state.own[row]
        end = int(length_PG[wanted[row].request, wanted[row].sample])
        if state.own[row] + 1 == end:
            state.ended[row], state.live[row] = True, 0


def check_pages(rows, requests):
    """Every page has one owner, and every row's list names its prompt's pages and then its own."""
    owned = [p for held in rows.held for p in held]
    owned += [p for prompt in rows.prompts.values() for p in prompt.pages]
    assert sorted(owned + rows.free_pages) == list(range(1, rows.room.pages + 1))
    for row, want in enumerate(rows.wanted):
        prompt = rows.prompts[want.request].pages
        assert len(prompt) == pages_of(len(requests[want.request].prompt_ids))
        listed = rows.room.pages_SM[rows.room.state.slot[row]].tolist()
        pages = prompt + rows.held[row]
        assert listed[: len(pages)] == pages
        # tokens 0 .. own + LOOK - 1 are stored before the host looks again
        last = min(int(rows.room.state.own[row]) + LOOK, rows.sampling.max_new_tokens) - 1
        assert last // PAGE < len(rows.held[row])


def draw(size, pages, prompts, length_PG, new):
    """All samples, as the engine's loop draws them; also how often a row had to wait again."""
    requests = [
        Request(i, (1,) * n, tuple(range(length_PG.shape[1]))) for i, n in enumerate(prompts)
    ]
    room = make_room(size, pages, max(prompts), new)
    rows = Rows(room, Sampling(length_PG.shape[1], new))
    waiting = deque(Wanted(i, s) for i, r in enumerate(requests) for s in r.samples)
    done, again, most = [], 0, 0
    for _ in range(2000):
        if not waiting and not rows.count:
            break
        if waiting:
            take = rows.admit(waiting, requests)
            for request in dict.fromkeys(w.request for w in take):
                if request not in rows.prompts:
                    rows.take_prompt(request, prompts[request])
            rows.add(take, requests)
            for row in range(rows.count - len(take), rows.count):  # the first token
                state, want = room.state, rows.wanted[row]
                state.ids_ST[state.slot[row], 0] = 0
                if length_PG[want.request, want.sample] == 1:
                    state.ended[row], state.live[row] = True, 0
        before = len(waiting)
        rows.grow(LOOK, waiting)
        again += len(waiting) - before
        most = max(most, rows.count)
        check_pages(rows, requests)
        for _ in range(LOOK):
            step(room, rows.count, length_PG, rows.wanted)
        done += rows.harvest(requests)
    assert len(rows.free_pages) == room.pages
    assert len(rows.free_slots) == len(rows.free_places) == size
    return done, again, most


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 2 * PAGE), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 8),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_every_sample_is_drawn_once_however_few_the_pages(prompts, n, extra, size, seed):
    new = 3 * PAGE
    length_PG = np.random.default_rng(seed).integers(1, new + 1, (len(prompts), n))
    pages = pages_of(max(prompts)) + pages_of(new) + extra  # one row fits, at the least
    done, _, _ = draw(size, pages, prompts, length_PG, new)
    want = [(i, s) for i in range(len(prompts)) for s in range(n)]
    assert sorted((c.index, c.sample) for c in done) == want
    for c in done:
        assert c.ids.tolist() == list(range(length_PG[c.index, c.sample]))


def test_short_rows_do_not_pay_for_long_ones():
    # 16 pages for rows of 1 that might take 8 each: all 16 run at once when some have ended
    length_PG = np.full((1, 40), 100)
    done, again, most = draw(16, 17, [10], length_PG, new=8 * PAGE)
    assert (len(done), again, most) == (40, 0, 16)


def test_rows_are_let_in_by_the_mean_length_and_need_not_wait_again():
    # 16 pages for rows of 3: two that might take 8 each, and once these have ended as many as fit
    done, again, most = draw(16, 17, [10], np.full((1, 20), 300), new=8 * PAGE)
    assert (len(done), again, most) == (20, 0, 5)


def test_the_youngest_rows_wait_when_pages_run_out_and_are_drawn_again():
    # short answers first, so that many rows are let in; then long ones that need what is not there
    length_PG = np.array([[20] * 8 + [5 * PAGE] * 8])
    done, again, _ = draw(8, 20, [10], length_PG, new=5 * PAGE)
    assert again > 0
    assert sorted(len(c.ids) for c in done) == sorted(length_PG[0])


@pytest.mark.parametrize(
    ("count", "most", "want"),
    [(1, 256, 8), (8, 256, 8), (9, 256, 12), (13, 256, 16), (17, 256, 24), (25, 64, 32),
     (33, 64, 48), (49, 64, 64), (65, 2048, 96), (97, 100, 100), (1025, 2048, 1536), (3, 2, 2)],
)  # fmt: skip
def test_buckets_lie_between_powers_of_two(count, most, want):
    assert bucket(count, most) == want
