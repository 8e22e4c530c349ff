"""The rivals' equations against the same by hand: plain loops in float64 over lists of numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sps.algo import rivals
from sps.algo.rl import Outcomes, Terms, policy_loss
from sps.algo.table import algorithm_of
from sps.config.rl import RL


def groups(seed: int, n: int = 6) -> list[list[dict]]:
    """Groups with every number of right ones, none and all of them too, in a random order."""
    rng = np.random.default_rng(seed)
    out = []
    for right in range(n + 1):
        rewards = rng.permutation([1.0] * right + [0.0] * (n - right))
        lengths = rng.integers(1, 9, n)
        tokens = [(-3 * rng.random(length)).tolist() for length in lengths]
        pairs = zip(rewards, tokens, strict=True)
        out.append([{"r": float(r), "tokens": logp} for r, logp in pairs])
    return out


def outcomes(made: list[list[dict]]) -> Outcomes:
    def tensor(of):
        return torch.tensor([[of(one) for one in group] for group in made], dtype=torch.float64)

    return Outcomes(
        tensor(lambda one: one["r"]),
        tensor(lambda one: math.fsum(one["tokens"])),
        tensor(lambda one: math.fsum(one["tokens"]) / len(one["tokens"])),
        tensor(lambda one: len(one["tokens"])).long(),
    )


def grpo(group: list[dict]) -> list[float]:
    rewards, n = [one["r"] for one in group], len(group)
    mean = sum(rewards) / n
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1))
    return [(r - mean) / (spread + 1e-4) for r in rewards]


def mean_logp(one: dict) -> float:
    return sum(one["tokens"]) / len(one["tokens"])


def maxrl(group, s):
    p = sum(one["r"] for one in group) / len(group)
    return [0.0 if p == 0 else (one["r"] - p) / (p + 1e-6) for one in group]


def differential_smoothing(group, s):
    out = []
    for one, a in zip(group, grpo(group), strict=True):
        sign = -1 if one["r"] == 1 else 1
        out.append(a + sign * s["gamma"] * sum(one["tokens"]))
    return out


def ucpo(group, s):
    right = [one for one in group if one["r"] == 1]
    if not right:
        return [0.0] * len(group)
    likely = [math.exp(mean_logp(one)) for one in right]
    inverse = [1 / (x / sum(likely)) for x in likely]
    share = [(1 - s["mix"]) / len(right) + s["mix"] * x / sum(inverse) for x in inverse]
    left, out = iter(share), []
    for one, a in zip(group, grpo(group), strict=True):
        out.append(a * len(right) * next(left) if one["r"] == 1 else a)
    return out


def bbg(group, s):
    def u(c):
        value = s["k"]
        for j in range(s["k"]):
            value *= (len(group) - c + j) / (len(group) + 1 + j)
        return value

    weight = u(sum(one["r"] for one in group)) / u(1)
    return [a * weight if weight >= s["floor"] else 0.0 for a in grpo(group)]


def rs_grpo(group, s):
    risk = [math.exp(s["risk"] * one["r"]) for one in group]
    return [(x / (sum(risk) / len(risk)) - 1) / s["risk"] for x in risk]


def unlikeliness(group, s):
    """A reward, not an advantage: how many of the group are less likely is the rank."""
    rank = [sum(mean_logp(other) < mean_logp(one) for other in group) for one in group]
    return [
        one["r"] * (1 - s["penalty"] * k / len(group)) for one, k in zip(group, rank, strict=True)
    ]


def unlikeliness_advantage(group, s):
    shaped = zip(group, unlikeliness(group, s), strict=True)
    return grpo([{**one, "r": reward} for one, reward in shaped])


BY_HAND = {
    "maxrl": (maxrl, {}),
    "differential_smoothing": (differential_smoothing, {"gamma": 0.03}),
    "ucpo": (ucpo, {"mix": 0.2}),
    "bbg": (bbg, {"k": 16, "floor": 0.01}),
    "rs_grpo": (rs_grpo, {"risk": 2.0}),
    "unlikeliness": (unlikeliness_advantage, {"penalty": 0.25}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_an_advantage_is_the_one_by_hand(name, seed):
    by_hand, keys = BY_HAND[name]
    made = groups(seed)
    algorithm = algorithm_of(RL(algorithm={"type": name, **keys}).algorithm)
    given = outcomes(made)
    if algorithm.shape is not None:
        shaped = algorithm.shape(given, 20)
        assert shaped.tolist() == [pytest.approx(unlikeliness(g, keys), abs=1e-12) for g in made]
        given = Outcomes(shaped, given.sum_PG, given.mean_PG, given.length_PG)
    got = algorithm.advantage(given)
    for number, group in enumerate(made):
        assert got[number].tolist() == pytest.approx(by_hand(group, keys), abs=1e-9), number
    # A group that agrees costs no gradient, but where the likelihood itself is rewarded.
    dull = got[[0, -1]] if name != "unlikeliness" else got[:1]
    assert bool((dull == 0).all()) == (name != "differential_smoothing")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("differential_smoothing", {"gamma": 0.01}),
        ("ucpo", {"mix": 0.2}),
        ("bbg", {"k": 16, "floor": 0.01}),
        ("rs_grpo", {"risk": 2.0}),
        ("unlikeliness", {"penalty": 0.25}),
        ("cispo", {"max_ratio": 5.0}),
        ("kl_cov", {"share": 2e-4, "coefficient": 1.0}),
        ("clip_cov", {"share": 2e-4, "low": 1.0, "high": 5.0}),
    ],
)
def test_defaults_are_the_published_ones(name, keys):
    settings = RL(algorithm={"type": name}).algorithm.model_dump()
    assert {key: settings[key] for key in keys} == keys


def test_ucpo_keeps_what_the_right_ones_have_together():
    given = outcomes(groups(4))
    got = rivals.uniform_correct(given, 1.0)
    plain = rivals.uniform_correct(given, 0.0)
    right = given.right_PG
    torch.testing.assert_close((got * right).sum(-1), (plain * right).sum(-1))
    one = int((right.sum(-1) == 3).nonzero()[0])
    order = given.mean_PG[one][right[one]].argsort()
    assert got[one][right[one]][order].diff().max() < 0  # the likelier, the less


def test_unlikely_log_probabilities_do_not_overflow():
    given = outcomes(groups(5))
    far = Outcomes(given.reward_PG, 1e4 * given.sum_PG, 1e4 * given.mean_PG, given.length_PG)
    assert rivals.uniform_correct(far, 0.2).isfinite().all()


def test_boundary_gating_by_hand():
    """G = 8, k = 16: u(c) / u(1) is a product of which all but c - 1 factors cancel."""
    reward = torch.tril(torch.ones(9, 8, dtype=torch.float64), -1)  # 0 to 8 right ones
    weight = [22 / 6, 1, 6 / 22, 6 * 5 / (22 * 21), 6 * 5 * 4 / (22 * 21 * 20), 0, 0, 0, 0]
    got = rivals.boundary_gate(reward, 16, 0.01)
    plain = rivals.boundary_gate(reward, 1, 0.0) / torch.tensor(
        [max(8 - c, 1) / 7 for c in range(9)], dtype=torch.float64
    ).unsqueeze(-1)
    for c in range(1, 8):
        assert (got[c] / plain[c]).tolist() == pytest.approx([weight[c]] * 8), c


def test_boundary_gating_keeps_what_is_at_its_floor():
    reward = torch.tril(torch.ones(9, 8, dtype=torch.float64), -1)  # 0 to 8 right ones
    got = rivals.boundary_gate(reward, 1, 1.0)  # the weight of one right one is 1
    assert [bool((row != 0).any()) for row in got] == [c == 1 for c in range(9)]


def test_raft_of_one_right_token_has_the_whole_weight():
    # Of 6 tokens one is right: with a mean over tokens its advantage has to be 6.
    reward, length = torch.tensor([[1.0, 0.0]]), torch.tensor([[1, 5]])
    got = rivals.right_alone(Outcomes(reward, reward, reward, length))
    assert got.tolist() == [[6.0, 0.0]]


# Surrogates: a token at a time.


def batch(seed: int) -> dict:
    """Ragged rows whose policy moved by about 0.5, and some of their tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in rng.integers(1, 7, 6):
        new = (-3 * rng.random(length)).tolist()
        old = [x + 0.5 * rng.standard_normal() for x in new]
        chosen = (rng.random(length) < 0.3).tolist()
        rows.append({"new": new, "old": old, "chosen": chosen, "a": float(rng.standard_normal())})
    rows[0]["a"] = 0.0
    return {"rows": rows, "width": max(len(row["new"]) for row in rows)}


