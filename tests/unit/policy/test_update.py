"""One optimizer step: whose weights, clipped how, in how many parts."""

from __future__ import annotations

import pytest
import torch
from conftest import make_policy

from sps.errors import RunFailed
from sps.policy import update
from sps.policy.logprobs import micro_batches
from sps.policy.update import (
    Budget,
    in_memory,
    make_optimizer,
    optimizer_step,
    padded_to_equal,
)
from sps.ranks import ALONE, Ranks


class Sharded(Ranks):
    """One of two ranks that hold a part of the weights each; the other has three parts."""

    rank, size, sharded = 1, 2, True

    def maximum(self, count):
        return max(count, 3)


def step(policy, ragged, tokens=20, ranks=ALONE, most=1e9):
    """One of plain gradient descent at rate 1 on the sum of log-probabilities: what it reports,
    and how far the weights went."""
    weights = list(policy.model.parameters())
    before = [w.detach().clone() for w in weights]
    optimizer = torch.optim.SGD(weights, lr=1.0)

    def loss(rows, logp_BT, entropy_BT):
        assert not entropy_BT.requires_grad  # unless it is asked for
        return -logp_BT.sum(), {"tokens": rows.mask_BT.sum()}

    def parts(budget):
        return micro_batches(*ragged, policy.pad_id, budget)

    how = {"temperature": 1.0, "max_grad_norm": most, "ranks": ranks}
    sums = optimizer_step(policy.scorer, optimizer, parts, loss, Budget(tokens), **how)
    moves = [(w.detach() - b).square().sum() for w, b in zip(weights, before, strict=True)]
    assert all(w.grad is None for w in weights)
    return sums, float(sum(moves) ** 0.5)


def test_the_optimizer_has_what_can_be_trained_and_its_settings(own_policy):
    frozen = own_policy.model.get_input_embeddings().weight
    frozen.requires_grad_(False)
    optimizer = make_optimizer(own_policy.model, 0.1, (0.2, 0.3), 0.4, 0.5)
    (group,) = optimizer.param_groups
    kept = [p for p in own_policy.model.parameters() if p is not frozen]
    assert [id(p) for p in group["params"]] == [id(p) for p in kept]
    wanted = {"lr": 0.1, "betas": (0.2, 0.3), "eps": 0.4, "weight_decay": 0.5, "fused": True}
    assert {name: group[name] for name in wanted} == wanted


def test_a_step_goes_as_far_as_the_norm_it_reports_unless_that_is_clipped(ragged):
    sums, moved = step(make_policy(), ragged)
    assert sums["tokens"] == 25
    assert moved == pytest.approx(sums["grad_norm"], rel=1e-4)
    clipped, moved = step(make_policy(), ragged, most=0.5)
    assert clipped["grad_norm"] == pytest.approx(sums["grad_norm"], rel=1e-4)
    assert moved == pytest.approx(0.5, rel=1e-4)


def test_the_seconds_of_a_step_are_those_of_its_passes(ragged, monkeypatch):
    policy, now = make_policy(), [0.0]
    monkeypatch.setattr(update.time, "perf_counter", lambda: now[0])

    def loss(rows, logp_BT, entropy_BT):
        now[0] += 3
        return -logp_BT.sum(), {}

    def parts(budget):
        return micro_batches(*ragged, policy.pad_id, budget)

    optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: now.append(now.pop() + 100))
    how = {"temperature": 1.0, "max_grad_norm": 1.0}
    sums = optimizer_step(policy.scorer, optimizer, parts, loss, Budget(20), **how)
    assert now[0] == 100 + sums["seconds"]
    assert sums["seconds"] == 3 * len(list(parts(20))) > 3


def test_sharded_ranks_scale_up_for_the_mean_and_fill_up_with_what_counts_nothing(ragged):
    alone, moved = step(make_policy(), ragged, tokens=1000)
    sums, twice = step(make_policy(), ragged, tokens=1000, ranks=Sharded())
    assert twice == pytest.approx(2 * moved, rel=1e-4)
    for name in ("loss", "entropy", "tokens"):
        assert sums[name] == pytest.approx(alone[name], rel=1e-5)
    whole = Ranks()
    whole.size = 2  # ranks that hold all weights add their gradients up
    assert step(make_policy(), ragged, tokens=1000, ranks=whole)[1] == pytest.approx(
        moved, rel=1e-4
    )


def test_parts_that_fill_up_are_one_token_that_counts_nothing(ragged):
    own = list(micro_batches(*ragged, 0, 1000))
    assert [(rows is own[0], counts) for rows, counts in padded_to_equal(own, ALONE, "cpu")] == [
        (True, 1)
    ]
    first, *more = padded_to_equal(own, Sharded(), "cpu")
    assert (first[0] is own[0], first[1]) == (True, 1)
    assert [counts for _, counts in more] == [0, 0]
    for rows, _ in more:
        assert (rows.ids_BL.tolist(), rows.mask_BT.tolist()) == ([[0]], [[True]])
        assert [x.tolist() for x in (*rows.place, rows.target_N)] == [[0], [0], [0]]
        assert (rows.which_B.tolist(), rows.which_B.dtype.kind) == ([0], "i")


def out_of_memory_above(limit):
    asked = []

    def work(tokens):
        asked.append(tokens)
        if tokens > limit:
            raise torch.OutOfMemoryError
        return "done"

    return asked, work


def test_memory_that_runs_out_halves_the_budget_for_good(monkeypatch):
    budget = Budget(100)
    asked, work = out_of_memory_above(30)
    assert in_memory(budget, ALONE, work) == ("done", 2)
    assert (asked, budget.tokens) == ([100, 50, 25], 25)
    asked, work = out_of_memory_above(1)
    assert in_memory(Budget(3), ALONE, work) == ("done", 1)
    monkeypatch.setattr(update, "held_by_others", lambda: " Others hold 9 GiB.")
    with pytest.raises(RunFailed, match=r"not even one sequence.*true\. Others hold 9 GiB\.$"):
        in_memory(Budget(4), ALONE, out_of_memory_above(0)[1])


def test_memory_that_runs_out_makes_the_engine_give_way():
    gave = []
    budget = Budget(100, lambda: gave.append(budget.tokens))
    assert in_memory(budget, ALONE, out_of_memory_above(30)[1]) == ("done", 2)
    assert gave == [50, 25]


def test_memory_that_runs_out_on_a_sharded_rank_ends_the_run():
    budget = Budget(100)
    with pytest.raises(RunFailed, match=r"on rank 1; set rl.micro_tokens to 50"):
        in_memory(budget, Sharded(), out_of_memory_above(30)[1])


def test_a_gradient_that_is_not_finite_is_not_taken_though_its_loss_is(own_policy, ragged):
    weights = list(own_policy.model.parameters())
    before = [w.detach().clone() for w in weights]

    def loss(rows, logp_BT, entropy_BT):
        return (logp_BT.sum() * 0).sqrt(), {}  # 0, and so steep there that its slope is no number

    def parts(budget):
        return micro_batches(*ragged, own_policy.pad_id, budget)

    optimizer = torch.optim.SGD(weights, lr=1.0)
    how = {"temperature": 1.0, "max_grad_norm": 1.0}
    sums = optimizer_step(own_policy.scorer, optimizer, parts, loss, Budget(1000), **how)
    assert (sums["loss"], sums["skipped"]) == (0.0, 1)
    assert all(map(torch.equal, before, weights))
