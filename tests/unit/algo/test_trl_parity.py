"""TRL 1.16's own loss, run on the same tensors: values and gradients agree."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from sps.algo.rl import Terms, normalised, policy_loss
from sps.algo.table import algorithm_of
from sps.config.rl import RL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trl_trainer = pytest.importorskip("trl.trainer.grpo_trainer")

B, T, LIMIT = 6, 7, 11
LOSS_TYPE = {"grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr_grpo", "gspo": "grpo"}


def tensors(seed: int) -> SimpleNamespace:
    """Ragged completions whose policy has moved far enough that some ratios are clipped."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    new = -normal(B, T).abs()
    length = torch.tensor([7, 1, 4, 6, 2, 5])
    return SimpleNamespace(
        new=new,
        old=new + 0.3 * normal(B, T),
        ref=new + 0.5 * normal(B, T),
        adv=normal(B),
        length=length,
        mask=torch.arange(T)[None] < length[:, None],
    )


def stand_in(name: str, new: torch.Tensor, low: float, high: float, beta: float) -> SimpleNamespace:
    """What GRPOTrainer._compute_loss reads of its `self`."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if name == "gspo" else "token",
        beta=beta,
        loss_type=LOSS_TYPE[name],
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        max_completion_length=LIMIT,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def trl_loss(name, t, low, high, beta):
    new = t.new.clone().requires_grad_()
    trainer = stand_in(name, new, low, high, beta)
    inputs = {
        "prompt_ids": torch.zeros(B, 3, dtype=torch.long),
        "prompt_mask": torch.ones(B, 3, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": t.mask.long(),
        "advantages": t.adv,
        "old_per_token_logps": t.old,
        "ref_per_token_logps": t.ref,
        "num_items_in_batch": t.mask.sum(),
    }
    loss = trl_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), new.grad, trainer._metrics["train"]


def our_loss(name, t, low, high, beta):
    new = t.new.clone().requires_grad_()
    keys = {"max_ratio": high} if name == "cispo" else {"eps": low}
    if name in ("dapo", "gspo"):
        keys["eps_high"] = high
    algorithm = algorithm_of(RL(algorithm={"type": name, **keys}).algorithm)
    terms = Terms(new, t.old, t.ref, t.adv, algorithm.weight(t.length, LIMIT), t.mask)
    loss, sums = policy_loss(terms, algorithm, beta)
    loss.backward()
    return loss.item(), new.grad, sums


CASES = [
    ("grpo", 0.2, 0.2, 0.0),
    ("grpo", 0.2, 0.2, 0.04),
    ("dapo", 0.2, 0.28, 0.0),
    ("dapo", 0.2, 0.28, 0.1),
    ("dr_grpo", 0.2, 0.2, 0.0),
    ("dr_grpo", 0.2, 0.2, 0.1),
    ("gspo", 0.05, 0.1, 0.0),
    ("gspo", 3e-4, 4e-4, 0.01),
]


@pytest.mark.parametrize(("name", "low", "high", "beta"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_agree_with_trl(name, low, high, beta, seed):
    t = tensors(seed)
    want, want_gradient, metrics = trl_loss(name, t, low, high, beta)
    got, got_gradient, sums = our_loss(name, t, low, high, beta)
    assert got == pytest.approx(want, abs=1e-6, rel=1e-6)
    assert (got_gradient - want_gradient).abs().max() < 1e-6
    assert want_gradient.abs().max() > 1e-3  # there is a gradient to agree on
    if beta:
        assert float(sums["kl"] / sums["tokens"]) == pytest.approx(metrics["kl"][0], abs=1e-6)


@pytest.mark.parametrize(("name", "low", "high", "beta"), CASES)
def test_some_ratios_are_clipped_on_these_tensors(name, low, high, beta):
    # Otherwise agreement would say nothing about the clip.
    _, _, metrics = trl_loss(name, tensors(0), low, high, beta)
    _, _, sums = our_loss(name, tensors(0), low, high, beta)
    assert metrics["clip_ratio/region_mean"][0] > 0.1
    if name != "gspo":  # TRL counts sequences there, we count tokens
        assert float(sums["clipped"] / sums["tokens"]) == pytest.approx(
            metrics["clip_ratio/region_mean"][0], abs=1e-6
        )


@pytest.mark.parametrize("seed", range(5))
def test_advantages_agree_with_trl(seed):
    rng = torch.Generator().manual_seed(seed)
    reward = (torch.rand(4, 8, generator=rng) < 0.4).double()
    reward[0] = 1.0  # a group that agrees
    # grpo_trainer.py with scale_rewards='group': deviation by its own nanstd (n - 1).
    flat = reward.flatten()
    mean = torch.nanmean(reward, dim=1).repeat_interleave(8)
    deviation = trl_trainer.nanstd(flat.view(-1, 8), dim=1).repeat_interleave(8)
    want = (flat - mean) / (deviation + 1e-4)
    assert (normalised(reward).flatten() - want).abs().max() < 1e-6
    assert (want[:8] == 0).all()