def tensors(made: dict) -> Terms:
    def filled(key, filler, dtype=torch.float64):
        rows = [row[key] + [filler] * (made["width"] - len(row[key])) for row in made["rows"]]
        return torch.tensor(rows, dtype=dtype)

    mask = ~filled("new", math.nan).isnan()
    weight = torch.full((len(made["rows"]),), 0.25, dtype=torch.float64)
    adv = torch.tensor([row["a"] for row in made["rows"]], dtype=torch.float64)
    new, chosen = filled("new", math.nan).requires_grad_(), filled("chosen", False, torch.bool)
    return Terms(new, filled("old", math.nan), None, adv, weight, mask, None, chosen)


def cispo(new, old, a, chosen, s):
    """Value, slope in log p, and whether the ratio is out of bounds."""
    capped = min(math.exp(new - old), s["max_ratio"])
    return -capped * a * new, -capped * a, math.exp(new - old) > s["max_ratio"]


def kl_cov(new, old, a, chosen, s):
    ratio = math.exp(new - old)
    value, slope = -ratio * a, -ratio * a
    if chosen:
        value += s["coefficient"] * abs(new - old)
        slope += s["coefficient"] * (1 if new > old else -1)
    return value, slope, False


def clip_cov(new, old, a, chosen, s):
    if chosen:
        return 0.0, 0.0, True
    ratio = math.exp(new - old)
    if (a > 0 and ratio > 1.2) or (a < 0 and ratio < 0.8):
        return -a * (1.2 if a > 0 else 0.8), 0.0, True
    return -ratio * a, -ratio * a, False


