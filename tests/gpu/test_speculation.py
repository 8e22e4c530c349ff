"""Guessed tokens change no sample. In float32 on a GPU, or on a CPU under TRITON_INTERPRET=1."""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from sps.rollout.cuda import guesses
from sps.types import Request, Sampling

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1",
        reason="no CUDA device, and kernels are not interpreted",
    ),
    pytest.mark.filterwarnings("ignore:In .* autocast"),
]
PAGE, VOCABULARY, END = 16, 7, 2  # small pages: runs of guesses cross their borders
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 256,
    "head_dim": 32, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(params=[1, 3], ids=["whole", "parts"])
def small(monkeypatch, request):
    """Float32, small pages, no padded rows, four guesses; attention in one part or several."""
    from sps.rollout.cuda import attention, decoder, engine, room, rows, state, tail

    monkeypatch.setattr(decoder.Decoder, "kind", torch.float32)
    for module in (state, rows, room, decoder):
        monkeypatch.setattr(module, "PAGE", PAGE)
    monkeypatch.setattr(tail, "DEPTH", 4)
    plan = attention.Plan(request.param, 16, 1, 1, 2)
    monkeypatch.setattr(attention, "plan_for", lambda *_: plan)
    monkeypatch.setattr(engine, "bucket", min)
    if not ON_GPU:
        monkeypatch.setattr(room, "captured", lambda step, pool: step)
        monkeypatch.setattr(room, "new_pool", lambda: None)


def make(config=Qwen2Config, kind=Qwen2ForCausalLM):
    torch.manual_seed(0)
    model = kind(config(**SHAPE)).eval()
    for name, p in model.named_parameters():  # on the CPU, so that a GPU has the same weights
        p.data.normal_(std=0.5) if "bias" in name else p.data.mul_(4)
    model.compute_dtype = torch.float32
    return model.to("cuda" if ON_GPU else "cpu")


def asked(samples, lengths=(5, 17)):
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(3, VOCABULARY, n).tolist()) for n in lengths]
    return [Request(7 + i, text, tuple(range(samples))) for i, text in enumerate(texts)]


def drawn(model, requests, sampling, speculate, max_rows=8, ends=(END,)):
    """Completions by problem and sample, and how many steps of each kind it took."""
    from sps.rollout.cuda.engine import CudaEngine

    engine, steps = CudaEngine(model, ends, 0, max_rows, speculate), Counter()
    longer = replace(sampling, max_new_tokens=sampling.max_new_tokens + 8)  # room past the limit
    made = engine._make_room(requests, longer)
    usual = made.graph

    def counted(step, rows, how):
        replay = usual(step, rows, how)
        return lambda: (steps.update([step.__name__]), replay())

    made.graph = counted
    done = list(engine.generate(requests, sampling))
    assert engine.room is made
    assert len(done) == sum(len(r.samples) for r in requests)
    return {(c.index, c.sample): c for c in done}, steps


def assert_same(got, want):
    assert got.keys() == want.keys()
    for key, one in want.items():
        assert got[key].ids.tolist() == one.ids.tolist(), key
        assert got[key].finished == one.finished
        np.testing.assert_allclose(got[key].logprobs, one.logprobs, atol=2e-4)


def teller(known, shift=0):
    """A guesser that knows what will be drawn, but for rows that begin alike; shifted, it is always
    wrong."""

    def guess(self, number, most):
        ids = self.texts[number]
        found = next(c.ids for c in known.values() if c.ids[: len(ids)].tolist() == ids)
        return ((found[len(ids) : len(ids) + most] + shift) % VOCABULARY).tolist()

    return guess


def test_guesses_change_no_sample(small):
    model, requests, sampling = make(), asked(2), Sampling(2, 22, 0.6, seed=1)
    want, plain = drawn(model, requests, sampling, speculate=False)
    got, steps = drawn(model, requests, sampling, speculate=True)
    assert_same(got, want)
    assert plain["check"] == steps["step"] == 0
    longest = max(len(c.ids) for c in want.values())
    assert longest / 5 < steps["check"] < longest - 1  # some guesses were right


