"""Laws of the RL equations."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sps.algo.rivals import pass_at_k, weighted_reinforce
from sps.algo.rl import (
    Terms,
    centred,
    clipped,
    clipped_surrogate,
    constant_length,
    engine_gap,
    entropy_bonus,
    k3,
    mean_of_sequence_means,
    normalised,
    overlong_penalty,
    policy_loss,
    sequence_ratio,
    token_mean,
    token_ratio,
    truncated_weight,
)
from sps.algo.table import ALGORITHMS, algorithm_of
from sps.config.rl import RL, Grpo

rewards = st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=16)
seeds = st.integers(0, 2**31 - 1)


def random_batch(seed: int, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Log-probabilities that moved by about 0.3, ragged lengths of at least 1."""
    rng = torch.Generator().manual_seed(seed)
    new = -3 * torch.rand(rows, tokens, generator=rng, dtype=torch.float64)
    old = new + 0.3 * torch.randn(rows, tokens, generator=rng, dtype=torch.float64)
    ref = new + 0.3 * torch.randn(rows, tokens, generator=rng, dtype=torch.float64)
    length = torch.randint(1, tokens + 1, (rows,), generator=rng)
    mask = torch.arange(tokens)[None] < length[:, None]
    adv = torch.randn(rows, generator=rng, dtype=torch.float64)
    chosen = mask & (torch.rand(rows, tokens, generator=rng) < 0.3)
    return {
        "new": new, "old": old, "ref": ref, "length": length, "mask": mask, "adv": adv,
        "chosen": chosen,
    }  # fmt: skip


def named(name):
    """An algorithm with its defaults."""
    return algorithm_of(RL(algorithm={"type": name}).algorithm)


def clipping(low, high, **changes):
    """GRPO with other bounds."""
    return replace(algorithm_of(Grpo()), surrogate=clipped_surrogate(low, high), **changes)


def loss_and_gradient(batch, name, weight, beta=0.1):
    new = batch["new"].clone().requires_grad_()
    chosen = batch["chosen"] if named(name).choose else None
    terms = Terms(
        new, batch["old"], batch["ref"], batch["adv"], weight, batch["mask"], None, chosen
    )
    loss, sums = policy_loss(terms, named(name), beta)
    loss.backward()
    return loss.detach(), new.grad, sums


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(group):
    reward = torch.tensor([group], dtype=torch.float64)
    assert abs(centred(reward).sum()) < 1e-12 * len(group)
    # normalised divides by at least 1e-4, which magnifies rounding by at most 1e4.
    assert abs(normalised(reward).sum()) < 1e-8 * len(group)


@given(st.floats(-2, 2, width=32), st.integers(2, 16))
def test_equal_rewards_give_exactly_zero_advantage(value, count):
    # Exactly: rows are left out of the backward pass when their advantage is 0; a rounding error of
    # 1e-8 over the 1e-4 of `normalised` would be an advantage of 1e-4.
    reward = torch.full((1, count), value)
    assert (centred(reward) == 0).all()
    assert (normalised(reward) == 0).all()


