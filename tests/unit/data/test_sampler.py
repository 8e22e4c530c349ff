"""The order of training problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
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


def by_hand(size, seed, weights, sources, count, cursor=0):
    """What `take` with weights gives, one problem at a time and without arrays."""
    left, out = list(weights), []
    for place in range(cursor, cursor + count):
        order = np.random.default_rng([seed, place // size]).permutation(size)
        found = int(order[place % size])
        keep, which = np.random.default_rng([seed, 32452843, place]).random(2)
        others = [i for i in range(size) if sources[i] == sources[found] and left[i] > 0]
        if keep >= left[found] and others:
            which *= math.fsum(left[i] for i in others)
            for i in others:
                found, which = i, which - left[i]
                if which < 0:
                    break
        left[found] = 0
        out.append(found)
    return out


@given(st.data(), st.integers(1, 9), st.integers(0, 99), st.integers(0, 30))
def test_weighted_problems_are_those_drawn_by_hand(data, size, seed, cursor):
    some = st.floats(0.01, 1.0) | st.sampled_from([0.0, 0.1, 1.0])
    weights = data.draw(st.lists(some, min_size=size, max_size=size))
    sources = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    count = data.draw(st.integers(0, 12))
    sampler = Sampler(size, seed, cursor, sources)
    drawn = sampler.take(count, np.array(weights))
    assert drawn == by_hand(size, seed, weights, sources, count, cursor)
    assert sampler.cursor == cursor + count


def test_problems_come_up_in_proportion_to_their_weights_and_sources_as_ever():
    # One a step, so that nothing is left out for having been drawn.
    weights, sources = np.array([1.0, 0.5, 0.1, 1.0, 0.1, 0.1]), [0, 0, 0, 1, 1, 1]
    sampler, steps = Sampler(6, seed=3, source_N=sources), 12000
    drawn = np.array([sampler.take(1, weights)[0] for _ in range(steps)])
    share = np.bincount(drawn, minlength=6) / steps
    want = [*(0.5 * weights[:3] / 1.6), *(0.5 * weights[3:] / 1.2)]
    # Five standard errors of the largest share are 0.023; passes make the spread smaller.
    assert share == pytest.approx(want, abs=0.02)
    assert share[:3].sum() == 0.5  # exactly: a place in the order keeps its source


def test_weights_of_one_leave_the_order_as_it_is():
    one, two = Sampler(12, seed=4), Sampler(12, seed=4)
    for _ in range(6):
        assert one.take(4, np.ones(12)) == two.take(4)


def test_no_problem_twice_in_a_draw_while_others_of_its_source_are_left():
    sampler = Sampler(6, seed=0, source_N=[0, 0, 0, 0, 1, 1])
    for _ in range(50):
        assert sorted(sampler.take(6, np.array([1, 0.1, 0.1, 0.1, 0.1, 1]))) == list(range(6))
    assert Sampler(1, seed=0).take(3, np.array([0.1])) == [0, 0, 0]
