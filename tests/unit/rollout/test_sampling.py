"""Random numbers by counter, truncation and inversion by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sps.rollout.native.engine import _waves
from sps.rollout.native.sampling import draw, row_keys, uniform_at, uniforms
from sps.types import Request

LOGITS = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log()


def token(u, temperature=1.0, top_p=1.0, top_k=0):
    chosen, logp = draw(LOGITS, torch.tensor([u]), temperature, top_p, top_k)
    return int(chosen), float(logp.exp())


def test_draw_inverts_the_cumulative_distribution():
    # Cumulative 0.1, 0.5, 0.8, 1.0.
    for u, want, p in [(0.0, 0, 0.1), (0.09, 0, 0.1), (0.11, 1, 0.4), (0.49, 1, 0.4)]:
        assert token(u) == (want, pytest.approx(p, rel=1e-5))
    assert token(0.51) == (2, pytest.approx(0.3, rel=1e-5))
    assert token(0.99999994) == (3, pytest.approx(0.2, rel=1e-5))


def test_draw_keeps_the_top_k_and_reports_the_full_probability():
    # Top 2 are tokens 1 and 2 with mass 0.4 and 0.3: the border is at 4/7 = 0.571.
    assert token(0.0, top_k=2) == (1, pytest.approx(0.4, rel=1e-5))
    assert token(0.56, top_k=2)[0] == 1
    assert token(0.58, top_k=2) == (2, pytest.approx(0.3, rel=1e-5))
    assert token(0.99999994, top_k=2)[0] == 2


def test_draw_keeps_the_fewest_tokens_that_reach_top_p():
    # 0.4 alone is under 0.5, 0.4 + 0.3 reaches it.
    assert {token(u / 100, top_p=0.5)[0] for u in range(100)} == {1, 2}
    assert {token(u / 100, top_p=0.35)[0] for u in range(100)} == {1}
    assert {token(u / 100, top_p=0.75)[0] for u in range(100)} == {1, 2, 3}
    # 1/2, 1/4, 1/4 in exact numbers: the first alone reaches a half.
    exact = torch.tensor([[0.0, -0.6931472, -0.6931472]])
    drawn = [draw(exact, torch.tensor([u / 100]), 1.0, 0.5, 0)[0] for u in range(100)]
    assert set(map(int, drawn)) == {0}
    # After top-k the share is of what is left: 0.4 of 0.7 is 0.57, which reaches 0.55 alone.
    assert {token(u / 100, top_p=0.55, top_k=2)[0] for u in range(100)} == {1}


def test_draw_at_temperature_zero_is_greedy_with_the_models_own_logprob():
    assert token(0.99, temperature=0.0) == (1, pytest.approx(0.4, rel=1e-5))


def test_draw_divides_logits_by_the_temperature():
    # At temperature 1/2 probabilities are squared: 0.16 / 0.30 for token 1.
    assert token(0.1, temperature=0.5) == (1, pytest.approx(0.16 / 0.30, rel=1e-5))


def test_rows_do_not_see_each_others_size():
    rows = torch.cat([LOGITS, LOGITS - 1000])
    chosen, logp = draw(rows, torch.tensor([0.51, 0.51]), 1.0, 1.0, 0)
    assert chosen.tolist() == [2, 2]
    assert logp.exp().tolist() == pytest.approx([0.3, 0.3], rel=1e-4)


@given(st.floats(0, 1, exclude_max=True, width=32), st.integers(0, 3))
def test_draw_never_takes_a_token_without_mass(u, hole):
    logits = torch.zeros(1, 4)
    logits[0, hole] = -torch.inf
    assert int(draw(logits, torch.tensor([u]), 1.0, 1.0, 0)[0]) != hole


def test_uniforms_depend_on_seed_index_sample_and_position_alone():
    index, sample = np.array([0, 0, 1, 5]), np.array([0, 1, 0, 3])
    whole = uniforms(row_keys(7, index, sample), 0, 20)
    assert torch.equal(uniforms(row_keys(7, index[2:3], sample[2:3]), 0, 20), whole[2:3])
    assert torch.equal(uniforms(row_keys(7, index, sample), 12, 8), whole[:, 12:])
    assert not torch.equal(uniforms(row_keys(8, index, sample), 0, 20), whole)
    assert len(set(whole.flatten().tolist())) == 80


@pytest.mark.parametrize("seed", [0, 2**40, -3])
def test_uniforms_are_uniform_and_unrelated(seed):
    rows = np.arange(100)
    u = uniforms(row_keys(seed, rows // 10, rows % 10), 0, 100).double().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.flatten(), "uniform").pvalue > 1e-3
    # 9900 pairs of neighbours: a correlation has an error of 0.01, four of them are 0.04.
    assert abs(np.corrcoef(u[:, :-1].flatten(), u[:, 1:].flatten())[0, 1]) < 0.04
    assert abs(np.corrcoef(u[:-1].flatten(), u[1:].flatten())[0, 1]) < 0.04


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), max_size=8), st.integers(1, 10))
def test_waves_hold_every_sample_once_within_the_limit(shapes, max_rows):
    requests = [Request(i, (1,) * p, tuple(range(n))) for i, (p, n) in enumerate(shapes)]
    seen = []
    for wave in _waves(requests, max_rows):
        assert len(wave) * max(len(r.samples) for r in wave) <= max_rows
        seen += [(r.index, s) for r in wave for s in r.samples]
    assert sorted(seen) == [(r.index, s) for r in requests for s in r.samples]


def test_uniforms_on_tensors_are_the_same_numbers():
    key = row_keys(5, np.arange(6), np.arange(6) % 2)
    whole = uniforms(key, 0, 40)
    at = torch.tensor([0, 3, 39, 7, 7, 20])
    got = uniform_at(torch.from_numpy(key.view(np.int64)), at)
    assert torch.equal(got, whole[torch.arange(6), at])


def mixed(x: int) -> int:
    """SplitMix64's finaliser on plain integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_uniforms_are_the_published_numbers_of_splitmix64():
    # The first five of the generator that starts at 1234567; the upper 24 bits are the number.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
             16408922859458223821]  # fmt: skip
    got = uniforms(np.array([1234567], dtype=np.uint64), 0, 5)
    assert (got[0].double() * 2**24).tolist() == [x >> 40 for x in known]


@pytest.mark.parametrize("seed", [0, 5, -3, 2**64 + 5])
def test_the_key_of_a_row_mixes_in_seed_index_and_sample_one_by_one(seed):
    gamma, index, sample = 0x9E3779B97F4A7C15, 3, 11
    start = mixed((seed + gamma) % 2**64)
    want = mixed(mixed(start ^ (index * gamma % 2**64)) ^ (sample + gamma))
    assert row_keys(seed, np.array([index]), np.array([sample])).tolist() == [want]
