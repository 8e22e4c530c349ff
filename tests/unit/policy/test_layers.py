"""Layers that are recomputed or compiled in training stay plain wherever else the model is run."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
    Starcoder2Config,
)

from sps.policy.load import prepare_training
from sps.policy.logprobs import Scorer, micro_batches, token_logprobs
from sps.rollout.native.attention import sampling_mode
from sps.rollout.native.engine import NativeEngine
from sps.types import Request, Sampling

SHAPE = {
    "vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    "llama": LlamaConfig(**SHAPE, attention_dropout=0.5),
    "qwen2": Qwen2Config(**SHAPE, attention_dropout=0.5),
    "starcoder2": Starcoder2Config(**SHAPE, residual_dropout=0.5, embedding_dropout=0.5),
    "gpt2": GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=2, n_positions=64),
}


def make(family):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family]).eval()


def rows():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 30, n) for n in (5, 3)]
    return next(micro_batches(prompts, [rng.integers(1, 30, n) for n in (4, 7)], 0, 10_000))


def gradients(model):
    logp_BT = token_logprobs(Scorer(model), rows())[0]
    logp_BT.sum().backward()
    return logp_BT.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_recomputed_layers_give_the_same_numbers_and_draw_none(family):
    """No dropout, though these families have it: two passes agree with the plain model's."""
    plain = gradients(make(family))
    model = make(family)
    prepare_training(model, checkpointing=True)
    again = gradients(model)
    assert torch.equal(plain[0], again[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], again[1], strict=True))
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_activations_are_really_recomputed(family):
    """Each layer's attention runs once forwards, and once more for the backward pass."""
    model, calls = make(family), []
    prepare_training(model, checkpointing=True)
    layers = model.base_model.layers if family == "llama" else model.base_model.h
    for layer in layers:
        module = layer.self_attn if family == "llama" else layer.attn
        module.register_forward_hook(lambda *_: calls.append(1))
    logp_BT = token_logprobs(Scorer(model), rows())[0]
    assert len(calls) == 3
    logp_BT.sum().backward()
    assert len(calls) == 6


class Recorder:
    """Stands where transformers expects a cache, as the CUDA engine's does for prompts."""

    is_compileable = False

    def __init__(self):
        self.layers = []

    def update(self, key, value, layer, *_, **__):
        self.layers.append(layer)
        return key, value

    def get_seq_length(self, layer=0):
        return 0


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_recomputed_layers_hand_their_keys_to_whoever_samples(mode):
    """With transformers' own checkpointing they did not: rollouts never saw their prompts."""
    model = make("qwen2")
    prepare_training(model, checkpointing=True)
    getattr(model, mode)()
    cache = Recorder()
    with torch.inference_mode(), sampling_mode(model):
        model.base_model(input_ids=torch.tensor([[1, 2, 3]]), past_key_values=cache, use_cache=True)
    assert cache.layers == [0, 1, 2]
    assert model.training == (mode == "train")


@pytest.mark.filterwarnings("ignore")  # torch's own, as it compiles
def test_recomputed_layers_are_compiled_once_for_all():
    """Code is made once for each class and shape, and after eight times no more."""
    model = make("llama")
    prepare_training(model, checkpointing=True)
    assert len({type(layer) for layer in model.base_model.layers}) == 1
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for layer in model.base_model.layers:
        layer.compile(dynamic=True, backend="eager")
    gradients(model)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_copy_of_a_model_recomputes_its_own_layers():
    model = make("llama")
    prepare_training(model, checkpointing=True)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(1.5)
    plain = make("llama")
    with torch.no_grad():
        for p in plain.parameters():
            p.mul_(1.5)
    assert torch.equal(gradients(twin)[0], gradients(plain)[0])


@pytest.mark.filterwarnings("ignore")  # torch's own, as it compiles
def test_sampling_runs_plain_layers_where_training_compiles_them():
    """Adapters and families without a fast path sample through the model's own layers."""
    model = make("starcoder2")
    prepare_training(model, compiled=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    engine = NativeEngine(model, [29], 0)
    requests = [Request(i, (1, 2, 3 + i), (0, 1)) for i in range(2)]
    assert len(list(engine.generate(requests, Sampling(2, 6)))) == 4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


def test_a_model_without_such_layers_is_refused_by_name():
    from sps.errors import UserError

    with pytest.raises(UserError, match=r"model.checkpointing: Linear"):
        prepare_training(torch.nn.Linear(2, 2), checkpointing=True)