def raft(new, old, a, chosen, s):
    return -a * new, -a, False


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "by_hand", "keys"),
    [
        ("cispo", cispo, {"max_ratio": 1.3}),
        ("kl_cov", kl_cov, {"coefficient": 0.7}),
        ("clip_cov", clip_cov, {"eps": 0.2}),
        ("raft", raft, {}),
    ],
)
def test_a_surrogate_is_the_one_by_hand(name, by_hand, keys, seed):
    made = batch(seed)
    terms = tensors(made)
    algorithm = algorithm_of(RL(algorithm={"type": name, **keys}).algorithm)
    loss, sums = policy_loss(terms, algorithm, 0.0)
    loss.backward()
    value, out = 0.0, 0
    for number, row in enumerate(made["rows"]):
        for t, token in enumerate(zip(row["new"], row["old"], strict=True)):
            term, slope, outside = by_hand(*token, row["a"], row["chosen"][t], keys)
            value, out = value + 0.25 * term, out + outside
            got = float(terms.new_BT.grad[number, t])
            assert got == pytest.approx(0.25 * slope, abs=1e-12), (number, t)
    assert float(loss.detach()) == pytest.approx(value, abs=1e-12)
    assert int(sums["clipped"]) == out
    assert out > 0 or name in ("kl_cov", "raft")
    assert (terms.new_BT.grad[~terms.mask_BT] == 0).all()


def test_cispo_at_its_bound_is_not_out_of_it():
    terms = tensors(batch(0))
    same = replace(terms, old_BT=terms.new_BT.detach())
    algorithm = algorithm_of(RL(algorithm={"type": "cispo", "max_ratio": 1.0}).algorithm)
    assert int(policy_loss(same, algorithm, 0.0)[1]["clipped"]) == 0


