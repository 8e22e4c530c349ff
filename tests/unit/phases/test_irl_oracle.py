"""IRL phases against selection and steps written by hand (tests/oracle.py)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from made_run import open_made_run, save_model

from sps.phases.irl import irl_phase
from sps.phases.schedule import Phase
from sps.types import Rollout, Verdict

SELECTORS = ["l2te", "uniform", "low_likelihood", "low_likelihood_positive", "positive", "negative"]
CASES = {
    **{name: {"selector": {"type": name}} for name in SELECTORS},
    "one_batch": {"batch": 512},
    "sequence": {"reduce": "sequence"},
    "sum": {"selector": {"likelihood": "sum"}},
    "policy": {"selector": {"under": "policy"}},
    "policy_sum": {"selector": {"under": "policy", "likelihood": "sum", "type": "low_likelihood"}},
    "over_batch": {"selector": {"quantile_over": "batch"}},
    "quarter": {"selector": {"quantile": 0.25}, "keep": 3},
    "over_batch_policy": {
        "selector": {"quantile_over": "batch", "under": "policy", "quantile": 0.75},
        "keep": 1,
    },
    "kept_state": {"optimizer_state": "kept"},
    "kept_state_own_rate": {"optimizer_state": "kept", "lr": None},
    "own_rate": {"lr": None, "reach": 0.5},
    "many_passes": {"batch": 5, "steps": 7},
    "clipped_gradient": {"optimizer__max_grad_norm": 0.05},
    "adamw_defaults": {"optimizer": {}, "lr": 1e-3},
}
SEED, N = 1, 4  # of made_run.recipe_of, as are phases of 2 steps


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


def made_rollouts(step, groups=3):
    """Of many lengths, rewards and likelihoods; the last group is all right."""
    rng = np.random.default_rng(step)
    made = []
    for group in range(groups):
        prompt = rng.integers(1, 100, rng.integers(2, 7)).astype(np.int32)
        rewards = [1.0] * N if group == groups - 1 else rng.permutation([0.0, 1.0, -0.5, 0.25])
        for sample, reward in enumerate(map(float, rewards)):
            length = int(rng.integers(1, 9))
            made.append(
                Rollout(
                    f"p{group}",
                    prompt,
                    rng.integers(1, 100, length).astype(np.int32),
                    -rng.exponential(1.0, length).astype(np.float32),
                    reward,
                    Verdict("correct" if reward > 0 else "wrong", float(reward > 0)),
                    step,
                    step - 1,
                    group,
                    sample,
                    bool(rng.random() < 0.7),
                )
            )
    return made


class ByHand:
    """IRL phases once more."""

    def __init__(self, run, tree):
        self.irl, self.temperature = tree["irl"], tree["rollout"]["temperature"]
        model = run.policy.model
        self.start = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.rl_lr = tree["rl"]["lr"]
        self.learner = self.fresh(model)

    def fresh(self, model, own=True):
        given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0} | self.irl["optimizer"]
        given.pop("max_grad_norm", None)
        return oracle.Learner(model, **given, own=own)

    def phase(self, number, steps):
        """The kept rollouts, and the metrics of the steps."""
        if self.irl.get("optimizer_state", "fresh") == "fresh":
            self.learner = self.fresh(self.learner.model, own=False)
        rng = np.random.default_rng([SEED, 7919, number])
        self.rate = oracle.irl_rate(self.irl, self.rl_lr, len(steps))
        rows = [[row_of(r) for r in rollouts] for rollouts in steps]
        groups = [[some[at : at + N] for at in range(0, len(some), N)] for some in rows]
        how = (self.irl, self.rate, self.temperature, rng)
        kept, told = oracle.irl_phase(self.learner, groups, *how)
        known = {(r.step, r.group, r.sample): r for rollouts in steps for r in rollouts}
        return [known[row.key] for row in kept], told


def row_of(r):
    key = (r.step, r.group, r.sample)
    return oracle.Row(r.prompt_ids.tolist(), r.ids.tolist(), r.reward, r.logprobs.tolist(), key=key)


SMALL_PASSES = [(name, 30) for name in ("l2te", "sequence", "policy")]


@pytest.mark.parametrize(
    ("name", "micro_tokens"), [*((name, 16384) for name in sorted(CASES)), *SMALL_PASSES]
)
def test_phases_are_the_ones_by_hand(name, micro_tokens, model_folder, tmp_path):
    changes = {f"irl__{key}": value for key, value in CASES[name].items()}
    changes |= {"rl__micro_tokens": micro_tokens, "rl__steps": 5}
    run, tree = open_made_run(model_folder, tmp_path / "run", **changes)
    by_hand = ByHand(run, tree)
    # The second was resumed in the middle, after step 3; the third is cut short.
    for number, first, steps in ((1, 1, (1, 2)), (2, 4, (3, 4)), (3, 5, (5,))):
        rollouts = [r for step in steps for r in made_rollouts(step)]
        for step in steps:
            run.store.append(step, [r for r in rollouts if r.step == step])
        version = run.policy.version
        kept, wanted = by_hand.phase(number, [made_rollouts(step) for step in steps])
        phase = next(run.schedule.phases(done=first - 1))
        assert (phase.number, phase.start, phase.last) == (number, steps[0], steps[-1])
        told, *learnt = irl_phase(run, phase)
        assert told["kept"] == len(kept) > 0
        assert told["lr"] == pytest.approx(by_hand.rate, rel=1e-9)
        assert told["kept_right"] == pytest.approx(np.mean([r.reward > 0 for r in kept]))
        assert told["kept_cut_off"] == pytest.approx(np.mean([not r.finished for r in kept]))
        table = run.store.read(steps[0], steps[-1]).to_pylist()
        marked = {(r["step"], r["group"], r["sample"]) for r in table if r["kept"]}
        assert marked == {(r.step, r.group, r.sample) for r in kept}
        assert len(table) == len(rollouts)
        assert len(learnt) == len(wanted) == tree["irl"]["steps"]
        for got, want in zip(learnt, wanted, strict=True):
            assert {k: got[k] for k in want} == pytest.approx(want, rel=2e-4)
        assert run.policy.version == version + len(wanted)
        if name != "adamw_defaults":  # where the smallest gradients count as much as the largest
            oracle.assert_same_weights(run.policy.model, by_hand.learner, by_hand.start)


@pytest.mark.parametrize("how", [{}, {"age": 2}, {"distinct": False}, {"quantile": 0.5}])
def test_phases_on_memory_are_the_ones_by_hand(how, model_folder, tmp_path):
    """Of three problems the last right rollout of each text, drawn from over both phases."""
    changes = {"irl__memory": {"when": "phase", **how}, "irl__batch": 5, "irl__keep": 3}
    run, tree = open_made_run(model_folder, tmp_path / "run", rl__steps=4, **changes)
    run.task.mode = lambda problem, text: None  # some made texts are a number alone: no steps
    by_hand, known = ByHand(run, tree), []
    for number, steps in ((1, (1, 2)), (2, (3, 4))):
        for step in steps:
            names = [f"{run.train[group].id}" for group in range(3)]
            rollouts = [replace(r, problem_id=names[r.group]) for r in made_rollouts(step)]
            if step > 1:  # a text that was drawn before, with another likelihood
                ids = next(r.ids for r in known if r.reward > 0)
                old = next(i for i, r in enumerate(rollouts) if r.group == 0 and r.reward > 0)
                logprobs = np.full(len(ids), -0.1 * step, np.float32)
                rollouts[old] = replace(rollouts[old], ids=ids, logprobs=logprobs)
            run.store.append(step, rollouts)
            run.memory.add(rollouts)
            known += rollouts
        latest = {}
        for r in known:
            if r.reward > 0:
                text = tuple(r.ids) if how.get("distinct", True) else ""
                latest[r.problem_id, text] = r
        pool = []
        for name in sorted(names):
            own = [r for (problem, _), r in latest.items() if problem == name]
            own = [r for r in own if r.step > steps[-1] - how.get("age", 99)]
            own.sort(key=lambda r: float(np.mean(r.logprobs)))
            pool += own[: math.ceil(len(own) * how.get("quantile", 1))]
        rng, learner = np.random.default_rng([SEED, 7919, number]), by_hand.learner
        by_hand.learner = learner = by_hand.fresh(learner.model, own=False)
        size, wanted, order = min(5, len(pool)), [], []
        for _ in range(tree["irl"]["steps"]):
            if len(order) < size:
                order = rng.permutation(len(pool)).tolist()
            rows, order = [row_of(pool[i]) for i in order[:size]], order[size:]
            step = (learner, rows, "token", tree["irl"]["lr"], 100.0, by_hand.temperature)
            wanted.append(oracle.irl_step(*step))
        told, *learnt = irl_phase(run, next(run.schedule.phases(done=steps[0] - 1)))
        assert told["kept"] == len(pool) > 1
        for got, want in zip(learnt, wanted, strict=True):
            assert {k: got[k] for k in want} == pytest.approx(want, rel=2e-4)
        oracle.assert_same_weights(run.policy.model, learner, by_hand.start)
        table = run.store.read(*steps)
        assert len(table) == 24
        assert not any(table["kept"].to_pylist())


def test_a_phase_that_keeps_nothing_moves_nothing(model_folder, tmp_path):
    run, _ = open_made_run(model_folder, tmp_path / "run", irl__selector={"type": "negative"})
    run.store.append(1, made_rollouts(1, groups=1))  # all right
    before = [p.detach().clone() for p in run.policy.model.parameters()]
    (told,) = irl_phase(run, Phase(1, 1, 1, 1, irl=True, irl_lr=1e-3))
    assert told["kept"] == 0
    after = run.policy.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
