"""SPS inside TRL, against selection and steps by hand on what TRL generated."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from conftest import make_policy

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own

DAMPED = {"betas": [0.7, 0.9], "eps": 1e-2, "weight_decay": 0.05, "max_grad_norm": 100.0}
BASE = {"every": 2, "steps": 3, "keep": 2, "lr": 5e-3, "batch": 5, "optimizer": DAMPED}
CASES = {
    "plain": ({}, {}),
    "hot": ({"reduce": "sequence"}, {"temperature": 1.4}),
    "cold": (
        {"selector": {"type": "positive", "likelihood": "sum"}, "micro_tokens": 30},
        {"temperature": 0.7},
    ),
    "policy": (
        {"selector": {"under": "policy", "quantile_over": "batch"}, "optimizer_state": "kept"},
        {"temperature": 0.7},
    ),
    "own_rate_clipped": (
        {"lr": None, "optimizer": {**DAMPED, "max_grad_norm": 0.05}, "keep": 3},
        {"lr_scheduler_type": "linear"},
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_phase_is_the_one_by_hand(name, tmp_path):
    from trl_runs import Before, make_trainer, odd

    from sps.integrations.trl import SPSCallback

    how, settings = CASES[name]
    irl = {**BASE, **how}
    sps = SPSCallback(**irl)
    before = Before(sps)
    trainer = make_trainer(tmp_path, sps.watch(odd), [before, sps], max_steps=4, **settings)
    trainer.train()
    temperature = settings.get("temperature", 1.0)
    drawn = [rows for training, rows in trainer.seen if training]
    assert len(drawn) == len(before.steps) == 4
    rates = [1e-3, 0.75e-3, 0.5e-3, 0.25e-3] if "lr_scheduler_type" in settings else [1e-3] * 4
    learner = None
    for phase in (0, 1):
        steps = (2 * phase, 2 * phase + 1)
        batches = [groups_of(drawn[step], before.steps[step], temperature) for step in steps]
        weights, _ = before.phases[phase]
        learner = learner_of(weights, irl, learner)
        rate = oracle.irl_rate(irl, np.mean([rates[step] for step in steps]), 2)
        rng = np.random.default_rng([42, 7919, phase + 1])  # 42 is TRL's seed unless one is given
        kept, wanted = oracle.irl_phase(learner, batches, irl, rate, temperature, rng)
        told = [r for r in sps.history if (r["kind"], r["step"]) == ("irl", 2 * phase + 2)]
        assert (told[0]["kept"], told[0]["lr"]) == (len(kept), pytest.approx(rate, rel=1e-6))
        for got, want in zip(told[1:], wanted, strict=True):
            assert {k: got[k] for k in want} == pytest.approx(want, rel=2e-4)
        after = before.steps[2] if phase == 0 else trainer.model.state_dict()
        policy = make_policy()
        policy.model.load_state_dict(after)
        oracle.assert_same_weights(policy.model, learner, weights)


def groups_of(rows, weights, temperature):
    """What TRL drew in one step, in groups of 4, with its likelihood under the weights then."""
    policy = make_policy()
    policy.model.load_state_dict(weights)
    sampler = oracle.Learner(policy.model)
    made = []
    for prompt, ids in rows:
        with torch.no_grad():
            logp, _ = sampler.tokens(prompt, ids, temperature)
        made.append(oracle.Row([*prompt], [*ids], float(sum(ids) % 2), logp.tolist()))
    return [made[at : at + 4] for at in range(0, len(made), 4)]


def learner_of(weights, irl, known):
    """With these weights; with its history where that is kept."""
    policy = make_policy()
    policy.model.load_state_dict(weights)
    own = irl["optimizer"]
    fresh = oracle.Learner(policy.model, own["betas"], own["eps"], own["weight_decay"])
    if known is None or irl.get("optimizer_state") != "kept":
        return fresh
    known.model.load_state_dict(fresh.model.state_dict())
    return known
