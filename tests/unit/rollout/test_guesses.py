"""Where guesses of the next tokens come from."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sps.build import make_engine
from sps.config.recipe import Rollouts
from sps.rollout.cuda.guesses import SIZES, Group


def plain(texts, number, most):
    """The same by looking at every place of every text; `texts` in the order they were written."""
    own = [token for who, token in texts if who == number]
    for size in SIZES:
        end, found, so_far = own[-size:], None, {}
        if len(end) < size:
            continue
        for who, token in texts:
            so_far.setdefault(who, []).append(token)
            before = so_far[who][-size - 1 : -1]
            if before == end:
                found = who, len(so_far[who]) - 1
        if found:
            return so_far[found[0]][found[1] : found[1] + most]
    return []


def test_a_guess_goes_on_as_the_latest_place_with_the_longest_end_did():
    rng = np.random.default_rng(0)
    group, written, given = Group((3, 1, 2)), [(0, 3), (0, 1), (0, 2)], 0
    numbers = [group.add([]) for _ in range(3)]
    for _ in range(300):
        number = int(rng.choice(numbers))
        ids = rng.integers(0, 4, rng.integers(1, 6)).tolist()
        group.extend(number, ids)
        group.look()
        written += [(number, token) for token in ids]
        found = group.guess(number, 5)
        assert found == plain(written, number, 5)
        given += len(found)
    assert given > 600


def test_nothing_is_guessed_behind_what_is_new():
    group = Group((5, 6, 7))
    text = group.add([8, 9])
    assert group.guess(text, 4) == []
    group.extend(text, [6])
    assert group.guess(text, 4) == [7]
    group.extend(text, [4, 6])
    assert group.guess(text, 4) == [7]  # not looked at yet
    group.look()
    assert group.guess(text, 4) == [4, 6]


@pytest.mark.parametrize("asked", [True, False])
def test_the_recipes_key_reaches_the_engine_on_a_gpu(monkeypatch, asked):
    made = SimpleNamespace(CudaEngine=lambda *arguments: arguments)
    monkeypatch.setitem(sys.modules, "sps.rollout.cuda.engine", made)
    monkeypatch.setattr("sps.rollout.native.layers.supports_kernels", lambda model: True)
    model = SimpleNamespace(device=SimpleNamespace(type="cuda"), compute_dtype=torch.bfloat16)
    policy = SimpleNamespace(model=model, eos_ids=[1], pad_id=0)
    rollout = Rollouts.model_validate({"native": {"speculate": asked}})
    assert make_engine(policy, 4, rollout) == (model, [1], 0, 4, asked)
