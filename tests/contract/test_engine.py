"""What every RolloutEngine promises: those of ENGINES that run here, over a copy of the model, and
the fake, which promises all but what hangs on a model. vLLM's are in tests/with_vllm."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from sps.ranks import ALONE
from sps.rollout.fake import FakeEngine
from sps.rollout.native.copied import CopiedEngine
from sps.rollout.native.engine import NativeEngine, attention
from sps.rollout.table import ENGINES
from sps.types import Request, Sampling

HERE = sorted(name for name, row in ENGINES.items() if not row.needs)

VOCABULARY, EOS, PAD = 40, 1, 0
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "initializer_range": 0.25,  # far from uniform: a wrong mask or position shows
}
LESS = {k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE),
    "llama_biases": LlamaConfig(**SHAPE, attention_bias=True, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "mistral_window": MistralConfig(**SHAPE, sliding_window=9),
    "gemma2": Gemma2Config(**SHAPE, head_dim=8, sliding_window=9, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=9, query_pre_attn_scalar=8),
    "gpt_neox": GPTNeoXConfig(**LESS),
    "granite": GraniteConfig(**SHAPE, logits_scaling=3.0),
    "cohere": CohereConfig(**SHAPE, logit_scale=0.5),
    "hyperclovax": HyperCLOVAXConfig(**SHAPE, logits_scaling=0.5),
}


def make_model(family: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation="eager").eval()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():  # norms and biases that differ from their neutral start
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn(p.shape, generator=rng))
        # A small row has a logit near 0: the end token comes up now and then, so rows end at many
        # different lengths and some run on.
        model.get_output_embeddings().weight[EOS].mul_(0.2)
    return model


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def any_model(request):
    return make_model(request.param)


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


@pytest.fixture(params=HERE)
def make_engine(request):
    def _make(model, max_rows=2048):
        policy = SimpleNamespace(model=model, eos_ids=[EOS], pad_id=PAD)
        return ENGINES[request.param].make(policy, max_rows, ALONE, None)

    return _make


def make_native(model, max_rows=2048):
    return NativeEngine(model, [EOS], PAD, max_rows)


def make_copied(model, max_rows=2048):
    copy = deepcopy(model)
    return CopiedEngine(make_native(copy, max_rows), copy)


@pytest.fixture(params=["native", "copied", "fake"])
def make_any(request):
    """Also engines that no recipe names."""

    def _make(model, max_rows=2048):
        if request.param == "fake":
            return FakeEngine(VOCABULARY, [EOS], max_rows=max_rows)
        if request.param == "copied":
            return make_copied(model, max_rows)
        policy = SimpleNamespace(model=model, eos_ids=[EOS], pad_id=PAD)
        return ENGINES["native"].make(policy, max_rows, ALONE, None)

    return _make


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_row_names_a_factory(name):
    module, _, factory = ENGINES[name].factory.partition(":")
    assert callable(getattr(import_module(module), factory))


def requests_of(lengths, n, first=0, seed=0):
    rng = np.random.default_rng(seed)
    prompts = [tuple(int(t) for t in rng.integers(2, VOCABULARY, length)) for length in lengths]
    return [Request(first + i, prompt, tuple(range(n))) for i, prompt in enumerate(prompts)]


def collect(engine, requests, sampling):
    out = {}
    for c in engine.generate(requests, sampling):
        assert (c.index, c.sample) not in out, "a sample came twice"
        out[c.index, c.sample] = c
    assert set(out) == {(r.index, s) for r in requests for s in r.samples}
    return out


@torch.no_grad()
def forward(model, prompt, ids, temperature=1.0):
    """Log-probabilities [T, V] at each completion token, by the model's own forward pass."""
    whole = torch.tensor([*prompt, *ids.tolist()])[None]
    logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return (logits.float() / temperature).log_softmax(-1)


def check_logprobs(model, requests, out, temperature=1.0):
    prompts = {r.index: r.prompt_ids for r in requests}
    for (index, _), c in out.items():
        logp = forward(model, prompts[index], c.ids, temperature)
        want = logp[torch.arange(len(c.ids)), torch.tensor(c.ids).long()]
        assert np.abs(want.numpy() - c.logprobs).max() < 1e-4


LENGTHS = {
    "short": [1, 5, 5, 12],  # the prompt is copied in front of each row
    "at_the_border": [attention.SHORT - 1, attention.SHORT],
    "just_over": [attention.SHORT + 1, attention.SHORT],
    "long": [33, 50, 41],  # the prompt is stored once a group
    "mixed": [4, 60],
}


