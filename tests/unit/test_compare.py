"""Where the runs of a comparison go."""

import os
from pathlib import Path
from queue import Queue

import pytest
import torch

from sps.compare import Job, _gpus, _take_card
from sps.config import parse_recipe


def job(**model):
    return Job("x", parse_recipe({"model": model}, "test"), Path())


@pytest.mark.parametrize(
    ("model", "cards"),
    [({}, 0), ({"device": "cpu", "path": "a/b"}, 0), ({"path": "a/b"}, 3), ({"device": "cuda"}, 3)],
)
def test_models_go_to_gpus_and_the_embedded_policy_to_cores(monkeypatch, model, cards):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert _gpus([job(**model)]) == cards
    assert _gpus([job(), job(**model)]) == cards


@pytest.mark.parametrize(("visible", "want"), [(None, ["0", "1"]), ("4,6", ["4", "6"])])
def test_each_worker_sees_one_gpu_of_those_allowed(monkeypatch, visible, want):
    cards = Queue()
    got = []
    for number in (0, 1):
        cards.put(number)
    for _ in range(2):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        _take_card(cards)
        got.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert got == want
