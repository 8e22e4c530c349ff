"""The meter: known changes give known readings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sps.errors import RunFailed
from sps.phases.warnings import stood_still
from sps.policy.logprobs import Scorer, greedy_probs, micro_batches, token_logprobs
from sps.policy.meter import Meter, Probe
from sps.policy.update import Budget, make_optimizer, optimizer_step


def test_meter_reads_share_and_size_of_a_known_change(own_policy):
    model = own_policy.model
    meter = Meter(own_policy.scorer, None)
    total = sum(p.numel() for p in model.parameters())
    size = sum(float(p.detach().double().square().sum()) for p in model.parameters()) ** 0.5
    with torch.no_grad():  # 3 weights move by 0.25, so by sqrt(3) / 4 in all
        model.model.norm.weight[:3] += 0.25
    got = meter.read()
    assert got["weights_changed"] == pytest.approx(3 / total, rel=1e-12)
    assert got["relative_update"] == pytest.approx(3**0.5 / 4 / size, rel=1e-6)
    assert "kl" not in got


def test_meters_that_share_a_shelf_read_what_others_do_and_take_its_memory(own_policy):
    model, shelf, places = own_policy.model, {}, []
    for moved in (0.25, 0.5):
        meters = Meter(own_policy.scorer, None), Meter(own_policy.scorer, None, None, shelf)
        with torch.no_grad():
            model.model.norm.weight[:3] += moved
        plain, shelved = (meter.read() for meter in meters)
        assert shelved == plain
        places.append({name: weight.data_ptr() for name, weight in shelf.items()})
    assert places[0] == places[1]
    assert {name for name, _ in model.named_parameters()} == shelf.keys()


def test_meter_says_how_much_likelier_remembered_rollouts_became(own_policy, ragged):
    def mean():
        found = []
        for prompt, ids in zip(*ragged, strict=True):
            with torch.no_grad():
                logits = own_policy.model(torch.tensor([[*prompt, *ids]])).logits[0].double()
            logp = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            found += [float(row[token]) for row, token in zip(logp, ids, strict=True)]
        return sum(found) / len(found)

    before = mean()
    meter = Meter(own_policy.scorer, None, Probe(*ragged, own_policy.pad_id, 20))
    with torch.no_grad():
        own_policy.model.get_input_embeddings().weight.mul_(1.1)
    got, after = meter.read(), mean()
    assert abs(after - before) > 1e-2
    assert got["memory_gain"] == pytest.approx(after - before, rel=1e-4)
    assert got["memory_logprob"] == pytest.approx(after, rel=1e-6)
    assert "kl" not in got


def test_meter_of_no_change_is_zero_and_warns_with_lr_and_dtype(own_policy, ragged):
    probe = Probe(*ragged, own_policy.pad_id, 1000)
    got = Meter(own_policy.scorer, probe).read()
    assert got == {"weights_changed": 0.0, "relative_update": 0.0, "kl": 0.0, "to_greedy": 0.0}
    warning = stood_still("irl", got, lr=5e-10, dtype="bfloat16", still=1e-6)
    assert "lr 5e-10" in warning
    assert "bfloat16" in warning
    assert "irl.lr" in warning


def test_meter_kl_is_the_k2_estimate_on_the_probe(own_policy, ragged):
    model = own_policy.model
    meter = Meter(own_policy.scorer, Probe(*ragged, own_policy.pad_id, 20))
    before = [
        token_logprobs(own_policy.scorer, r) for r in micro_batches(*ragged, own_policy.pad_id, 20)
    ]
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    parts = list(micro_batches(*ragged, own_policy.pad_id, 20))
    gaps = []
    for (b, _), rows in zip(before, parts, strict=True):
        gaps.append(
            (token_logprobs(own_policy.scorer, rows)[0] - b)[rows.mask_BT].detach().double()
        )
    gap = torch.cat(gaps)
    assert len(gap) == 25  # tokens of the fixture
    want = float(gap.square().mean() / 2)
    assert want > 1e-3
    assert meter.read()["kl"] == pytest.approx(want, rel=1e-9)


class Bigram(torch.nn.Module):
    """The next token depends on the last one alone; column j of the head has the logits after j."""

    device, config = torch.device("cpu"), SimpleNamespace()

    def __init__(self, after):
        super().__init__()
        self.head = torch.nn.Linear(len(after), len(after), bias=False)
        self.become(after)

    @torch.no_grad()
    def become(self, after):
        """Rows of `after` are next-token probabilities; + 1 because logits are not normalised."""
        self.head.weight.copy_(torch.tensor(after).log().T + 1)

    def base_model(self, input_ids, use_cache):
        hidden = torch.nn.functional.one_hot(input_ids, self.head.in_features).float()
        return SimpleNamespace(last_hidden_state=hidden)

    def get_output_embeddings(self):
        return self.head


def test_meter_reads_the_mass_moved_to_the_earlier_greedy_tokens_by_hand():
    model = Bigram([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.6, 0.2]])
    # Predicted after 0, 0, 1 in one row and after 2 in the other: greedy tokens 0, 0, 2 and 1.
    texts = ([np.array([0]), np.array([1, 2])], [np.array([0, 1, 2]), np.array([1])])
    meter = Meter(Scorer(model), Probe(*texts, pad_id=0, budget=4))
    model.become([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.2, 0.65, 0.15]])
    # After 1 token 0 is greedy now; what counts is the token 2 of before: 0.7 to 0.4.
    want = ((0.6 - 0.5) + (0.6 - 0.5) + (0.4 - 0.7) + (0.65 - 0.6)) / 4
    assert meter.read()["to_greedy"] == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(("sign", "name"), [(1, "squeezed"), (-1, "spread")])
def test_pushing_greedy_tokens_up_is_positive_and_down_negative(own_policy, ragged, sign, name):
    model = own_policy.model
    meter = Meter(own_policy.scorer, Probe(*ragged, own_policy.pad_id, 1000))
    (rows,) = micro_batches(*ragged, own_policy.pad_id, 1000)
    tokens, _ = greedy_probs(own_policy.scorer, rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    logp_BT, _ = token_logprobs(own_policy.scorer, replace(rows, target_N=tokens))
    (-sign * logp_BT.sum()).backward()
    optimizer.step()
    assert sign * meter.read()["to_greedy"] > 1e-4, name


def step_at(own_policy, ragged, lr, steps=4):
    """Four IRL-like steps: AdamW on the cross-entropy of the fixture's completions."""
    model = own_policy.model
    optimizer = make_optimizer(model, lr, (0.9, 0.999), 1e-8, 0.0)
    meter = Meter(own_policy.scorer, Probe(*ragged, own_policy.pad_id, 1000))
    for _ in range(steps):
        optimizer_step(
            own_policy.scorer,
            optimizer,
            lambda budget: micro_batches(*ragged, own_policy.pad_id, budget),
            lambda rows, logp, entropy: (-logp.sum() / 25, {}),
            Budget(1000),
            temperature=1.0,
            max_grad_norm=1.0,
        )
    return meter.read()