@pytest.mark.parametrize("lengths", sorted(LENGTHS))
def test_logprobs_equal_a_plain_forward_pass(any_model, make_engine, lengths):
    requests = requests_of(LENGTHS[lengths], n=8)
    sampling = Sampling(8, max_new_tokens=60, seed=3)
    out = collect(make_engine(any_model), requests, sampling)
    check_logprobs(any_model, requests, out)
    ends = {len(c.ids) for c in out.values()}
    assert len(ends) > 1  # rows ended at different times
    assert max(ends) > 40  # and some ran on, so buffers grew


def test_logprobs_are_those_of_the_temperature(model, make_engine):
    requests = requests_of([3, 8], n=4)
    out = collect(make_engine(model), requests, Sampling(4, 30, temperature=0.6, seed=1))
    check_logprobs(model, requests, out, temperature=0.6)


def test_logprobs_are_before_truncation(model, make_engine):
    requests = requests_of([3, 8], n=4)
    out = collect(make_engine(model), requests, Sampling(4, 30, top_p=0.5, top_k=4, seed=1))
    check_logprobs(model, requests, out)


def test_completions_end_at_the_end_token_or_the_limit(model, make_any):
    out = collect(make_any(model), requests_of([3, 9, 40], n=12), Sampling(12, 25, seed=2))
    kinds = set()
    for c in out.values():
        assert EOS not in c.ids[:-1]
        assert c.finished == (c.ids[-1] == EOS)
        assert c.finished or len(c.ids) == 25
        assert len(c.logprobs) == len(c.ids)
        kinds.add(c.finished)
    assert kinds == {True, False}


def test_every_end_token_ends_a_text(model):
    ends = {EOS, 7, 30}
    engine = NativeEngine(model, sorted(ends), PAD)
    out = collect(engine, requests_of([3, 9], n=30), Sampling(30, 25, seed=2))
    for c in out.values():
        assert not ends & {*c.ids[:-1].tolist()}
        assert c.finished == (int(c.ids[-1]) in ends)
    assert {int(c.ids[-1]) for c in out.values() if c.finished} == ends


def same(a, b):
    assert a.keys() == b.keys()
    for key, c in a.items():
        assert c.ids.tolist() == b[key].ids.tolist()
        assert c.finished == b[key].finished
        assert np.abs(c.logprobs - b[key].logprobs).max() < 1e-4


@pytest.mark.parametrize("lengths", ["short", "mixed"])
@pytest.mark.parametrize("max_rows", [1, 3, 7])
def test_samples_do_not_depend_on_the_batch(model, make_any, lengths, max_rows):
    requests, sampling = requests_of(LENGTHS[lengths], n=6), Sampling(6, 50, seed=4)
    whole = collect(make_any(model, max_rows=2048), requests, sampling)
    same(whole, collect(make_any(model, max_rows=max_rows), requests, sampling))


def test_samples_may_be_asked_for_one_by_one(model, make_any):
    engine, sampling = make_any(model), Sampling(4, 30, seed=4)
    requests = requests_of([5, 9], n=4)
    whole = collect(engine, requests, sampling)
    parts = {}
    for samples in ((2,), (0, 3), (1,)):
        asked = [Request(r.index, r.prompt_ids, samples) for r in reversed(requests)]
        parts |= collect(engine, asked, sampling)
    same(whole, parts)


def test_requests_may_ask_for_different_numbers_of_samples(model, make_engine):
    few, many = requests_of([5, 40], n=7)
    few = Request(few.index, few.prompt_ids, (0, 4))
    out = collect(make_engine(model), [few, many], Sampling(7, 45, seed=9))
    check_logprobs(model, [few, many], out)


def test_seed_index_and_sample_each_change_what_is_drawn(model, make_any):
    engine = make_any(model)
    prompt = requests_of([5], n=1)[0].prompt_ids
    sampling = Sampling(2, 12, seed=4)
    out = collect(engine, [Request(i, prompt, (0, 1)) for i in (0, 1)], sampling)
    other = collect(engine, [Request(0, prompt, (0, 1))], replace(sampling, seed=5))
    texts = [tuple(c.ids.tolist()) for c in [*out.values(), *other.values()]]
    assert len(set(texts)) == len(texts)
    same(out, collect(engine, [Request(i, prompt, (0, 1)) for i in (0, 1)], sampling))


