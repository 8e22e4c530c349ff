"""What a step learns from: which rollouts, with which weights, tokens and rewards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sps.algo.table import algorithm_of
from sps.config.load import parse_recipe
from sps.phases.batch import _chosen_tokens, make_batch, outcomes, shaped
from sps.types import Rollout, Verdict


def run_of(algorithm, seed=1, **rl):
    tree = {"seed": seed, "rl": {"algorithm": algorithm, **rl}, "rollout": {"max_new_tokens": 50}}
    return SimpleNamespace(recipe=parse_recipe(tree, "test"))


def group(number, rewards, step=1, lengths=(2, 3, 4, 5)):
    """Rollouts of one problem; every token has a log-probability of its own."""
    rng = np.random.default_rng([number, 7])
    found = []
    for sample, (reward, length) in enumerate(zip(rewards, lengths, strict=False)):
        logprobs = -3 * rng.random(length).astype(np.float32)
        ids = np.full(length, sample, np.int32)
        verdict = Verdict("correct" if reward else "wrong", float(reward))
        found.append(
            Rollout("p", ids[:1], ids, logprobs, float(reward), verdict, step, 0, number, sample)
        )
    return found


DULL, MIXED = group(0, [1, 1, 1, 1]), group(1, [1, 0, 0, 1])


def test_a_group_that_agrees_is_learnt_from_only_where_a_kl_or_a_bonus_has_it():
    assert make_batch(run_of({"type": "grpo"}), [DULL, MIXED]).used.tolist() == [4, 5, 6, 7]
    for run in (run_of({"type": "grpo", "beta": 0.1}), run_of({"type": "grpo"}, entropy=0.1)):
        batch = make_batch(run, [DULL, MIXED])
        assert batch.used.tolist() == list(range(8))
        assert [id(r) for r in batch.learnt] == [id(r) for r in [*DULL, *MIXED]]


def test_weights_are_by_the_lengths_of_all_and_the_limit_of_the_recipe():
    lengths = [2, 3, 4, 5] * 2
    plain = make_batch(run_of({"type": "grpo"}), [DULL, MIXED]).weight_B
    assert plain.tolist() == pytest.approx([1 / (8 * n) for n in lengths])
    constant = make_batch(run_of({"type": "dr_grpo"}), [DULL, MIXED]).weight_B
    assert constant.tolist() == pytest.approx([1 / (8 * 50)] * 8)


def test_chosen_tokens_are_found_by_the_place_among_those_learnt_from():
    batch = make_batch(run_of({"type": "kl_cov", "share": 0.01}), [DULL, MIXED])
    # By hand: of all 28 tokens the one with the largest covariance, at least one.
    logp = np.concatenate([r.logprobs for r in batch.rollouts]).astype(float)
    adv = np.repeat(batch.adv_B.numpy().astype(float), [len(r.ids) for r in batch.rollouts])
    best = int(np.argmax((adv - adv.mean()) * (logp - logp.mean())))
    places = [(i, t) for i, r in enumerate(batch.rollouts) for t in range(len(r.ids))]
    used = batch.used.tolist()
    assert 0 not in used  # so that places among the used are not those in the batch
    found = [
        (used[place], t) for place, tokens in batch.chosen.items() for t in tokens.nonzero()[0]
    ]
    assert found == [places[best]]
    assert [len(batch.chosen[i]) for i in range(len(used))] == [len(r.ids) for r in batch.learnt]
    assert make_batch(run_of({"type": "grpo"}), [MIXED]).chosen is None


def test_rollouts_with_chosen_tokens_are_learnt_from_even_in_a_group_that_agrees():
    # Three of four are right, so advantages are not 0 on average over tokens, and a token of the
    # group that agrees may have a covariance above 0.
    wide = {"type": "clip_cov", "share": 0.99, "low": 0.0, "high": 99.0}
    batch = make_batch(run_of(wide), [DULL, group(1, [1, 1, 1, 0], lengths=(9, 1, 1, 1))])
    dull = [place for place, i in enumerate(batch.used) if i < 4]
    assert dull
    assert all(batch.chosen[place].any() for place in dull)


def test_a_random_choice_of_tokens_is_of_the_batch():
    def chosen(seed=1, step=1, number=1):
        how = {"type": "clip_cov", "share": 0.2, "low": -99.0, "high": 99.0}
        made = make_batch(run_of(how, seed), [group(number, [1, 0, 0, 1], step, (9, 9, 9, 9))])
        return [tokens.tolist() for tokens in made.chosen.values()]

    assert chosen() == chosen()
    assert chosen(seed=2) != chosen()
    assert chosen(step=2) != chosen()
    # Another group draws anew, also where its tokens are the same.
    seeds = []
    algorithm = SimpleNamespace(choose=lambda adv, logp, seed: seeds.append(seed) or adv > 99)
    for number in (1, 2):
        rollouts = group(number, [1, 0, 0, 1])
        _chosen_tokens(algorithm, rollouts, torch.zeros(4), 1)
    assert seeds[0] != seeds[1]


def test_shaped_rewards_are_exact_and_leave_the_verdicts_alone():
    algorithm = algorithm_of(run_of({"type": "unlikeliness", "penalty": 0.25}).recipe.rl.algorithm)
    rollouts = group(3, [1, 1, 0])
    (got,) = shaped(algorithm, [rollouts], 50)
    order = sorted(range(3), key=lambda i: rollouts[i].mean_logprob)
    want = [rollouts[i].reward * (1 - 0.25 * (order.index(i) / 3)) for i in range(3)]
    assert [r.reward for r in got] == want  # to the last bit: it is what the store holds
    assert [r.verdict for r in got] == [r.verdict for r in rollouts]
    assert shaped(algorithm, [], 50) == []
    plain = algorithm_of(run_of({"type": "grpo"}).recipe.rl.algorithm)
    assert shaped(plain, [rollouts], 50) == [rollouts]


def test_outcomes_are_what_the_rollouts_say():
    got = outcomes([DULL, MIXED], torch.float64)
    for p, rollouts in enumerate((DULL, MIXED)):
        assert got.reward_PG[p].tolist() == [r.reward for r in rollouts]
        assert got.length_PG[p].tolist() == [2, 3, 4, 5]
        for g, r in enumerate(rollouts):
            assert float(got.sum_PG[p, g]) == pytest.approx(sum(map(float, r.logprobs)))
            assert float(got.mean_PG[p, g]) == pytest.approx(float(np.mean(r.logprobs)))


def test_an_advantage_of_another_shape_is_an_error_that_names_the_algorithm(monkeypatch):
    run = run_of({"type": "grpo"})
    flat = replace(algorithm_of(run.recipe.rl.algorithm), advantage=lambda o: o.reward_PG[:, 0])
    monkeypatch.setattr("sps.phases.batch.algorithm_of", lambda settings: flat)
    with pytest.raises(ValueError, match=r"type: grpo: its advantage has the shape \(2,\)"):
        make_batch(run, [DULL, MIXED])
