"""Random numbers by counter, truncation and the Gumbel-max rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sps.rollout.native.engine import _waves
from sps.rollout.native.sampling import draw, gumbels, row_keys, stream_at, streams
from sps.types import Request

LOGITS = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log()
MANY = 20000


def shares(temperature=1.0, top_p=1.0, top_k=0, logits=LOGITS):
    """How often each token is drawn, and what is reported for it."""
    rows = np.arange(MANY)
    stream_B = streams(row_keys(1, rows, rows * 0), 3, 1)[:, 0]
    chosen, logp = draw(logits.expand(MANY, -1), stream_B, temperature, top_p, top_k)
    counts = torch.bincount(chosen, minlength=logits.shape[-1])
    told = {int(t): float(p) for t, p in zip(chosen, logp.exp(), strict=True)}
    return counts.tolist(), told


def agree(counts, want):
    assert [c > 0 for c in counts] == [w > 0 for w in want]
    some = [(c, w) for c, w in zip(counts, want, strict=True) if w]
    total = sum(want)
    return len(some) == 1 or stats.chisquare(
        [c for c, _ in some], [MANY * w / total for _, w in some]
    ).pvalue > 1e-4  # fmt: skip


def test_tokens_are_drawn_as_often_as_they_are_likely():
    counts, told = shares()
    assert agree(counts, [0.1, 0.4, 0.3, 0.2])
    assert [told[i] for i in range(4)] == pytest.approx([0.1, 0.4, 0.3, 0.2], rel=1e-5)


def test_low_temperatures_of_large_logits_are_drawn_exactly():
    """Two equal logits of 30 at T = 1e-6 are 3e7, where float32 knows no halves."""
    counts, told = shares(1e-6, logits=torch.tensor([[30.0, 30.0, 29.0]]))
    assert agree(counts, [0.5, 0.5, 0])
    assert told == pytest.approx({0: 0.5, 1: 0.5}, rel=1e-5)


def test_draw_keeps_the_top_k_and_reports_the_full_probability():
    counts, told = shares(top_k=2)
    assert agree(counts, [0, 0.4, 0.3, 0])
    assert told == pytest.approx({1: 0.4, 2: 0.3}, rel=1e-5)


def test_draw_keeps_the_fewest_tokens_that_reach_top_p():
    # 0.4 alone is under 0.5, 0.4 + 0.3 reaches it.
    assert agree(shares(top_p=0.5)[0], [0, 0.4, 0.3, 0])
    assert agree(shares(top_p=0.35)[0], [0, 1, 0, 0])
    assert agree(shares(top_p=0.75)[0], [0, 0.4, 0.3, 0.2])
    # 1/2, 1/4, 1/4 in exact numbers: the first alone reaches a half.
    exact = torch.tensor([[0.0, -0.6931472, -0.6931472]])
    assert agree(shares(top_p=0.5, logits=exact)[0], [1, 0, 0])
    # After top-k the share is of what is left: 0.4 of 0.7 is 0.57, which reaches 0.55 alone.
    assert agree(shares(top_p=0.55, top_k=2)[0], [0, 1, 0, 0])


def test_draw_at_temperature_zero_is_greedy_with_the_models_own_logprob():
    counts, told = shares(temperature=0.0)
    assert counts == [0, MANY, 0, 0]
    assert told == {1: pytest.approx(0.4, rel=1e-5)}


def test_draw_divides_logits_by_the_temperature():
    # At temperature 1/2 probabilities are squared.
    counts, told = shares(temperature=0.5)
    assert agree(counts, [0.01, 0.16, 0.09, 0.04])
    assert told[1] == pytest.approx(0.16 / 0.30, rel=1e-5)


def test_rows_do_not_see_each_others_size():
    stream = streams(row_keys(0, np.array([4, 4]), np.array([1, 1])), 0, 1)[:, 0]
    chosen, logp = draw(torch.cat([LOGITS, LOGITS - 1000]), stream, 1.0, 1.0, 0)
    assert chosen[0] == chosen[1]
    assert float(logp[0]) == pytest.approx(float(logp[1]), abs=1e-4)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_draw_never_takes_a_token_without_mass(stream, hole):
    logits = torch.zeros(1, 4)
    logits[0, hole] = -torch.inf
    assert int(draw(logits, torch.tensor([stream]), 1.0, 1.0, 0)[0]) != hole


def test_rounding_hardly_ever_draws_another_token():
    """Of 500 draws from 20,000 tokens, by cumulated probabilities some would tip at 5e-6 already;
    no rule can do better than the total variation, 0.4 % at 0.01."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.5 * torch.randn(500, 20000, generator=generator)
    stream = streams(row_keys(0, np.arange(500), np.zeros(500)), 0, 1)[:, 0]
    noise = torch.randn(logits.shape, generator=generator)
    plain, small, large = (draw(logits + e * noise, stream, 1, 1, 0)[0] for e in (0, 5e-6, 0.01))
    assert torch.equal(plain, small)
    assert (plain != large).sum() <= 10


def test_streams_depend_on_seed_index_sample_and_position_alone():
    index, sample = np.array([0, 0, 1, 5]), np.array([0, 1, 0, 3])
    whole = streams(row_keys(7, index, sample), 0, 20)
    assert torch.equal(streams(row_keys(7, index[2:3], sample[2:3]), 0, 20), whole[2:3])
    assert torch.equal(streams(row_keys(7, index, sample), 12, 8), whole[:, 12:])
    assert not torch.equal(streams(row_keys(8, index, sample), 0, 20), whole)
    assert len(set(whole.flatten().tolist())) == 80