def test_greedy_is_argmax_decoding(any_model, make_engine):
    requests = requests_of([4, 11, 36], n=1)
    sampling = Sampling(1, 45, temperature=0.0)
    out = collect(make_engine(any_model), requests, sampling)
    for r in requests:
        got = out[r.index, 0]
        ids = torch.tensor(r.prompt_ids)[None]
        want = any_model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=45,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )[0, len(r.prompt_ids) :]
        assert got.ids.tolist() == want.tolist()


def test_top_k_of_one_is_greedy(model, make_any):
    engine, requests = make_any(model), requests_of([4, 11], n=2)
    greedy = collect(engine, requests, Sampling(2, 30, temperature=0.0))
    top = collect(engine, requests, Sampling(2, 30, top_k=1, seed=8))
    for key, c in greedy.items():
        assert c.ids.tolist() == top[key].ids.tolist()


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 3), (0.6, 0), (0.7, 5)])
def test_truncation_never_draws_an_excluded_token(model, make_engine, top_p, top_k):
    requests = requests_of([4, 11], n=40)
    out = collect(make_engine(model), requests, Sampling(40, 20, 1.0, top_p, top_k, seed=6))
    prompts = {r.index: r.prompt_ids for r in requests}
    first = {index: set() for index in prompts}
    for (index, _), c in out.items():
        for logp, token in zip(forward(model, prompts[index], c.ids), c.ids.tolist(), strict=True):
            assert token in allowed(logp, top_p, top_k)
        first[index].add(int(c.ids[0]))
    for r in requests:  # and 40 samples hit every token that is left and is not rare
        logp = forward(model, r.prompt_ids, np.array([0]))[0]
        left = {t for t in allowed(logp, top_p, top_k) if logp[t].exp() > 0.15}
        assert left <= first[r.index]


def allowed(logp, top_p, top_k):
    """Top-k, then the fewest tokens whose share of what is left reaches top-p; a rounding apart."""
    order = logp.argsort(descending=True).tolist()[: top_k or None]
    total = sum(float(logp[t].exp()) for t in order)
    kept, mass = set(), 0.0
    for token in order:
        if mass >= top_p * total + 1e-5:
            break
        kept.add(token)
        mass += float(logp[token].exp())
    return kept


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.5, 0), (1.0, 4)])
def test_sampled_frequencies_match_the_softmax(model, make_engine, temperature, top_k):
    request = requests_of([6], n=5000)[0]
    sampling = Sampling(5000, 1, temperature, top_k=top_k, seed=11)
    out = collect(make_engine(model), [request], sampling)
    counts = np.bincount([c.ids[0] for c in out.values()], minlength=VOCABULARY)
    p = forward(model, request.prompt_ids, np.array([0]), temperature)[0].exp().double().numpy()
    if top_k:
        p = np.where(p >= np.sort(p)[-top_k], p, 0.0)
        p /= p.sum()
    assert counts[p == 0].sum() == 0
    # A true sampler fails one seed in a thousand; this seed is fixed.
    assert chi_square(counts, p) > 1e-3


def chi_square(counts, p):
    """The p-value of these counts under p; tokens expected fewer than 5 times are left out."""
    common = p * counts.sum() >= 5
    want = p[common] / p[common].sum() * counts[common].sum()
    assert len(want) >= 3
    return stats.chisquare(counts[common], want).pvalue


def test_second_token_depends_on_the_first_as_it_should(model, make_engine):
    request = requests_of([6], n=6000)[0]
    out = collect(make_engine(model), [request], Sampling(6000, 2, seed=12))
    pairs = [tuple(c.ids.tolist()) for c in out.values() if len(c.ids) == 2]
    firsts = [a for a, _ in pairs]
    top = max(set(firsts), key=firsts.count)
    seconds = [b for a, b in pairs if a == top]
    p = forward(model, request.prompt_ids, np.array([top, 0]))[1].exp().double().numpy()
    assert chi_square(np.bincount(seconds, minlength=VOCABULARY), p) > 1e-3


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_as_it_was_even_between_completions(make_engine, training):
    model = make_model("llama").train(training)
    implementation = model.config._attn_implementation
    engine = make_engine(model, max_rows=2)
    ids = torch.tensor([[3, 4, 5]])
    for number, _ in enumerate(engine.generate(requests_of([4, 8, 40], n=3), Sampling(3, 20))):
        assert model.training is training
        assert model.config._attn_implementation == implementation
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        if number == 1:  # train in the middle of sampling
            model(input_ids=ids, labels=ids).loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_abandoned_generation_leaves_the_model_as_it_was(make_engine):
    model = make_model("qwen2").train()
    stream = make_engine(model, max_rows=2).generate(requests_of([4, 8], n=3), Sampling(3, 20))
    next(stream)
    stream.close()
    assert model.training
    assert model.config._attn_implementation == "eager"


