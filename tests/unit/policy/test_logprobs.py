"""Log-probabilities of given completions against a plain forward pass."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaForCausalLM,
)

from sps.policy import logprobs
from sps.policy.load import prepare_training
from sps.policy.logprobs import Scorer, greedy_probs, micro_batches, token_logprobs


def by_plain_forward(model, prompt, completion, temperature):
    """One sequence at a time, no padding, the model's own logits."""
    ids = torch.tensor(np.concatenate([prompt, completion]).astype(np.int64))[None]
    logp = (model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
    at = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
    entropy = -(logp[at].exp() * logp[at]).sum(-1)
    return logp[at, torch.tensor(completion.astype(np.int64))], entropy


@pytest.mark.parametrize("budget", [1, 20, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_token_logprobs_equal_a_plain_forward_pass(policy, ragged, budget, temperature):
    prompts, completions = ragged
    seen = []
    with torch.no_grad():
        for rows in micro_batches(prompts, completions, policy.pad_id, budget):
            logp_BT, entropy_BT = token_logprobs(policy.scorer, rows, temperature)
            for row, which in enumerate(rows.which_B):
                length = len(completions[which])
                want, entropy = by_plain_forward(
                    policy.model, prompts[which], completions[which], temperature
                )
                assert (logp_BT[row, :length] - want).abs().max() < 1e-5
                assert (entropy_BT[row, :length] - entropy).abs().max() < 1e-5
                assert (logp_BT[row, length:] == 0).all()
                assert rows.mask_BT[row].sum() == length
                seen.append(which)
            if temperature == 1:  # which is what is meant where nothing is said
                assert torch.equal(token_logprobs(policy.scorer, rows)[0], logp_BT)
    assert sorted(seen) == list(range(6))


SMALL = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
FINISHING = {  # families that do something to what the output layer gives
    "granite": GraniteConfig(**SMALL, logits_scaling=3.0),
    "cohere": CohereConfig(**SMALL, logit_scale=0.5),
    "gemma2": Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0),
    "hyperclovax": HyperCLOVAXConfig(**SMALL, logits_scaling=0.5),
}


@pytest.mark.parametrize("family", sorted(FINISHING))
def test_what_a_family_does_to_its_logits_is_done(family, ragged):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FINISHING[family]).eval()
    prompts, completions = ragged
    (rows,) = micro_batches(prompts, completions, 0, 10_000)
    with torch.no_grad():
        logp_BT, _ = token_logprobs(Scorer(model), rows, temperature=0.7)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            want, _ = by_plain_forward(model, prompt, completion, 0.7)
            assert (logp_BT[row, : len(completion)] - want).abs().max() < 1e-5


def gradients(model, prompts, completions, pad_id, budget):
    model.zero_grad()
    total = 0.0
    for rows in micro_batches(prompts, completions, pad_id, budget):
        logp_BT, _ = token_logprobs(Scorer(model), rows)
        weight = torch.tensor(rows.which_B + 1.0)[:, None]
        loss = (logp_BT * weight).sum()
        loss.backward()
        total += loss.item()
    return total, [p.grad.clone() for p in model.parameters()]


def test_chunked_logits_equal_whole_ones(own_policy, ragged, monkeypatch):
    args = (own_policy.model, *ragged, own_policy.pad_id, 10_000)
    whole, whole_gradients = gradients(*args)
    # 25 tokens of 108 words: pieces of 4 tokens, the last of one.
    monkeypatch.setattr(logprobs, "_LOGITS_AT_ONCE", 4 * 110)
    calls = []
    monkeypatch.setattr(logprobs, "_chosen", _counting(logprobs._chosen, calls))
    cut, cut_gradients = gradients(*args)
    assert len(calls) >= 7
    assert max(calls) <= 4
    assert cut == pytest.approx(whole, rel=1e-6)
    for a, b in zip(cut_gradients, whole_gradients, strict=True):
        assert (a - b).abs().max() < 1e-5 * max(1.0, float(b.abs().max()))


def test_greedy_probs_are_the_largest_of_each_softmax_also_in_pieces(policy, ragged, monkeypatch):
    (rows,) = micro_batches(*ragged, policy.pad_id, 10_000)
    with torch.no_grad():
        p_NV = policy.model(input_ids=rows.ids_BL).logits[rows.place].softmax(-1)
    want = p_NV.max(-1)
    assert (want.indices != rows.target_N).any()
    monkeypatch.setattr(logprobs, "_LOGITS_AT_ONCE", 4 * 110)  # 25 tokens: pieces of 4
    calls = []
    head = policy.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, inputs, out: calls.append(out.numel()))
    tokens, prob_N = greedy_probs(policy.scorer, rows)
    again, other_N = greedy_probs(policy.scorer, rows, rows.target_N)
    hook.remove()
    assert tokens.tolist() == want.indices.tolist()
    assert (prob_N - want.values).abs().max() < 1e-6
    assert again is rows.target_N
    assert (other_N - p_NV.gather(-1, again[:, None])[:, 0]).abs().max() < 1e-6
    assert max(calls) <= 4 * 110


def _counting(function, calls):
    def wrapped(hidden, *rest):
        calls.append(len(hidden))
        return function(hidden, *rest)

    return wrapped


def test_micro_batches_give_the_gradient_of_one_batch(own_policy, ragged):
    whole, whole_gradients = gradients(own_policy.model, *ragged, own_policy.pad_id, 10_000)
    cut, cut_gradients = gradients(own_policy.model, *ragged, own_policy.pad_id, 20)
    assert cut == pytest.approx(whole, rel=1e-6)
    for a, b in zip(cut_gradients, whole_gradients, strict=True):
        assert (a - b).abs().max() < 1e-5 * max(1.0, float(b.abs().max()))


def test_entropy_has_a_gradient_only_when_asked(own_policy, ragged):
    rows = next(micro_batches(*ragged, own_policy.pad_id, 10_000))
    assert not token_logprobs(own_policy.scorer, rows)[1].requires_grad
    _, entropy_BT = token_logprobs(own_policy.scorer, rows, entropy_grad=True)
    entropy_BT.sum().backward()
    assert own_policy.model.get_input_embeddings().weight.grad.abs().sum() > 0


class Held(TorchDispatchMode):
    """The most bytes that operations' bf16 results held at once."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16:
            storage = out.untyped_storage()
            if storage not in self.known:
                self.known.add(storage)
                weakref.finalize(storage, self.free, storage.nbytes())
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
        return out

    def free(self, size):
        self.now -= size


def test_a_checkpointed_pass_never_holds_every_weight_a_second_time(policy):
    config = copy.deepcopy(policy.model.config)
    config.num_hidden_layers, config.vocab_size = 12, 32
    model = LlamaForCausalLM(config)
    model.compute_dtype = torch.bfloat16
    prepare_training(model, checkpointing=True)
    (rows,) = micro_batches([np.array([1, 2])], [np.array([3])], 0, 100)
    with Held() as held:
        token_logprobs(Scorer(model), rows)[0].sum().backward()
    in_half = 2 * sum(weight.numel() for weight in model.parameters())
    assert 0 < held.most < in_half / 3
