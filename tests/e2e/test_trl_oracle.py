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


def first_word(text):
    return text.split(" ")[0]


MEMORY_CASES = {
    "plain": ({"memory": {"weight": 0.7, "share": 9.0}}, {}),
    "clipped_accumulated": (
        {"memory": {"weight": 0.3, "share": 9.0}, "mode": first_word, "micro_tokens": 30},
        {
            "max_grad_norm": 0.05,
            "gradient_accumulation_steps": 2,
            "per_device_train_batch_size": 8,
            "temperature": 0.8,
        },
    ),
}
TRL = {"loss_type": "grpo", "adam_epsilon": 1e-2, "lr_scheduler_type": "constant"}
TRL |= {"learning_rate": 2e-2, "max_grad_norm": 100.0}


def test_a_resumed_run_remembers_what_was_drawn_before_the_checkpoint(tmp_path):
    """By hand, the steps before it and those after it are one run."""
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    by_hand, drawn = MemoryByHand(0.7), []
    for steps, resume in ((4, None), (6, str(tmp_path / "checkpoint-4"))):
        sps = SPSCallback(steps=0, memory={"weight": 0.7, "share": 9.0})
        settings = {**TRL, "max_steps": steps, "save_strategy": "steps", "save_steps": 4}
        trainer = make_trainer(tmp_path, sps.watch(odd), [sps], **settings)
        trainer.train(resume_from_checkpoint=resume)
        drawn += [rows for training, rows in trainer.seen if training]
    assert len(drawn) == 6
    for rows in drawn:
        by_hand.step(rows)
    assert by_hand.again > 2  # of the first four steps, after the checkpoint
    told = [(r["recalled"], r["size"]) for r in sps.history if r["kind"] == "memory"]
    assert told == [counts[:2] for counts in by_hand.told]
    oracle.assert_same_weights(trainer.model, by_hand.learner, by_hand.start, tolerance=1e-3)


def test_memory_on_two_ranks_is_the_one_by_hand(two_ranks):
    first, second = two_ranks
    by_hand = MemoryByHand(0.7)
    for own, others in zip(first["drawn"], second["drawn"], strict=True):
        assert len(own) == len(others) == 6
        by_hand.step(own + others)
    for rank in (first, second):
        policy = make_policy()
        policy.model.load_state_dict(rank["remembering"])
        oracle.assert_same_weights(policy.model, by_hand.learner, by_hand.start, tolerance=1e-3)
    told = [(r["recalled"], r["size"]) for r in first["memory"]]
    assert told == [counts[:2] for counts in by_hand.told]
    assert [r["nll"] for r in first["memory"]] == pytest.approx(
        [nll for *_, nll in by_hand.told], rel=1e-3
    )


class MemoryByHand:
    """GRPO steps of TRL with memory once more, from what TRL drew."""

    def __init__(self, weight, mode=None, temperature=1.0, most=100.0):
        self.policy = make_policy()
        self.start = {n: p.detach().clone() for n, p in self.policy.model.named_parameters()}
        self.learner = oracle.Learner(self.policy.model, eps=1e-2)
        self.weight, self.mode, self.temperature, self.most = weight, mode, temperature, most
        self.known, self.told, self.again = {}, [], 0

    def step(self, rows):
        made = [oracle.Row([*p], [*ids], float(sum(ids) % 2), []) for p, ids in rows]
        for row in made:
            words = self.policy.tokenizer.convert_ids_to_tokens(row.ids)
            text = " ".join(w for w in words if w not in self.policy.tokenizer.all_special_tokens)
            row.key = (len(self.told), self.mode(text) if self.mode else text)
            if row.reward > 0:
                self.known.setdefault(tuple(row.prompt), {})[row.key[1]] = row
        prompts = dict.fromkeys(tuple(row.prompt) for row in made)
        recalled = [r for p in prompts for r in self.known.get(p, {}).values()]
        self.again += sum(row.key[0] < len(self.told) for row in recalled)
        groups = [made[at : at + 4] for at in range(0, len(made), 4)]
        how = {"lr": 2e-2, "most": self.most, "temperature": self.temperature}
        step = oracle.grpo_step_beside_memory(self.learner, groups, recalled, self.weight, **how)
        self.told.append((len(recalled), sum(map(len, self.known.values())), step))


@pytest.mark.parametrize("name", sorted(MEMORY_CASES))
def test_memory_beside_each_step_is_the_one_by_hand(name, tmp_path):
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    how, settings = MEMORY_CASES[name]
    sps = SPSCallback(steps=0, **how)
    trainer = make_trainer(tmp_path, sps.watch(odd), [sps], max_steps=6, **TRL | settings)
    trainer.train()
    given = {"temperature": settings.get("temperature", 1.0)}
    given["most"] = settings.get("max_grad_norm", 100.0)
    by_hand = MemoryByHand(how["memory"]["weight"], how.get("mode"), **given)
    drawn = [rows for training, rows in trainer.seen if training]
    assert [len(rows) for rows in drawn] == [16] * 6
    for rows in drawn:
        by_hand.step(rows)
    assert by_hand.again > 2  # prompts came back, and what was drawn for them before
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    assert (max(norms) > given["most"]) == ("clipped" in name)
    told = [r for r in sps.history if r["kind"] == "memory"]
    assert [r["step"] for r in told] == [1, 2, 3, 4, 5, 6]
    for got, (recalled, size, nll) in zip(told, by_hand.told, strict=True):
        assert (got["recalled"], got["size"]) == (recalled, size)
        assert got["nll"] == pytest.approx(nll, rel=1e-3)
    oracle.assert_same_weights(trainer.model, by_hand.learner, by_hand.start, tolerance=1e-3)
