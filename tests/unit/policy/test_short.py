"""Attention over short sequences on a CPU against torch's own."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM

from sps.policy import cpu_attention as short


class Module(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


def tensors(length=9):
    torch.manual_seed(0)
    shapes = [(3, 4, length, 8), (3, 2, length, 8), (3, 2, length, 8)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def by_torch(q, k, v, **how):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return scaled_dot_product_attention(q, k, v, **how).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 9, 128])
def test_value_and_gradients_are_those_of_torch(length):
    q, k, v = tensors(length)
    out, _ = short.attend(Module(), q, k, v, None, scaling=0.3)
    seed = torch.randn_like(out)
    own = torch.autograd.grad(out, (q, k, v), seed)
    expected = by_torch(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(out, expected)
    for got, want in zip(own, torch.autograd.grad(expected, (q, k, v), seed), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["mask", "long", "both ways", "decode", "bf16", "autocast"])
def test_what_is_not_short_and_causal_goes_to_torch(case, monkeypatch):
    seen, whole = [], short.sdpa_attention_forward
    monkeypatch.setattr(
        short, "sdpa_attention_forward", lambda *a, **k: seen.append(1) or whole(*a, **k)
    )
    q, k, v = tensors(200 if case == "long" else 9)
    mask = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril(2) if case == "mask" else None
    how = {"is_causal": False} if case == "both ways" else {}
    q = q[:, :, -1:] if case == "decode" else q
    q, k, v = (x.bfloat16() if case == "bf16" else x for x in (q, k, v))
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        out, _ = short.attend(Module(), q, k, v, mask, **how)
    assert seen == [1]
    causal = case in ("long", "bf16", "autocast")
    if case == "autocast":
        q, k, v = (x.bfloat16() for x in (q, k, v))
    torch.testing.assert_close(out, by_torch(q, k, v, attn_mask=mask, is_causal=causal))


def test_a_model_that_was_moved_to_a_gpu_goes_to_torch(monkeypatch):
    monkeypatch.setattr(short, "sdpa_attention_forward", lambda *a, **k: ("torch's", None))
    q, k, v = (x.detach().to("meta") for x in tensors())  # any other place
    assert short.attend(Module(), q, k, v, None) == ("torch's", None)


def test_other_families_keep_what_they_have():
    model = FalconForCausalLM(FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1,
                                           num_attention_heads=4))  # fmt: skip
    short.use_short(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_whole_model_computes_the_same_and_is_saved_without_it(tmp_path):
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (3, 11))
    padded = torch.ones_like(ids)
    padded[0, :4] = 0  # on the left: needs a mask
    before = [model(ids).logits, model(ids, attention_mask=padded).logits[0, 4:]]
    short.use_short(model)
    assert model.config._attn_implementation == short.NAME
    after = [model(ids).logits, model(ids, attention_mask=padded).logits[0, 4:]]
    torch.testing.assert_close(after, before)
    model.save_pretrained(tmp_path)
    assert short.NAME not in (tmp_path / "config.json").read_text()
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
