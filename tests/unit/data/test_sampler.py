"""The order of training problems."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sps.data.sampler import Sampler


@given(st.integers(1, 20), st.integers(0, 100), st.lists(st.integers(1, 7), max_size=12))
def test_every_pass_holds_each_problem_once(size, seed, takes):
    sampler = Sampler(size, seed)
    drawn = [i for count in takes for i in sampler.take(count)]
    for at in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[at : at + size]) == list(range(size))
    assert sampler.cursor == len(drawn) == sum(takes)


@given(st.integers(1, 20), st.integers(0, 60), st.integers(1, 30))
def test_cursor_is_all_the_state(size, done, more):
    whole = Sampler(size, seed=5).take(done + more)
    assert Sampler(size, seed=5, cursor=done).take(more) == whole[done:]


def test_passes_and_seeds_differ_in_order():
    # 50! orders: two that agree by chance will not be seen.
    sampler = Sampler(50, seed=1)
    first, second = sampler.take(50), sampler.take(50)
    assert first != second
    assert first != Sampler(50, seed=2).take(50)