@pytest.mark.parametrize("seed", [0, 2**40, -3])
@pytest.mark.parametrize("along", ["rows", "positions"])
def test_gumbels_are_gumbels_and_unrelated(seed, along):
    rows = np.arange(2000)
    if along == "rows":
        stream = streams(row_keys(seed, rows // 8, rows % 8), 5, 1)[:, 0]
    else:
        stream = streams(row_keys(seed, rows[:1], rows[:1]), 0, 2000)[0]
    found = gumbels(stream, 48).double().numpy()
    assert stats.kstest(found.flatten(), stats.gumbel_r.cdf).pvalue > 1e-4
    z = (found - found.mean()) / found.std()
    # The mean square of so many correlations of n pairs is 1 / n within some per cent.
    for of, n in ((z.T @ z / 2000, 2000), (z @ z.T / 48, 48)):
        apart = of[np.triu_indices(len(of), 1)]
        assert 0.85 < n * (apart**2).mean() < 1.15
    assert stats.chisquare(np.bincount(found.argmax(1), minlength=48)).pvalue > 1e-4


def test_the_gumbel_of_a_token_by_hand():
    def mixed_32(x):
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    stream = 0x8123456789ABCDEF
    for token in (0, 1, 77):
        x = (mixed_32(token + 1) ^ (stream % 2**32)) * (stream >> 32 | 1) % 2**32
        x = (x ^ (x >> 15)) * (((stream >> 32) * 2 % 2**32) ^ 0x846CA68B) % 2**32
        u = (((x ^ (x >> 16)) % 2**31) + 0.5) / 2**31
        want = -math.log(-math.log1p(-u))
        got = gumbels(torch.tensor([stream - 2**64]), 80)[0, token]
        assert float(got) == pytest.approx(want, rel=1e-5)


def test_the_worst_number_is_finite():
    """Of 2^31 numbers the last 64 round to 1 in float32: a sure token would lose to any other."""
    inverse, last = pow(0x846CA68B, -1, 2**32), 2**31 - 1
    x = (last ^ last >> 16) * inverse % 2**32
    x ^= x >> 15 ^ x >> 30
    stream = torch.tensor([x ^ _hashed(3)])  # its upper half is 0: a factor of 1
    assert gumbels(stream, 8)[0, 3] == pytest.approx(-math.log(24 * math.log(2)), rel=1e-5)
    sure = torch.full((1, 8), -torch.inf)
    sure[0, 3] = 0
    assert int(draw(sure, stream, 1.0, 1.0, 0)[0]) == 3


def test_tokens_whose_hashes_differ_in_few_bits_are_not_tied_together():
    """These two differ in the last two of 32 bits: a sum that is the same for all rows would keep
    their numbers a fixed way apart, and never make both of them large."""
    one, two = 49525, 61292
    assert (_hashed(one) ^ _hashed(two)) % 2**30 == 0
    rows = np.arange(1000)
    stream_B = streams(row_keys(1, rows, rows * 0), 0, 1)[:, 0]
    pairs = torch.cat([gumbels(part, two + 1)[:, [one, two]] for part in stream_B.split(50)])
    large = pairs > -math.log(-math.log1p(-0.1))  # one in ten
    assert 3 <= int(large.all(-1).sum()) <= 25  # ten are due


def _hashed(token):
    x = token + 1
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), max_size=8), st.integers(1, 10))
def test_waves_hold_every_sample_once_within_the_limit(shapes, max_rows):
    requests = [Request(i, (1,) * p, tuple(range(n))) for i, (p, n) in enumerate(shapes)]
    seen = []
    for wave in _waves(requests, max_rows):
        assert len(wave) * max(len(r.samples) for r in wave) <= max_rows
        seen += [(r.index, s) for r in wave for s in r.samples]
    assert sorted(seen) == [(r.index, s) for r in requests for s in r.samples]


def test_streams_on_tensors_are_the_same_bits():
    key = row_keys(5, np.arange(6), np.arange(6) % 2)
    whole = streams(key, 0, 40)
    at = torch.tensor([0, 3, 39, 7, 7, 20])
    got = stream_at(torch.from_numpy(key.view(np.int64)), at)
    assert torch.equal(got, whole[torch.arange(6), at])


def mixed(x: int) -> int:
    """SplitMix64's finaliser on plain integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_streams_are_the_published_numbers_of_splitmix64():
    # The first five of the generator that starts at 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
             16408922859458223821]  # fmt: skip
    got = streams(np.array([1234567], dtype=np.uint64), 0, 5)
    assert [x % 2**64 for x in got[0].tolist()] == known


@pytest.mark.parametrize("seed", [0, 5, -3, 2**64 + 5])
def test_the_key_of_a_row_mixes_in_seed_index_and_sample_one_by_one(seed):
    gamma, index, sample = 0x9E3779B97F4A7C15, 3, 11
    start = mixed((seed + gamma) % 2**64)
    want = mixed(mixed(start ^ (index * gamma % 2**64)) ^ (sample + gamma))
    assert row_keys(seed, np.array([index]), np.array([sample])).tolist() == [want]