def test_the_papers_irl_lr_is_said_to_do_nothing(own_policy, ragged):
    got = step_at(own_policy, ragged, lr=5e-10)
    # Adam moves a weight by at most about lr a step: 4 steps are at most 2e-9, of weights of size
    # 0.2 that is 1e-8.
    assert got["relative_update"] < 2e-8
    assert "lr 5e-10" in stood_still("irl", got, 5e-10, "float32", still=1e-6)


def test_a_usual_lr_is_not(own_policy, ragged):
    got = step_at(own_policy, ragged, lr=3e-4)
    assert 1e-4 < got["relative_update"] < 1e-2
    assert got["kl"] > 1e-6
    assert stood_still("irl", got, 3e-4, "float32", still=1e-6) is None


def test_in_bfloat16_the_papers_lr_leaves_nearly_every_weight(own_policy, ragged):
    # Neighbouring bfloat16 numbers are 2**-8 apart relatively: a change of 2e-9 rounds away, except
    # for weights that are nearly zero themselves: here the 32 of the padding token, which
    # start at 0, and next to none of those drawn with deviation 0.2.
    own_policy.model.to(torch.bfloat16)
    got = step_at(own_policy, ragged, lr=5e-10)
    total = sum(p.numel() for p in own_policy.model.parameters())
    assert got["weights_changed"] * total <= 34
    assert "bfloat16" in stood_still("irl", got, 5e-10, "bfloat16", still=1e-6)