def test_normalised_advantage_by_hand():
    # 1 of 4 right: mean 1/4, sample variance (9/16 + 3/16) / 3 = 1/4, deviation 1/2.
    got = normalised(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert got[0].tolist() == pytest.approx([0.75 / 0.5001] + [-0.25 / 0.5001] * 3, rel=1e-12)


@settings(max_examples=30)
@given(seeds, st.sampled_from(sorted(ALGORITHMS)), st.sampled_from([0.0, 7.5, -math.inf, math.nan]))
def test_padding_leaves_loss_and_gradient_unchanged(seed, name, filler):
    batch = random_batch(seed, rows=4, tokens=5)
    weight = named(name).weight(batch["length"], 9)
    loss, gradient, sums = loss_and_gradient(batch, name, weight)
    wide = dict(batch)
    for key in ("new", "old", "ref"):
        torn = torch.where(batch["mask"], batch[key], filler)
        wide[key] = torch.cat([torn, torch.full((4, 3), filler, dtype=torch.float64)], 1)
    for key in ("mask", "chosen"):
        wide[key] = torch.cat([batch[key], torch.zeros(4, 3, dtype=torch.bool)], 1)
    wide_loss, wide_gradient, wide_sums = loss_and_gradient(wide, name, weight)
    assert float(wide_loss) == pytest.approx(float(loss), abs=1e-12)
    assert torch.allclose(wide_gradient[:, :5], gradient, atol=1e-12)
    assert (wide_gradient[:, 5:] == 0).all()
    assert {k: float(v) for k, v in wide_sums.items()} == pytest.approx(
        {k: float(v) for k, v in sums.items()}
    )


@settings(max_examples=30)
@given(seeds, st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 5))
def test_micro_batches_add_up_to_one_batch(seed, name, cut):
    batch = random_batch(seed, rows=6, tokens=5)
    weight = named(name).weight(batch["length"], 9)
    loss, gradient, sums = loss_and_gradient(batch, name, weight)
    halves = []
    for part in (slice(0, cut), slice(cut, 6)):
        piece = {key: value[part] for key, value in batch.items()}
        halves.append(loss_and_gradient(piece, name, weight[part]))
    assert float(halves[0][0] + halves[1][0]) == pytest.approx(float(loss), abs=1e-12)
    assert torch.allclose(torch.cat([halves[0][1], halves[1][1]]), gradient, atol=1e-12)
    for key, value in sums.items():
        assert float(halves[0][2][key] + halves[1][2][key]) == pytest.approx(float(value))


@given(seeds)
def test_gspo_at_one_token_is_the_token_ratio(seed):
    batch = random_batch(seed, rows=5, tokens=1)
    args = (batch["new"], batch["old"], batch["mask"])
    assert torch.equal(sequence_ratio(*args), token_ratio(*args))


def test_sequence_ratio_is_the_geometric_mean_over_real_tokens():
    # Ratios 2 and 8 have the geometric mean 4; the third token is padding and does not count.
    new = torch.tensor([[math.log(2), math.log(8), 5.0]])
    mask = torch.tensor([[True, True, False]])
    got = sequence_ratio(new, torch.zeros(1, 3), mask)
    assert got[0].tolist() == pytest.approx([4.0, 4.0, 4.0], rel=1e-6)


# ratio, advantage -> -min(r A, clip(r, 0.8, 1.28) A), and its slope in r
CLIP = [
    (1.5, 1.0, -1.28, 0.0),  # high and good: clipped at 1 + high
    (1.5, -1.0, 1.5, 1.0),  # high and bad: not clipped
    (0.5, 1.0, -0.5, -1.0),  # low and good: not clipped
    (0.5, -1.0, 0.8, 0.0),  # low and bad: clipped at 1 - low
    (1.2, 1.0, -1.2, -1.0),  # inside, though above 1 + low: the bounds are not symmetric
    (1.0, -2.0, 2.0, 2.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "value", "slope"), CLIP)
def test_clip_boundaries_by_hand(ratio, advantage, value, slope):
    r = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    got = clipped(r, torch.tensor([advantage], dtype=torch.float64), low=0.2, high=0.28)
    got.sum().backward()
    assert got.item() == pytest.approx(value, abs=1e-12)
    assert r.grad.item() == pytest.approx(slope, abs=1e-12)


def test_clipped_share_counts_only_tokens_where_the_clip_binds():
    new = torch.log(torch.tensor([[row[0]] for row in CLIP], dtype=torch.float64))
    adv = torch.tensor([row[1] for row in CLIP], dtype=torch.float64)
    mask, weight = torch.ones(6, 1, dtype=torch.bool), torch.ones(6)
    terms = Terms(new, torch.zeros_like(new), None, adv, weight, mask)
    _, sums = policy_loss(terms, clipping(0.2, 0.28), 0.0)
    assert int(sums["clipped"]) == 2  # the first and the fourth row of CLIP
    assert float(sums["ratio"]) == pytest.approx(sum(row[0] for row in CLIP))


def test_a_ratio_at_its_bound_is_not_clipped():
    """Ratios of 1.5 and 0.5, as they are, with bounds of just that."""
    exact = clipping(0.5, 0.5, ratio=lambda new, old, mask: new)
    ratio = torch.tensor([[1.5], [0.5], [1.75], [0.25]], dtype=torch.float64)
    adv, mask = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64), ratio > 0
    _, sums = policy_loss(Terms(ratio, ratio, None, adv, torch.ones(4), mask), exact, 0.0)
    assert int(sums["clipped"]) == 2


