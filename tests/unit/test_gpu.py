"""What an error about GPU memory says of other programs."""

import pytest
import torch

from sps.run.gpu import held_by_others

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "own", "said"),
    [
        (20, 30, " Other programs hold 90 of the GPU's 140 GiB."),
        (20, 107, ""),  # 13 of 140 GiB are little: CUDA's own, and gaps
        (0, 125, " Other programs hold 15 of the GPU's 140 GiB."),
    ],
)
def test_others_are_what_is_neither_free_nor_ours(monkeypatch, free, own, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: own * GIB)
    assert held_by_others() == said


def test_without_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert held_by_others() == ""