def test_no_part_is_no_step(own_policy):
    optimizer = make_optimizer(own_policy.model, 0.1, (0.9, 0.999), 1e-8, 0.5)
    meter = Meter(own_policy.scorer, None)
    sums = optimizer_step(
        own_policy.scorer,
        optimizer,
        lambda budget: iter(()),
        lambda rows, logp, entropy: (logp.sum(), {}),
        Budget(1000),
        temperature=1.0,
        max_grad_norm=1.0,
    )
    assert sums == {}
    assert meter.read()["weights_changed"] == 0.0  # not even by weight decay


def test_gradient_is_clipped_to_its_norm(own_policy, ragged):
    # With lr 1 and plain SGD the step is the clipped gradient: its length is max_grad_norm.
    model = own_policy.model
    before = [p.detach().clone() for p in model.parameters()]
    sums = optimizer_step(
        own_policy.scorer,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda budget: micro_batches(*ragged, own_policy.pad_id, budget),
        lambda rows, logp, entropy: (-logp.sum(), {"tokens": rows.mask_BT.sum()}),
        Budget(20),
        temperature=1.0,
        max_grad_norm=0.5,
    )
    moved = [
        float((p.detach() - b).norm()) for p, b in zip(model.parameters(), before, strict=True)
    ]
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-4)
    assert sums["grad_norm"] > 0.5
    assert sums["tokens"] == 25


def sgd_step(policy, ragged, budget, fails=0):
    """One step of plain SGD on the fixture's cross-entropy; the first passes run out of memory."""
    left = [fails]

    def part_loss(rows, logp, entropy):
        if left[0]:
            logp.sum().backward()  # a part of the gradient is there when memory runs out
            left[0] -= 1
            raise torch.OutOfMemoryError
        return -logp.sum(), {}

    sums = optimizer_step(
        policy.scorer,
        torch.optim.SGD(policy.model.parameters(), lr=0.1),
        lambda tokens: micro_batches(*ragged, policy.pad_id, tokens),
        part_loss,
        budget,
        temperature=1.0,
        max_grad_norm=1.0,
    )
    return sums, [p.detach().clone() for p in policy.model.parameters()]


def test_memory_that_runs_out_halves_the_passes_and_the_step_is_the_same(own_policy, ragged):
    start = {k: v.clone() for k, v in own_policy.model.state_dict().items()}
    _, want = sgd_step(own_policy, ragged, Budget(80))
    own_policy.model.load_state_dict(start)
    budget = Budget(80)
    sums, got = sgd_step(own_policy, ragged, budget, fails=2)
    assert budget.tokens == 20  # 80 halved twice
    assert sums["out_of_memory"] == 2
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_sequence_that_never_fits_is_a_failed_run(own_policy, ragged):
    with pytest.raises(RunFailed, match=r"model\.checkpointing"):
        sgd_step(own_policy, ragged, Budget(4), fails=10)


def test_likelihoods_are_scored_again_where_memory_runs_out(own_policy, ragged, monkeypatch):
    from sps.phases import irl

    want = irl.likelihoods(own_policy, *ragged, "mean", Budget(80), 1.0)
    usual, sizes = irl.token_logprobs, []

    def scarce(scorer, rows, temperature):
        sizes.append(rows.mask_BT.numel())
        if len(sizes) == 1:
            raise torch.OutOfMemoryError
        return usual(scorer, rows, temperature)

    monkeypatch.setattr(irl, "token_logprobs", scarce)
    budget = Budget(80)
    got = irl.likelihoods(own_policy, *ragged, "mean", budget, 1.0)
    assert budget.tokens == 40
    assert len(sizes) > 2
    np.testing.assert_allclose(got, want, rtol=1e-5)
