"""What is moved or held rounded: the same bits, and as few bytes as `sps doctor` says."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytest
import torch
from conftest import make_policy
from transformers import Qwen2Config, Qwen2ForCausalLM

from sps.commands.estimate import Shape, needs
from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.policy import placement, update
from sps.policy.load import use_adapters
from sps.policy.logprobs import Scorer, micro_batches, token_logprobs
from sps.policy.meter import Meter
from sps.policy.placement import asleep, round_frozen, share_frozen
from sps.policy.sharding import optimizer_state, set_optimizer_state
from sps.policy.update import Budget, make_optimizer, optimizer_step, set_lr

SHAPE = Shape(layers=2, hidden=64, heads=4, shared=2, width=16, ff=128, vocabulary=96, tied=False)


def make(tied=False, dtype=torch.bfloat16):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, tie_word_embeddings=tied,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.mul_(3)  # no number that bf16 holds as it is
    model.compute_dtype = dtype
    return model


def logprobs(model):
    rng = np.random.default_rng(0)
    prompts, completions = ([rng.integers(3, 96, n) for n in (5, 9)] for _ in range(2))
    (rows,) = micro_batches(prompts, completions, 0, 1000)
    return token_logprobs(Scorer(model), rows)[0]


def held(model):
    """Bytes of all weights; what is tied or shared counts once."""
    return sum({w.data_ptr(): w.nbytes for w in model.parameters()}.values())


@pytest.mark.parametrize("tied", [False, True])
def test_a_reference_held_in_bf16_gives_the_same_bits_in_half_the_bytes(tied):
    plain, reference = make(tied), make(tied).requires_grad_(False)
    round_frozen(reference)
    assert torch.equal(logprobs(plain), logprobs(reference))
    kept = [w for w in reference.parameters() if w.dtype == torch.float32]
    embedding = reference.get_input_embeddings().weight
    assert any(w is embedding for w in kept)
    assert all(w.dim() == 1 for w in kept if w is not embedding)  # norms
    assert reference.lm_head.weight.dtype == (torch.float32 if tied else torch.bfloat16)
    biases = 2 * (4 + 2 * 2) * 16  # which the arithmetic leaves out
    shape = Shape(2, 64, 4, 2, 16, 128, 96, tied)
    assert held(reference) == shape.rounded + 2 * biases + 4 * 64


def test_nothing_is_rounded_where_the_computation_is_in_float32():
    model = make(dtype=torch.float32).requires_grad_(False)
    round_frozen(model)
    assert {w.dtype for w in model.parameters()} == {torch.float32}


def test_weights_below_adapters_are_held_in_bf16_and_train_to_the_same_bits(monkeypatch):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    found = []
    for rounding in (lambda model: None, round_frozen):
        monkeypatch.setattr("sps.policy.load.round_frozen", rounding)
        model = make()
        use_adapters(model, rank=4, alpha=8)
        optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0)
        for _ in range(3):
            logprobs(model).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append((model, {n: w.clone() for n, w in model.named_parameters() if "lora_" in n}))
    (_, plain), (model, rounded) = found
    assert plain.keys() == rounded.keys()
    assert all(torch.equal(weight, rounded[name]) for name, weight in plain.items())
    adapters = SHAPE.adapters(4)
    assert sum(w.nbytes for w in rounded.values()) == 4 * adapters
    # As the doctor counts it: biases and the last norm are left out.
    asked = parse_recipe({"model": {"path": "x/y", "lora": {"rank": 4}}}, "test")
    parts = needs(asked, SHAPE).parts
    counted = parts["weights, float32"] + parts["frozen weights, linear layers in bf16"]
    assert held(model) == counted + 2 * 2 * (4 + 2 * 2) * 16 + 4 * 64


def test_a_reference_shares_what_its_policy_has_frozen():
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    policy, reference = make(), make()
    for model in (policy, reference):
        use_adapters(model, rank=4, alpha=8)
    before, alone = logprobs(reference), held(reference)
    reference.requires_grad_(False)
    round_frozen(reference)
    share_frozen(policy, reference)
    shared = {w.data_ptr() for w in policy.parameters()}
    own = sum(w.nbytes for w in reference.parameters() if w.data_ptr() not in shared)
    assert own == 2 * SHAPE.adapters(4) < alone / 10
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(1)
    assert torch.equal(logprobs(reference), before)  # the policy's adapters are its own


@pytest.mark.parametrize("bits", [32, 8])
def test_an_optimizer_that_slept_goes_on_with_the_same_bits(monkeypatch, bits):
    if bits == 8:
        pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    monkeypatch.setattr(placement, "has_host", lambda device: True)
    found = []
    for sleeps in (False, True):
        model = make()
        optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.1, bits)

        def step(model=model, optimizer=optimizer):
            logprobs(model).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        if sleeps:
            moments = [v for of in optimizer.state.values() for v in of.values() if v.dim()]
            assert len(moments) == 2 * len(list(model.parameters()))
            awake = [weakref.ref(value) for value in moments]
            del moments
            with asleep(optimizer, torch.device("cpu")):
                assert not any(ref() is not None for ref in awake)  # freed where they were
        step()
        found.append([w.detach().clone() for w in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_where_device_and_host_are_one_nothing_is_copied():
    model = make()
    optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0)
    logprobs(model).sum().backward()
    optimizer.step()
    of = next(iter(optimizer.state.values()))
    moment = of["exp_avg"]
    with asleep(optimizer, model.device):
        assert of["exp_avg"] is moment


def test_the_meters_copy_is_on_the_host_and_in_pieces_it_reads_the_same(monkeypatch):
    model = make()
    meter = Meter(Scorer(model), None)
    assert {w.device.type for w in meter.weights.values()} == {"cpu"}
    count = sum(w.numel() for w in model.parameters())
    assert sum(w.nbytes for w in meter.weights.values()) == 4 * count
    with torch.no_grad():
        for weight in model.parameters():
            weight.view(-1)[::3] += 0.01
    whole = meter.read()
    monkeypatch.setattr("sps.policy.meter._PIECE", 100)
    assert meter.read() == pytest.approx(whole, rel=1e-12)
    changed = sum(-(-w.numel() // 3) for w in model.parameters())
    assert whole["weights_changed"] == changed / count


def test_moments_are_as_many_bytes_as_the_doctor_counts():
    pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    for bits in (32, 8):
        model = make()
        optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0, bits)
        logprobs(model).sum().backward()
        optimizer.step()
        size = 0
        for weight, of in optimizer.state.items():
            if weight.numel() < 4096:  # torchao leaves the small ones as they are
                continue
            for value in (of["exp_avg"], of["exp_avg_sq"]):
                inner = [value.codes, value.scale] if bits == 8 else [value]
                size += sum(part.nbytes for part in inner)
        large = sum(w.numel() for w in model.parameters() if w.numel() >= 4096)
        asked = {"optimizer": {"bits": bits}}
        parts = needs(parse_recipe({"rl": asked, "irl": {"steps": 0}}, "test"), SHAPE).parts
        assert size / large == parts["optimizer"] / SHAPE.weights
        gradients = sum(w.grad.nbytes for w in model.parameters())
        assert gradients / sum(w.numel() for w in model.parameters()) == (
            parts["gradients"] / SHAPE.weights
        )


def test_a_learning_rate_is_heard_by_both_optimizers():
    pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    for bits in (32, 8):
        model = make()
        optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0, bits)
        set_lr(optimizer, 0.0)
        before = [w.detach().clone() for w in model.parameters()]
        logprobs(model).sum().backward()
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        set_lr(optimizer, 1e-2)
        optimizer.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_ranks_that_write_no_checkpoint_keep_no_moments():
    model = make()
    optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0)
    logprobs(model).sum().backward()
    optimizer.step()
    names = {name for name, _ in model.named_parameters()}
    assert optimizer_state(model, optimizer).keys() == names
    assert optimizer_state(model, optimizer, main=False) == {}


def test_eight_bits_count_their_steps_on_the_host_after_a_resume_too():
    """There its first step makes the count, and powers of it have other last bits on a GPU."""
    pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    model = make()
    optimizer = make_optimizer(model, 1e-2, (0.9, 0.999), 1e-8, 0.0, 8)
    logprobs(model).sum().backward()
    optimizer.step()
    state = optimizer_state(model, optimizer)
    elsewhere = make().to("meta")  # any device but the host's
    again = make_optimizer(elsewhere, 1e-2, (0.9, 0.999), 1e-8, 0.0, 8)
    set_optimizer_state(elsewhere, again, state)
    devices = {k: v.device.type for of in again.state.values() for k, v in of.items()}
    assert devices == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}


@pytest.mark.parametrize(("bits", "share"), [(32, 2.0), (8, 0.51)])
def test_the_engine_gives_way_where_moments_are_yet_to_be_made(monkeypatch, ragged, bits, share):
    """At the first step alone: later ones have them."""
    if bits == 8:
        pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    policy, gave = make_policy(), []
    size = sum(w.nbytes for w in policy.model.parameters())
    for free, times in ((share * size * 1.01, 0), (share * size * 0.99, 1)):
        monkeypatch.setattr(update, "_free_bytes", lambda free=free: free)
        optimizer = make_optimizer(policy.model, 1e-3, (0.9, 0.999), 1e-8, 0.0, bits)
        for _ in range(2):
            optimizer_step(
                policy.scorer,
                optimizer,
                lambda tokens: micro_batches(*ragged, policy.pad_id, tokens),
                lambda rows, logp_BT, entropy_BT: (-logp_BT.sum(), {}),
                Budget(1000, lambda: gave.append(1)),
                temperature=1.0,
                max_grad_norm=1.0,
            )
        assert len(gave) == times


def test_eight_bits_step_nearly_as_32_do():
    """The first step is exact: moments are rounded after it. Later ones are close."""
    pytest.importorskip("torchao", reason="the extra sps-rl[8bit] is not installed")
    found = []
    for bits in (32, 8):
        model = make(dtype=torch.float32)
        first = [w.detach().clone() for w in model.parameters()]
        optimizer = make_optimizer(model, 1e-3, (0.9, 0.999), 1e-8, 0.0, bits)
        for _ in range(10):
            logprobs(model).mean().neg().backward()
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(model.parameters(), first, strict=True)
        found.append(torch.cat([(w.detach() - f).flatten() for w, f in pairs]))
    apart = float((found[0] - found[1]).norm() / found[0].norm())
    assert 0 < apart < 0.1


def test_eight_bits_without_torchao_are_an_error_with_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.delitem(sys.modules, "sps.policy.adamw8bit", raising=False)
    monkeypatch.delattr("sps.policy.adamw8bit", raising=False)
    with pytest.raises(UserError, match=r"optimizer\.bits: 8 needs torchao.*sps-rl\[8bit\]"):
        make_optimizer(make(), 1e-2, (0.9, 0.999), 1e-8, 0.0, 8)
