"""Which models the fused step and the GPU kernels serve."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from sps.rollout.native import layers as fused


def llama(width, **more):
    config = LlamaConfig(
        vocab_size=16, hidden_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=16, head_dim=width, **more,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.parametrize(
    ("width", "served"),
    [(8, False), (16, False), (24, False), (32, True), (64, True), (80, False), (128, True)],
)
def test_kernels_take_heads_of_a_power_of_two(width, served):
    model = llama(width)
    assert fused.supports(model)
    assert fused.supports_kernels(model) is served


def test_other_decoders_run_their_own_code():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=32, n_layer=1, n_head=1))
    for model in (gpt2, llama(64, mlp_bias=True)):
        assert not fused.supports(model)
        assert not fused.supports_kernels(model)


def test_kernels_have_no_bias_after_the_heads():
    model = llama(64, attention_bias=True)
    assert fused.supports(model)
    assert not fused.supports_kernels(model)
