"""Guessed steps and plain ones in turns, with few pages; the GPU's part is played by python."""

from collections import deque
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sps.rollout.cuda import rows as rows_module
from sps.rollout.cuda import state as state_module
from sps.rollout.cuda import tail as tail_module
from sps.rollout.cuda.guesses import Group
from sps.rollout.cuda.rows import Rows, Wanted
from sps.rollout.cuda.state import State, pages_of
from sps.rollout.cuda.tail import Tail
from sps.types import Request, Sampling

PAGE, LOOK, END = 4, 8, 0
NOTHING = -7  # in a page that was never written


class Machine:
    """Pages of tokens where a GPU has their keys, and what is drawn behind a right text."""

    def __init__(self, size, pages, longest, new, texts, rng):
        self.size, self.pages, self.texts, self.rng = size, pages, texts, rng
        most = pages_of(longest) + pages_of(new)
        self.state = State.empty(size, new, torch.device("cpu"))
        self.pages_SM = torch.zeros(size, most, dtype=torch.int32)
        self.guess_BD = torch.from_numpy(rng.integers(-1, 9, (size, tail_module.DEPTH)))  # stale
        self.report_BX = torch.zeros(size, 3 + tail_module.DEPTH, dtype=torch.int64)
        self.cache = np.full((pages + 1, PAGE), NOTHING)
        self.checks = 0

    def drawn(self, rows, row, wide, at):
        """What follows the text that a row of a step sees: the right token if that is right."""
        state, want = self.state, rows.wanted[row]
        truth, own = self.texts[want.request, want.sample], int(wide.own[at])
        listed = self.pages_SM[state.slot[row]].tolist()
        behind = len(rows.prompts[want.request].pages)
        places = [(listed[behind + i // PAGE], i % PAGE) for i in range(own + 1)]
        assert {page for page, _ in places} <= set(rows.held[row])
        seen = [int(self.cache[place]) for place in places]
        goes_on = seen == truth[: own + 1] and own + 1 < len(
            truth
        )  # else a guess was wrong, or END
        return truth[own + 1] if goes_on else int(self.rng.integers(0, 9))

    def step(self, rows, guess_BD=None):
        """As the engine's step or check: all tokens are stored before any is drawn."""
        state, some = self.state, self.state[: rows.count]
        none = torch.full((rows.count, 0), -1)
        wide = some.with_guesses(none if guess_BD is None else guess_BD[: rows.count])
        width = len(wide.own) // max(1, rows.count)
        live = [at for at in range(len(wide.own)) if wide.live[at]]
        for at in live:
            row, own = at // width, int(wide.own[at])
            behind = len(rows.prompts[rows.wanted[row].request].pages)
            page = int(self.pages_SM[state.slot[row], behind + own // PAGE])
            assert page in rows.held[row]
            self.cache[page, own % PAGE] = int(wide.token[at])
        drawn = {at: self.drawn(rows, at // width, wide, at) for at in live}
        for row in range(rows.count):
            for i in range(width):
                if not state.live[row]:
                    break
                token = drawn[row * width + i]
                self.take(row, token)
                if i + 1 == width or int(guess_BD[row, i]) != token:
                    break
        tokens = torch.tensor([drawn.get(at, 5) for at in range(len(wide.own))])
        now = torch.stack([some.own, some.live], 1).long()
        if guess_BD is not None:
            self.report_BX[: rows.count] = torch.cat([now, tokens.view(rows.count, width)], 1)

    def take(self, row, token, ahead=1):
        state = self.state
        state.own[row] += ahead
        state.token[row] = token
        state.ids_ST[state.slot[row], state.own[row]] = token
        state.ended[row] = token == END
        state.live[row] = int(token != END and state.own[row] + 1 < state.limit[row])

    def check(self, rows):
        self.checks += 1
        self.step(rows, self.guess_BD)


def draw(size, pages, prompts, texts, n, new, guess, rng):
    """All samples, as the engine's loop draws them."""
    requests = [Request(3 + i, (1,) * k, tuple(range(n))) for i, k in enumerate(prompts)]
    room = Machine(size, pages, max(prompts), new, texts, rng)
    rows = Rows(room, Sampling(n, new))
    waiting = deque(Wanted(i, s) for i, r in enumerate(requests) for s in r.samples)
    tail, done = Tail(rows, requests, True), []
    with patch.object(Group, "guess", guess):
        for _ in range(4000):
            if not waiting and not rows.count:
                break
            if waiting and rows.count <= size * 0.875:
                take = rows.admit(waiting, requests)
                for request in dict.fromkeys(w.request for w in take):
                    if request not in rows.prompts:
                        rows.take_prompt(request, prompts[request])
                rows.add(take, requests)
                for row in range(rows.count - len(take), rows.count):
                    want = rows.wanted[row]
                    room.take(row, texts[want.request, want.sample][0], ahead=0)
            guessing = tail.begins(waiting)
            rows.grow(tail.reach if guessing else LOOK, waiting)
            if guessing:
                done += tail.advance(lambda: room.check(rows))
            else:
                for _ in range(LOOK):
                    room.step(rows)
                tail.prepare(waiting)
                finished = rows.harvest(requests)
                tail.keep(finished)
                done += finished
            owned = [p for held in rows.held for p in held]
            owned += [p for prompt in rows.prompts.values() for p in prompt.pages]
            assert sorted(owned + rows.free_pages) == list(range(1, pages + 1))
            own_B = room.state.own[: rows.count].tolist()
            assert rows.age_B.tolist() == own_B
    assert len(rows.free_slots) == len(rows.free_places) == size
    return done, room.checks


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    n=st.integers(1, 3),
    extra=st.integers(0, 12),
    size=st.integers(1, 9),
    new=st.integers(1, 26),
    right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_is_what_plain_steps_draw(prompts, n, extra, size, new, right, seed):
    rng = np.random.default_rng(seed)
    texts = {}
    for key in np.ndindex(len(prompts), n):
        text = rng.integers(1, 9, new).tolist()
        at = int(rng.integers(0, 2 * new))
        texts[key] = [*text[:at], END] if at < new else text

    def guess(self, number, most):
        """Often what comes next, also behind the end and behind the limit; or nothing."""
        own = self.texts[number]
        found = next((t for t in texts.values() if t[: len(own)] == own), [])[len(own) :]
        found = (found + rng.integers(0, 9, most).tolist())[: rng.integers(0, most + 1)]
        return [t if rng.random() < right else int(rng.integers(0, 9)) for t in found]

    with ExitStack() as patched:
        for module in (state_module, rows_module):
            patched.enter_context(patch.object(module, "PAGE", PAGE))
        patched.enter_context(patch.object(tail_module, "ROWS", 4))
        pages = pages_of(max(prompts)) + pages_of(new) + extra
        done, checks = draw(size, pages, prompts, texts, n, new, guess, rng)
    found = {(c.index - 3, c.sample): c for c in done}
    assert len(found) == len(done) == len(texts)
    for key, text in texts.items():
        assert found[key].ids.tolist() == text
        assert found[key].finished == (text[-1] == END)
    if len(texts) <= min(4, size):
        assert checks


def checks_of(text):
    """Guessed steps for one sample of this text, with the product's own guesses."""
    with ExitStack() as patched:
        for module in (state_module, rows_module):
            patched.enter_context(patch.object(module, "PAGE", PAGE))
        rng = np.random.default_rng(0)
        done, checks = draw(1, 60, [3], {(0, 0): text}, 1, len(text), Group.guess, rng)
    assert done[0].ids.tolist() == text
    return checks


def test_what_repeats_takes_few_steps():
    # Nothing repeats up to the second 1, which is known a step later; then come four a step.
    assert checks_of([1, 2, 3, 4, 5, 6] * 10) == pytest.approx(7 + (59 - 7) / 4, abs=2)


def test_guessing_ends_where_nothing_repeats():
    # 1 + (31/32)^n, the mean of 2 and of ones, is below 1.3 from n = 38 on.
    assert checks_of(list(range(1, 101))) == 38