@pytest.mark.parametrize("limit", [16, 17, 19])
def test_right_guesses_are_taken_up_to_the_end_or_the_limit(small, monkeypatch, limit):
    model, requests, sampling = make(), asked(2), Sampling(2, limit, seed=1)
    want, _ = drawn(model, requests, sampling, speculate=False)
    monkeypatch.setattr(guesses.Group, "guess", teller(want))
    got, steps = drawn(model, requests, sampling, speculate=True)
    assert_same(got, want)
    assert {len(c.ids) == limit for c in want.values()} == {True, False}
    assert {c.finished for c in want.values()} == {True, False}
    # The first token comes with the prompt, then five a step; one more where two rows begin alike.
    assert steps.keys() == {"check"}
    assert 0 <= steps["check"] + (1 - limit) // 5 <= 1


def test_right_guesses_of_a_model_that_norms_its_keys(small, monkeypatch):
    model, requests = make(Qwen3Config, Qwen3ForCausalLM), asked(1, [17])  # one row
    sampling, never = Sampling(1, 26, seed=1), (VOCABULARY,)
    want, _ = drawn(model, requests, sampling, speculate=False, ends=never)
    monkeypatch.setattr(guesses.Group, "guess", teller(want))
    got, steps = drawn(model, requests, sampling, speculate=True, ends=never)
    assert_same(got, want)
    assert steps == {"check": 5}


def test_wrong_guesses_change_nothing_and_guessing_ends(small, monkeypatch):
    model, requests, sampling = make(), asked(2), Sampling(2, 22, seed=1)
    want, _ = drawn(model, requests, sampling, speculate=False)
    monkeypatch.setattr(guesses.Group, "guess", teller(want, shift=1))
    monkeypatch.setattr("sps.rollout.cuda.tail._MEMORY", 4)
    got, steps = drawn(model, requests, sampling, speculate=True)
    assert_same(got, want)
    assert steps == {"check": 5, "step": 16}  # 1 + (3/4)**5 is the first mean below 1.3


def test_rows_that_wait_are_drawn_by_plain_steps_first(small, monkeypatch):
    model, requests, sampling = make(), asked(3), Sampling(3, 20, seed=1)
    want, _ = drawn(model, requests, sampling, speculate=False)
    monkeypatch.setattr(guesses.Group, "guess", teller(want))
    got, steps = drawn(model, requests, sampling, speculate=True, max_rows=3)
    assert_same(got, want)
    assert steps["step"] >= 8
    assert 1 <= steps["check"] <= 5


def test_rows_that_find_no_pages_are_drawn_again(small, monkeypatch):
    from sps.rollout.cuda import engine, room

    model, requests, sampling = make(), asked(3), Sampling(3, 40, seed=1)
    want, _ = drawn(model, requests, sampling, speculate=False)
    monkeypatch.setattr(guesses.Group, "guess", teller(want))
    each = 2 * 2 * 1 * PAGE * 32 * 2
    monkeypatch.setattr(room, "free_bytes", lambda device: 8.5 * each / room._SHARE)
    again = []

    class Counted(engine.Rows):
        def admit(self, waiting, requests):
            return [waiting.popleft() for _ in list(waiting)]

        def grow(self, steps, waiting):
            before = len(waiting)
            super().grow(steps, waiting)
            again.extend([steps] * (len(waiting) - before))

    monkeypatch.setattr(engine, "Rows", Counted)
    got, steps = drawn(model, requests, sampling, speculate=True)
    assert_same(got, want)
    assert 5 in again, again  # while guessing
    assert steps["check"]