def test_dropout_is_off_while_sampling(make_engine):
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, attention_dropout=0.9)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    requests = requests_of([6, 40], n=3)
    out = collect(make_engine(model), requests, Sampling(3, 30, seed=2))
    check_logprobs(model.eval(), requests, out)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral_window"])
def test_new_weights_are_sampled_from_once_loaded(make_engine, family):
    model = make_model(family)
    engine = make_engine(model)
    requests, sampling = requests_of([5, 40], n=3), Sampling(3, 30, seed=2)
    collect(engine, requests, sampling)
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=rng))
    engine.load_weights(model)
    check_logprobs(model, requests, collect(engine, requests, sampling))


def test_another_model_may_take_its_place(make_engine):
    engine = make_engine(make_model("llama"))
    other = make_model("qwen3")
    engine.load_weights(other)
    requests = requests_of([5, 40], n=3)
    check_logprobs(other, requests, collect(engine, requests, Sampling(3, 30, seed=2)))


@pytest.mark.parametrize("made_way", ["shrink", "close"])
def test_engine_works_again_after_it_gave_memory_back(model, make_any, made_way):
    engine, requests, sampling = make_any(model), requests_of([5], n=3), Sampling(3, 30, seed=2)
    before = collect(engine, requests, sampling)
    getattr(engine, made_way)()
    same(before, collect(engine, requests, sampling))


def test_memory_of_an_earlier_wave_does_not_leak_into_a_later_one(model, make_engine):
    engine = make_engine(model)
    collect(engine, requests_of([60, 55, 20], n=6, seed=5), Sampling(6, 60, seed=1))
    requests, sampling = requests_of([5, 9, 40], n=4), Sampling(4, 50, seed=2)
    used = collect(engine, requests, sampling)
    same(used, collect(make_engine(model), requests, sampling))


def test_random_numbers_of_a_long_text_never_come_again():
    """A policy of equal chances: what is drawn is the random numbers themselves, 600 a row."""
    torch.manual_seed(0)
    small = {**SHAPE, "num_hidden_layers": 1, "max_position_embeddings": 1024}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**small)).eval()
    model.get_output_embeddings().weight.data.zero_()
    engine = NativeEngine(model, [VOCABULARY + 1], PAD)
    requests = requests_of([4], n=3)
    long = {c.sample: c.ids for c in engine.generate(requests, Sampling(3, 600, seed=5))}
    drawn = np.concatenate([*long.values()])
    for lag in range(1, 600):  # 1200 pairs and more, of which one in 40 agrees: 30, error 5.4
        assert (drawn[lag:] == drawn[:-lag]).sum() < (len(drawn) - lag) / 40 + 60
    # And they hang on the place in the text alone.
    short = {c.sample: c.ids for c in engine.generate(requests, Sampling(3, 300, seed=5))}
    assert all((long[s][:300] == short[s]).all() for s in range(3))


@pytest.mark.parametrize("make", [make_native, make_copied])
@pytest.mark.parametrize("where", ["_prefill", "_step"])
def test_where_memory_runs_out_samples_are_those_of_fewer_rows(model, make, where, monkeypatch):
    requests, sampling = requests_of([4, 8, 60], n=6), Sampling(6, 50, seed=4)
    fewer, real = collect(make(model, max_rows=4), requests, sampling), getattr(NativeEngine, where)

    def short_of_memory(engine, first, second, *more):
        if where == "_prefill":  # a wave and its rows
            rows = len(first) * second.group
        else:  # a cache and tokens; by then some rows have ended, and were handed out
            rows = len(second) if first.filled > 10 else 0
        if rows > 4:
            raise torch.OutOfMemoryError
        return real(engine, first, second, *more)

    monkeypatch.setattr(NativeEngine, where, short_of_memory)
    engine = make(model, max_rows=16)
    same(fewer, collect(engine, requests, sampling))
    assert engine.max_rows == 4


def test_waves_and_draws_that_failed_hold_no_memory_when_the_next_begins(model, monkeypatch):
    """Keys and values are most of it, and Python's search for cycles comes when it likes."""
    caches, real = [], NativeEngine._prefill

    def prefill(engine, *given):
        assert [cache for cache in caches if cache()] == []
        cache, logits = real(engine, *given)
        caches.append(weakref.ref(cache))
        if len(caches) < 3:
            raise torch.OutOfMemoryError
        return cache, logits

    monkeypatch.setattr(NativeEngine, "_prefill", prefill)
    gc.disable()
    try:
        collect(make_native(model, max_rows=16), requests_of([4, 60], n=4), Sampling(4, 20))
    finally:
        gc.enable()
    assert len(caches) == 4


