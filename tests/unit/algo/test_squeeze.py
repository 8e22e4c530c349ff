"""Movement, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sps.algo.squeeze import moved_kl


def test_moved_kl_by_hand():
    # Gaps ln 2 and 0 over two real tokens: (ln 2)^2 / 2 / 2 = 0.120113; the pad is not counted.
    before = torch.tensor([[-1.0, -1.0, -math.inf]])
    after = torch.tensor([[-1.0 + math.log(2), -1.0, 4.0]])
    mask = torch.tensor([[True, True, False]])
    assert moved_kl(before, after, mask) == pytest.approx(0.120113, abs=1e-6)


def test_moved_kl_of_a_policy_that_stood_still_is_zero():
    same = torch.tensor([[-1.0, -2.0]])
    assert moved_kl(same, same, torch.ones(1, 2, dtype=torch.bool)) == 0.0
    assert moved_kl(same, same, torch.zeros(1, 2, dtype=torch.bool)) == 0.0  # no token at all


def test_moved_kl_of_one_token():
    before, after = torch.zeros(1, 1), torch.full((1, 1), math.log(2))
    assert moved_kl(before, after, torch.ones(1, 1, dtype=torch.bool)) == pytest.approx(
        0.240227, abs=1e-6
    )


def test_one_token_that_was_forgotten_and_is_known_again_is_not_all_that_counts():
    before, after = torch.tensor([[-25.0, -1.0]]), torch.tensor([[-1.0, -1.0]])
    assert moved_kl(before, after, torch.ones(1, 2, dtype=torch.bool)) == 144  # 24 ** 2 / 2 / 2