def test_no_reference_is_no_kl():
    batch = random_batch(0, rows=3, tokens=4)
    terms = Terms(*(batch[key] for key in ("new", "old")), None, batch["adv"], torch.ones(3),
                  batch["mask"])  # fmt: skip
    (loss, sums), (plain, _) = (policy_loss(terms, clipping(0.2, 0.2), beta) for beta in (0.1, 0.0))
    assert loss == plain
    assert "kl" not in sums


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k3_is_never_negative_and_zero_at_equality(new, ref):
    mask = torch.ones(1, 1, dtype=torch.bool)
    as_tensor = [torch.tensor([[x]], dtype=torch.float64) for x in (new, ref)]
    assert k3(*as_tensor, mask).item() >= -1e-15
    assert k3(as_tensor[0], as_tensor[0], mask).item() == 0


def test_k3_by_hand():
    # ref - new = ln 2: 2 - ln 2 - 1 = 0.306853
    mask = torch.ones(1, 1, dtype=torch.bool)
    got = k3(torch.zeros(1, 1), torch.full((1, 1), math.log(2)), mask)
    assert got.item() == pytest.approx(0.306853, abs=1e-6)


def test_k3_estimates_kl_without_bias():
    # Mean over the new policy of k3 is KL(new || ref): 0.5 ln(0.5/0.2) + 0.5 ln(0.5/0.8) = 0.223144
    new, ref = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.8]]).log()
    got = (0.5 * k3(new, ref, torch.ones(1, 2, dtype=torch.bool))).sum()
    assert got.item() == pytest.approx(0.223144, abs=1e-6)


def test_overlong_penalty_by_hand():
    # limit 20, cache 8: free up to 12, then -1/8 a token, -1 at 20 and beyond.
    length = torch.tensor([1, 12, 13, 16, 20, 25])
    assert overlong_penalty(length, 20, 8).tolist() == [0, 0, -0.125, -0.5, -1, -1]
    assert overlong_penalty(length, 20, 0).tolist() == [0] * 6
    assert overlong_penalty(length, 20, 0).dtype == torch.float32  # of a reward


def test_weights_by_hand():
    length = torch.tensor([2, 4, 0])
    assert mean_of_sequence_means(length, 9).tolist() == pytest.approx([1 / 6, 1 / 12, 1 / 3])
    assert token_mean(length, 9).tolist() == pytest.approx([1 / 6] * 3)
    assert constant_length(length, 9).tolist() == pytest.approx([1 / 27] * 3)
    for weight in (mean_of_sequence_means, token_mean):  # the shortest, and no token at all
        assert weight(torch.tensor([1]), 9).tolist() == weight(torch.tensor([0]), 9).tolist() == [1]


@given(seeds, st.sampled_from(sorted(ALGORITHMS)))
def test_on_policy_gradient_is_minus_advantage_times_weight(seed, name):
    # At new = old the ratio is 1, nothing is clipped, d(ratio)/d(log p) = 1 (1/T for GSPO's mean,
    # which the T tokens of the sequence give back T times).
    batch = random_batch(seed, rows=4, tokens=5)
    batch["old"] = batch["new"]
    weight = named(name).weight(batch["length"], 9).double()
    _, gradient, _ = loss_and_gradient(batch, name, weight, beta=0.0)
    # Clip-Cov alone leaves tokens out; KL-Cov's penalty has no gradient yet.
    learnt = batch["mask"] & ~batch["chosen"] if name == "clip_cov" else batch["mask"]
    want = -(batch["adv"] * weight)[:, None] * learnt
    assert torch.allclose(gradient, want, atol=1e-12)


def test_truncated_weight_is_the_ratio_up_to_the_cap():
    """Gaps of ln 0.5, ln 1.5 and ln 8 with a cap of 2; the last place holds no token."""
    engine = torch.tensor([[-1.0, -1.0, -3.0, -torch.inf]], dtype=torch.float64)
    new = engine + torch.tensor([[0.5, 1.5, 8.0, 1.0]], dtype=torch.float64).log()
    new.requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    weight = truncated_weight(new, engine, mask, cap=2.0)
    assert weight.tolist() == [pytest.approx([0.5, 1.5, 2.0, 1.0])]
    assert not weight.requires_grad