def test_where_no_tokens_were_chosen_none_are_treated_apart():
    terms = tensors(batch(0))
    chosen, none = torch.zeros_like(terms.mask_BT), replace(terms, chosen_BT=None)
    for name in ("kl_cov", "clip_cov"):
        algorithm = algorithm_of(RL(algorithm={"type": name}).algorithm)
        got, want = (
            policy_loss(t, algorithm, 0.0) for t in (none, replace(terms, chosen_BT=chosen))
        )
        assert float(got[0].detach()) == float(want[0].detach())
        assert int(got[1]["clipped"]) == int(want[1]["clipped"])


@pytest.mark.parametrize("seed", range(3))
def test_raft_is_the_mean_cross_entropy_of_right_tokens(seed):
    made = groups(seed)
    raft = algorithm_of(RL(algorithm={"type": "raft"}).algorithm)
    rows = [one for group in made for one in group]
    adv = raft.advantage(outcomes(made)).flatten()
    weight = raft.weight(torch.tensor([len(one["tokens"]) for one in rows]), 20).double()
    got = sum(
        float(a * w) * -sum(one["tokens"]) for a, w, one in zip(adv, weight, rows, strict=True)
    )
    right = [x for one in rows if one["r"] == 1 for x in one["tokens"]]
    assert got == pytest.approx(-sum(right) / len(right), rel=1e-6)
    assert [float(a) == 0 for a in adv] == [one["r"] == 0 for one in rows]
    wrong = outcomes([[{**one, "r": 0.0} for one in group] for group in made])
    assert (raft.advantage(wrong) == 0).all()


# Which tokens.


def covariances(adv, logp) -> list[float]:
    mean_a, mean_l = sum(adv) / len(adv), sum(logp) / len(logp)
    return [(a - mean_a) * (x - mean_l) for a, x in zip(adv, logp, strict=True)]


@pytest.mark.parametrize("share", [1e-4, 0.02, 0.1])
def test_kl_cov_takes_the_largest_covariances(share):
    rng = np.random.default_rng(3)
    adv, logp = rng.standard_normal(200), -3 * rng.random(200)
    got = rivals.largest_covariance(torch.tensor(adv), torch.tensor(logp), 0, share)
    cov = covariances(adv.tolist(), logp.tolist())
    want = sorted(range(200), key=lambda i: -cov[i])[: max(1, math.floor(share * 200))]
    assert set(got.nonzero().flatten().tolist()) == set(want)


def test_kl_cov_takes_nothing_where_nothing_is_learnt():
    logp = torch.linspace(-3, 0, 50)
    assert not rivals.largest_covariance(torch.zeros(50), logp, 0, 0.1).any()


def test_kl_cov_takes_the_largest_however_small_it_is():
    adv, logp = torch.tensor([0.01, -0.01, 0.0]), torch.tensor([-1.0, -3.0, -2.5])
    assert rivals.largest_covariance(adv, logp, 0, 0.4).tolist() == [True, False, False]


def test_clip_covs_bounds_are_not_within():
    adv, logp = torch.tensor([2.0, -2.0]), torch.tensor([-1.0, -3.0])  # covariances 2 and 2
    for low, high, count in ((2.0, 5.0, 0), (1.0, 2.0, 0), (1.0, 5.0, 2)):
        got = rivals.large_covariance(adv, logp, 0, 1.0, low, high)
        assert got.dtype == torch.bool
        assert int(got.sum()) == count


def test_clip_cov_draws_among_the_large_covariances():
    rng = np.random.default_rng(4)
    adv, logp = 2 * rng.standard_normal(500), -3 * rng.random(500)
    cov = covariances(adv.tolist(), logp.tolist())
    within = {i for i, value in enumerate(cov) if 1.0 < value < 3.0}

    def drawn(seed, share):
        made = (torch.tensor(adv), torch.tensor(logp), seed, share, 1.0, 3.0)
        return set(rivals.large_covariance(*made).nonzero().flatten().tolist())

    assert 20 < len(within) < 480
    assert drawn(1, 0.02) < within
    assert len(drawn(1, 0.02)) == 10
    assert len(drawn(1, 1e-5)) == 1
    assert drawn(1, 0.99) == within  # no more than there are
    assert drawn(1, 0.02) == drawn(1, 0.02) != drawn(2, 0.02)  # by the seed
