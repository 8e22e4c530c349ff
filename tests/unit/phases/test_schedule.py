"""Which phase comes when, and which rollouts an IRL step sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sps.phases.irl import batches
from sps.phases.schedule import Phase, schedule


def test_schedule_by_hand():
    assert list(schedule(total=7, every=3, irl_steps=4)) == [
        Phase(1, 1, 3, True),
        Phase(2, 4, 6, True),
        Phase(3, 7, 7, True),
    ]
    assert list(schedule(total=4, every=9, irl_steps=0)) == [Phase(1, 1, 4, False)]


def test_schedule_finishes_the_phase_it_was_stopped_in():
    assert list(schedule(7, 3, 4, done=4)) == [Phase(2, 5, 6, True), Phase(3, 7, 7, True)]
    assert list(schedule(7, 3, 4, done=3)) == [Phase(2, 4, 6, True), Phase(3, 7, 7, True)]
    assert list(schedule(7, 3, 4, done=7)) == []


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 40))
def test_schedule_takes_every_step_left_once(total, every, done):
    phases = list(schedule(total, every, 1, min(done, total)))
    steps = [s for p in phases for s in range(p.first, p.last + 1)]
    assert steps == list(range(min(done, total) + 1, total + 1))
    assert all(p.last == min(p.number * every, total) for p in phases)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 8))
def test_irl_batches_reuse_a_rollout_only_in_a_new_pass(size, batch, steps):
    drawn = list(batches(size, batch, steps, np.random.default_rng(0)))
    assert [len(b) for b in drawn] == [min(batch, size)] * steps
    a_pass = size // min(batch, size)  # whole batches of one shuffle
    for at in range(0, steps, a_pass):
        seen = np.concatenate(drawn[at : at + a_pass])
        assert len(set(seen.tolist())) == len(seen)
        assert set(seen.tolist()) <= set(range(size))