def test_engine_gap_sums_what_one_gets_by_hand():
    """Gaps of 0.1 and -0.3: |.| 0.4, squares 0.10, k3 of r - ln r - 1."""
    engine = torch.tensor([[-1.0, -2.0, 0.0]], dtype=torch.float64)
    new = torch.tensor([[-0.9, -2.3, -5.0]], dtype=torch.float64)
    gap = engine_gap(new, engine, torch.tensor([[True, True, False]]))
    assert float(gap["gap"]) == pytest.approx(0.4)
    assert float(gap["gap_square"]) == pytest.approx(0.01 + 0.09)
    by_hand = (math.exp(0.1) - 0.1 - 1) + (math.exp(-0.3) + 0.3 - 1)
    assert float(gap["gap_kl"]) == pytest.approx(by_hand)


def test_correction_weighs_the_surrogate_and_leaves_the_kl():
    """Two tokens on policy, A = 2, weights 0.5 and 2: -(0.5 * 2 + 2 * 2) / 2, and k3 beside it."""
    new = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-1.5, -2.0]], dtype=torch.float64)
    mask, adv = torch.ones(1, 2, dtype=torch.bool), torch.tensor([2.0], dtype=torch.float64)
    correct = torch.tensor([[0.5, 2.0]], dtype=torch.float64)
    half = torch.tensor([0.5], dtype=torch.float64)
    terms = Terms(new, new.detach(), ref, adv, half, mask, correct)
    loss, _ = policy_loss(terms, clipping(0.2, 0.2), beta=0.1)
    kl = math.exp(-0.5) + 0.5 - 1
    assert float(loss.detach()) == pytest.approx(-2.5 + 0.1 * kl / 2)
    loss.backward()
    # The surrogate's gradient is -w A / 2; the KL's is beta (1 - e^(ref - new)) / 2.
    by_hand = [-0.5 + 0.05 * (1 - math.exp(-0.5)), -2.0]
    assert new.grad[0].tolist() == pytest.approx(by_hand)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_mean_advantage_over_all_sets_pass_at_k(n):
    for k in range(1, n + 1):
        for right in range(n + 1):
            reward = torch.zeros(1, n, dtype=torch.float64)
            reward[0, :right] = 1
            sets = list(combinations(range(n), k))
            of_set = torch.tensor([float(any(reward[0, i] > 0 for i in s)) for s in sets])
            spread = of_set.std(correction=0)
            scaled = (of_set - of_set.mean()) / spread if spread > 0 else of_set * 0
            want = [
                torch.stack([a for a, s in zip(scaled, sets, strict=True) if i in s]).mean()
                for i in range(n)
            ]
            got = pass_at_k(reward, k)[0]
            assert got.dtype == reward.dtype
            torch.testing.assert_close(got.float(), torch.stack(want))


def test_pass_at_k_leaves_alone_what_any_k_samples_solve():
    reward = torch.tensor([[1.0, 1, 1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
    easy, hard = pass_at_k(reward, 4)
    assert not easy.any()  # two wrong of eight: every set of four has a right one
    assert hard[0] > 0 > hard[1]
    assert normalised(reward)[0].any()  # where GRPO still sharpens


def test_weighted_reinforce_learns_from_every_wrong_answer():
    reward = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 1, 1]])
    want = torch.tensor([[0.1, -1, -1], [-1, -1, -1], [0.1, 0.1, 0.1]])
    torch.testing.assert_close(weighted_reinforce(reward, 0.1), want)


def test_entropy_bonus_is_the_mean_of_real_tokens():
    entropy = torch.tensor([[1.0, 2.0, math.nan], [3.0, math.nan, math.nan]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    length = mask.sum(-1)
    assert entropy_bonus(entropy, token_mean(length, 3), mask) == pytest.approx(2.0)
    assert entropy_bonus(entropy, mean_of_sequence_means(length, 3), mask) == pytest.approx(2.25)
