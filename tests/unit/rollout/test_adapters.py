"""LoRA adapters merged for an engine; the oracle is peft's own merge, and the adapted model."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from sps.policy.load import use_adapters
from sps.rollout.adapters import (
    Merged,
    has_adapters,
    mergeable,
    merged_weights,
    without_adapters,
)
from sps.rollout.cuda.copies import Copies
from sps.rollout.native.copied import CopiedEngine
from sps.rollout.native.layers import supports, supports_kernels

peft = pytest.importorskip("peft", reason="the extra sps[lora] is not installed")
SHAPE = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48,
}  # fmt: skip


def make(dtype=torch.float32, tied=True, targets="all-linear"):
    """A model whose adapters do something, as after some steps."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=tied)).eval()
    model.compute_dtype = dtype
    use_adapters(model, rank=4, alpha=8, targets=targets)
    train(model)
    return model


@torch.no_grad()
def train(model):
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(torch.randn_like(weight) * 0.1)


def merged_by_peft(model):
    """Weights by plain names."""
    other = copy.deepcopy(model)
    for layer in list(other.modules()):
        if hasattr(layer, "lora_A"):
            layer.base_layer.weight.data = layer.base_layer.weight.data.float()
            layer.merge()
    named = {n.replace(".base_layer", ""): p for n, p in other.named_parameters()}
    return {name: weight.detach() for name, weight in named.items() if "lora_" not in name}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_merged_weights_are_pefts_and_the_plain_models_by_name(dtype, targets):
    model = make(dtype, targets=targets)
    want, got = merged_by_peft(model), dict(merged_weights(model))
    plain = Qwen2ForCausalLM(model.config)
    assert list(got) == [name for name, _ in plain.named_parameters()]
    assert got.keys() == want.keys()
    for name, weight in got.items():
        assert torch.allclose(weight.float(), want[name].float(), rtol=0, atol=1e-6), name
    plain.load_state_dict(got, strict=False)
    ids = torch.arange(12)[None]
    apart = (plain(ids).logits - model.float()(ids).logits).abs().max()
    assert apart < 1e-5
    moved = plain(ids).logits - without_adapters(model)(ids).logits
    assert moved.abs().max() > 0.03
    assert not has_adapters(model)  # any more


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
def test_two_adapters_of_a_layer_are_both_merged():
    model = make(targets=["q_proj"])
    model.add_adapter(peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"]), "second")
    model.set_adapter(["default", "second"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * 0.1 * ("lora_" in name))
    want, got = merged_by_peft(model), dict(merged_weights(model))
    assert all(torch.allclose(got[name], want[name], rtol=0, atol=1e-6) for name in want)


def test_an_engine_copies_merged_weights_in_bf16_rounded_once_and_follows_them():
    model, copies = make(), Copies()
    attention = model.model.layers[1].self_attn
    joined = [attention.q_proj, attention.k_proj, attention.v_proj]
    qkv, bias = copies.weights(joined), copies.biases(joined)
    head, where = copies.weights([model.lm_head]), qkv.data_ptr()
    for _ in range(2):
        copies.refresh()
        want = merged_by_peft(model)
        names = [f"model.layers.1.self_attn.{p}_proj" for p in "qkv"]
        exact = torch.cat([want[f"{name}.weight"] for name in names])
        # peft adds in another order: at a tie in the last bit bf16 may round the other way.
        assert (qkv != exact.bfloat16()).float().mean() < 1e-3
        assert (qkv.float() - exact).abs().max() <= exact.abs().max() * 2**-8
        assert torch.equal(bias, torch.cat([want[f"{n}.bias"] for n in names]).bfloat16())
        assert torch.equal(head, model.lm_head.weight.bfloat16())
        assert qkv.data_ptr() == where  # a captured graph reads it there
        train(model)


def test_a_frozen_layer_in_bf16_is_held_once_and_an_adapted_one_keeps_its_own():
    model, copies = make(torch.bfloat16, tied=False, targets=["q_proj"]), Copies()
    attention = model.model.layers[0].self_attn
    before = attention.q_proj.base_layer.weight.clone(), attention.k_proj.weight.clone()
    room = copies.weights([attention.q_proj, attention.k_proj])
    copies.refresh()
    q_rows = len(before[0])
    assert attention.k_proj.weight.data_ptr() == room[q_rows:].data_ptr()
    assert torch.equal(attention.k_proj.weight, before[1])
    assert torch.equal(attention.q_proj.base_layer.weight, before[0])
    assert not torch.equal(room[:q_rows], before[0])
    assert torch.equal(room[q_rows:], before[1])


def test_a_whole_copy_follows_adapters_without_having_any():
    model = make()
    plain = without_adapters(copy.deepcopy(model)).requires_grad_(False)
    assert supports(plain)
    assert not supports(model)
    loaded = []
    engine = CopiedEngine(
        type("E", (), {"load_weights": lambda self, m: loaded.append(m)})(), plain
    )
    engine.load_weights(model)
    assert loaded == [plain]
    for name, weight in merged_by_peft(model).items():
        assert torch.allclose(dict(plain.named_parameters())[name], weight, rtol=0, atol=1e-6)
    assert model._hf_peft_config_loaded  # the trainer's model is as it was
    assert any("lora_" in name for name, _ in model.named_parameters())


def test_what_vllms_bridge_goes_through_is_merged_and_the_rest_is_the_models():
    model = make()
    seen = Merged(model)
    assert seen.config is model.config
    assert {n: w.shape for n, w in seen.named_parameters()} == {
        n: w.shape for n, w in merged_by_peft(model).items()
    }


def test_what_cannot_be_merged_is_found():
    config = Qwen2Config(**{**SHAPE, "head_dim": 32})
    for more, plain in (
        ({}, True),
        ({"use_rslora": True}, True),  # another scale
        ({"use_dora": True}, False),
        ({"target_modules": ["embed_tokens", "q_proj"]}, False),
        ({"modules_to_save": ["norm"]}, False),
        ({"lora_bias": True}, False),
    ):
        model = Qwen2ForCausalLM(config)
        how = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **more}
        model.add_adapter(peft.LoraConfig(**how))
        assert mergeable(model) == supports_kernels(model) == plain, more
    assert mergeable(Qwen2ForCausalLM(config))
    scaled = Qwen2ForCausalLM(config)  # adapters of another kind: no matrices to add
    scaled.add_adapter(peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    assert not mergeable(scaled)