@pytest.mark.skipif(not ON_GPU, reason="draws thousands of texts, and bf16 is not interpreted")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_checked_texts_follow_the_distribution(small, monkeypatch, kind):
    """Texts of three tokens, the last two guessed, by chi-square against the model alone."""
    from sps.rollout.cuda.engine import CudaEngine

    calls, samples = 400, 32
    model, (request,) = make(), asked(samples, [9])
    model.compute_dtype = kind
    monkeypatch.setattr("sps.rollout.cuda.decoder.Decoder.kind", kind)
    monkeypatch.setattr("sps.rollout.cuda.tail._PAYS", 0.0)  # however few are right
    monkeypatch.setattr(
        guesses.Group,
        "guess",
        lambda self, number, most: [(number + 3 * i) % VOCABULARY for i in range(most)],
    )
    seen, engine = Counter(), CudaEngine(model, [VOCABULARY], 0, samples, speculate=True)
    for seed in range(calls):
        done = engine.generate([request], Sampling(samples, 3, seed=seed))
        seen.update(tuple(c.ids.tolist()) for c in done)
    p_by_text = {(): 1.0}
    for _ in range(3):
        texts = [[*request.prompt_ids, *text] for text in p_by_text]
        device = next(model.parameters()).device
        with torch.no_grad():
            p_TV = model(torch.tensor(texts, device=device)).logits[:, -1].double().softmax(-1)
        p_by_text = {
            (*text, token): p * share
            for (text, p), row in zip(p_by_text.items(), p_TV.tolist(), strict=True)
            for token, share in enumerate(row)
        }
    total = calls * samples
    often = {text: p * total for text, p in p_by_text.items() if p * total >= 5}
    assert len(often) > 9
    got = torch.tensor([seen[text] for text in often], dtype=torch.double)
    want = torch.tensor([*often.values()], dtype=torch.double)
    square = ((got - want) ** 2 / want).sum() + (got.sum() - want.sum()) ** 2 / (total - want.sum())
    p = torch.special.gammaincc(torch.tensor(len(often) / 2).double(), square / 2)
    assert p > 1e-4, p


def test_rows_of_a_run_see_one_another_in_any_order(small):
    """The last of a run first: no row may count on others before it having been stored."""
    from sps.rollout.cuda import attention
    from sps.rollout.cuda.state import State

    torch.manual_seed(0)
    device = torch.device("cuda" if ON_GPU else "cpu")
    heads, width, prompt, own = 2, 32, 5, [18, 17, 16, 15, 14]
    cache = torch.randn(2, 4, 1, PAGE, width, device=device)
    before = cache.clone()
    table = torch.tensor([[3, 1, 2]], dtype=torch.int32, device=device)
    state = State.empty(5, 1, device)
    state.own.copy_(torch.tensor(own))
    state.live.copy_(torch.tensor([0, 1, 1, 1, 1]))  # nothing was guessed so far ahead
    length = torch.tensor([prompt], dtype=torch.int32, device=device)
    qkv = torch.randn(5, (heads + 2) * width, device=device)
    still = torch.ones(40, width, device=device), torch.zeros(40, width, device=device)
    plan = attention.plan_for()
    where = state, length, (cache[0], cache[1]), table, heads, None, 1e-6
    got = attention.attend(qkv, still, *where, plan, runs=True).view(5, heads, width)
    new = qkv.view(5, heads + 2, width)[:, heads:].transpose(0, 1)  # [2, row, width]
    texts = cache[:, table[0].long(), 0]
    texts = torch.cat([texts[:, 0, :prompt], texts[:, 1:].flatten(1, 2)], 1)
    for row, size in enumerate(own[1:], 1):
        assert torch.equal(texts[:, prompt + size], new[:, row])
        k, v = texts[:, : prompt + size + 1].double()
        p = (qkv[row].view(-1, width)[:heads].double() @ k.t() * width**-0.5).softmax(-1)
        assert (got[row].double() - p @ v).norm() < 5e-3 * (p @ v).norm(), row
    assert torch.equal(cache[:, 2, 0, 2], before[:, 2, 0, 2])  # where the row that is not live is
