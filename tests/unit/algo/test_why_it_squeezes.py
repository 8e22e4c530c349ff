"""docs/algorithm.md: one problem, six answers, two of them right; exact gradients, no sampling."""

from __future__ import annotations

import math

import pytest
import torch

from sps.algo.irl import forward_kl

START = torch.tensor([0.08, 0.02, 0.5, 0.2, 0.15, 0.05], dtype=torch.float64)
REWARD = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
EVEN = REWARD / 2  # over the right answers


def rl(logp):
    return -(logp.exp() * REWARD).sum()


def towards(q):
    """The product's forward KL; each answer is a rollout of one token, with the weight q."""
    return lambda logp: forward_kl(logp[:, None], q, torch.ones(6, 1, dtype=torch.bool))


def gradient(loss, z):
    z = z.clone().requires_grad_()
    loss(z.log_softmax(0)).backward()
    return z.grad


def trained(loss, steps=50, lr=0.5):
    z = START.log()
    for _ in range(steps):
        z = z - lr * gradient(loss, z)
    return z.softmax(0)


def test_both_gradients_are_as_printed():
    success = 0.1
    assert torch.allclose(-gradient(rl, START.log()), START * (REWARD - success))
    assert torch.allclose(-gradient(towards(EVEN), START.log()), EVEN - START)


def test_of_two_right_answers_rl_raises_the_likelier_one():
    after = (START.log() - 0.5 * gradient(rl, START.log())).softmax(0)
    moved = math.log(after[0] / after[1]) - math.log(4)
    assert moved == pytest.approx(0.5 * (0.08 - 0.02) * (1 - 0.1))
    likely, rare = trained(rl)[:2].tolist()
    assert (round(likely, 2), round(rare, 2)) == (0.91, 0.01)
    assert rare < 0.02  # less than before training, although it is right


@pytest.mark.parametrize("with_rl", [True, False])
def test_memory_holds_both_and_ends_where_rl_may_end(with_rl):
    def loss(logp):
        return with_rl * rl(logp) + towards(EVEN)(logp)

    assert [round(p, 2) for p in trained(loss)[:2].tolist()] == [0.48 if with_rl else 0.47] * 2
    end = trained(loss, 1000, lr=2.0)
    assert float(end @ REWARD) > 0.999
    assert float(end[0]) == pytest.approx(float(end[1]))


def test_a_target_of_unlikely_wrong_answers_costs_success():
    target = torch.tensor([0.0, 0.3, 0, 0, 0.2, 0.5], dtype=torch.float64)
    end = trained(lambda logp: rl(logp) + 0.05 * towards(target)(logp), 1000, lr=2.0)
    assert float(end[1]) > 0.1  # the rare right answer is held
    assert 0.9 < float(end @ REWARD) < 0.98