def test_prompts_are_run_a_bounded_number_of_tokens_at_once(any_model, monkeypatch):
    requests, sampling = requests_of([5, 33, 50, 41, 48], n=1), Sampling(1, 20, temperature=0)
    whole = collect(make_native(any_model), requests, sampling)
    passes, real = [], NativeEngine._prompts
    count = lambda self, ids, cache: [passes.append(ids.numel()), real(self, ids, cache)][1]  # noqa: E731
    monkeypatch.setattr(NativeEngine, "_prompts", count)
    monkeypatch.setattr(attention, "PREFILL", 110)
    same(whole, collect(make_native(any_model), requests, sampling))
    assert passes == [100, 100, 50]


@pytest.mark.parametrize("rows", [1, 7])
def test_rows_at_once_are_as_asked(model, make_any, rows):
    assert make_any(model, max_rows=rows).max_rows == rows


def test_a_copy_follows_the_weights_that_it_is_given():
    model = make_model("llama")
    engine, requests = make_copied(model), requests_of([5, 40], n=3)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    engine.load_weights(model)
    check_logprobs(model, requests, collect(engine, requests, Sampling(3, 30, seed=2)))


def test_fake_logprobs_are_those_of_equal_chances():
    out = collect(FakeEngine(VOCABULARY, [EOS]), requests_of([3], n=2000), Sampling(2000, 1))
    counts = np.bincount([c.ids[0] for c in out.values()], minlength=VOCABULARY)
    assert chi_square(counts, np.full(VOCABULARY, 1 / VOCABULARY)) > 1e-3
    assert {float(c.logprobs[0]) for c in out.values()} == {float(np.float32(-np.log(VOCABULARY)))}


def test_a_script_says_what_the_fake_draws():
    def script(request, sample):
        return [*request.prompt_ids, 10 + sample, EOS]

    requests = requests_of([2, 3], n=2)
    out = collect(FakeEngine(VOCABULARY, [EOS], script), requests, Sampling(2, 5))
    for r in requests:
        want = [*r.prompt_ids, 11, EOS]
        assert out[r.index, 1].ids.tolist() == want
        assert out[r.index, 1].logprobs.tolist() == [0.0] * len(want)
        assert out[r.index, 1].finished
    cut = collect(FakeEngine(VOCABULARY, [EOS], script), requests, Sampling(2, 4))
    assert [cut[r.index, 0].finished for r in requests] == [True, False]
    assert len(cut[1, 0].ids) == 4


def test_no_requests_give_no_completions(model, make_any):
    assert list(make_any(model).generate([], Sampling(3, 5))) == []


def test_it_computes_in_the_dtype_of_training(make_engine):
    model = make_model("llama")
    model.compute_dtype = torch.bfloat16
    requests = requests_of([5, 40], n=8)
    out = collect(make_engine(model), requests, Sampling(8, max_new_tokens=40, seed=3))

    def gap(rounded):
        gaps = []
        for (index, _), c in out.items():
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                logp = forward(model, requests[index].prompt_ids, c.ids)
            own = logp[torch.arange(len(c.ids)), torch.tensor(c.ids).long()]
            gaps.append(own - torch.tensor(c.logprobs))
        return float(torch.cat(gaps).square().mean().sqrt())

    assert gap(rounded=False) > 1e-3  # what bf16 does to this model
    assert gap(rounded=True) < gap(rounded=False)  # rounded alike, and not to the bit


class Converted(TorchDispatchMode):
    """How many weights were converted to bf16."""

    def __init__(self, model):
        super().__init__()
        self.known, self.count = {p.data_ptr() for p in model.parameters() if p.ndim == 2}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        to_half = isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16
        if "_to_copy" in str(function) and to_half and args[0].data_ptr() in self.known:
            self.count += 1
        return out


@pytest.mark.parametrize("trained", [True, False])
def test_weights_are_converted_once_and_not_for_every_token(trained):
    model = make_model("llama").requires_grad_(trained)
    model.compute_dtype = torch.bfloat16
    engine = NativeEngine(model, [VOCABULARY + 1], PAD)
    counts = []
    for tokens in (4, 16):
        with Converted(model) as converted:
            list(engine.generate(requests_of([5], n=2), Sampling(2, tokens, seed=1)))
        counts.append(converted.count)
    assert 0 < counts[0] == counts[1]
    assert all(p.requires_grad is trained for p in model.parameters())
