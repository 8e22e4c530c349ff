"""What families do to their logits, by hand; test_logprobs compares with the models themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sps.logits import logit_change, scaled_logits


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({}, (1.0, None)),
        ({"logit_scale": None, "logits_scaling": None}, (1.0, None)),
        ({"logit_scale": 2.0, "lm_head_multiplier": 3.0, "output_multiplier": 5.0}, (30.0, None)),
        ({"model_type": "granite", "logits_scaling": 4.0}, (0.25, None)),
        ({"model_type": "hyperclovax_vlm", "logits_scaling": 4.0}, (4.0, None)),
        ({"final_logit_softcapping": 30.0}, (1.0, 30.0)),
    ],
)
def test_factor_and_cap_by_family(config, want):
    assert logit_change(SimpleNamespace(**config)) == want


def test_logits_are_scaled_and_then_capped():
    raw = torch.tensor([1.0, -2.0])
    assert scaled_logits(raw, SimpleNamespace()).tolist() == [1, -2]
    assert scaled_logits(raw, SimpleNamespace(logit_scale=2.0)).tolist() == [2, -4]
    capped = scaled_logits(raw, SimpleNamespace(logit_scale=2.0, final_logit_softcapping=4.0))
    assert capped.tolist() == pytest.approx([4 * 0.46211716, -4 * 0.76159416])  # tanh 1/2, tanh 1
