"""The vLLM engine without vLLM: what it hands to TRL's bridge, and what it makes of the answer."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sps.errors import RunFailed, UserError
from sps.rollout import vllm
from sps.rollout.adapters import Merged
from sps.rollout.table import VllmConfig
from sps.rollout.vllm import VllmEngine, _weights_on_disk
from sps.types import Request, Sampling

EOS, OTHER_EOS = 1, 2


class Client:
    """Stands for a server with 50 tokens."""

    model, logprobs = "theirs", "processed_logprobs"

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": self.logprobs}}

    def generate(self, prompts, max_tokens):
        if prompts[0][0] >= 50:
            raise Exception("Request failed: 400, out of vocabulary")


class Bridge:
    """Stands for VLLMGeneration: answers a prompt [.., k] with k tokens, the last an end token."""

    def __init__(self, model, accelerator, tokenizer, **how):
        self.how, self.calls, self.syncs = how, [], 0
        self.vllm_client = Client()

    def sync_weights(self):
        self.syncs += 1

    def generate(self, prompts, images, group):
        limit = self.max_completion_length
        self.calls.append((prompts, group, self.temperature, self.top_p, self.top_k, limit))
        ids = [([7] * p[-1] + [OTHER_EOS])[:limit] for p in prompts]
        return prompts, ids, [[[-0.25] for _ in row] for row in ids], ids


@pytest.fixture
def make(monkeypatch):
    """An engine of a policy on a device of this kind, among so many processes."""

    def _make(mode="colocate", device="cuda", processes=1, vocabulary=50, **more):
        model = SimpleNamespace(
            dtype="torch.float32",
            parameters=list,
            name_or_path="a/b",
            config=SimpleNamespace(vocab_size=vocabulary),
            **more.pop("model", {}),
        )
        policy = SimpleNamespace(
            model=model, tokenizer=None, eos_ids=[EOS, OTHER_EOS], source="ours"
        )
        accelerator = SimpleNamespace(
            num_processes=processes, is_main_process=True, device=SimpleNamespace(type=device)
        )
        return VllmEngine(policy, VllmConfig(mode=mode, **more), accelerator, max_rows=9999)

    monkeypatch.setenv("MASTER_PORT", "auto")
    fake = SimpleNamespace(VLLMGeneration=Bridge, LLM=object)
    monkeypatch.setattr(vllm, "_bridge", lambda: fake)
    monkeypatch.setattr(vllm, "_plain_linear", lambda model: nullcontext())
    monkeypatch.setattr(vllm, "_await", lambda server: None)
    return _make


ADAPTED = {"_hf_peft_config_loaded": True, "modules": list}
REQUESTS = [Request(4, (9, 3), (0, 2)), Request(5, (8, 1), (1,))]


def test_every_sample_comes_back_under_its_own_number(make):
    engine = make()
    out = {(c.index, c.sample): c for c in engine.generate(REQUESTS, Sampling(3, 3, 0.7, 0.9, 5))}
    assert sorted(out) == [(4, 0), (4, 2), (5, 1)]
    assert out[4, 2].ids.tolist() == [7, 7, 7]  # cut at three tokens
    assert not out[4, 2].finished
    assert out[5, 1].ids.tolist() == [7, OTHER_EOS]
    assert out[5, 1].finished
    assert out[5, 1].logprobs.tolist() == [-0.25, -0.25]
    prompts = [[9, 3], [9, 3], [8, 1]]
    assert engine._vllm.calls == [(prompts, 1, 0.7, 0.9, 5, 3)]
    assert engine._vllm.how["generation_kwargs"]["stop_token_ids"] == [EOS, OTHER_EOS]
    assert engine._vllm.how["max_num_seqs"] == 4096  # more than tokens at once is refused by vLLM


def test_weights_are_copied_once_and_only_before_they_are_used(make):
    engine = make()
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    assert engine._vllm.syncs == 1
    new = SimpleNamespace(**vars(engine.model))
    engine.load_weights(engine.model)
    engine.load_weights(new)
    assert engine._vllm.syncs == 1
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    assert engine._vllm.syncs == 2
    assert engine._vllm.model is new


def test_weights_go_to_the_bridge_with_their_adapters_merged(make):
    engine = make(model=ADAPTED)
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    assert isinstance(engine._vllm.model, Merged)  # tests/unit/rollout/test_adapters.py
    engine._vllm._dist = SimpleNamespace(fsdp_version=2)
    engine.model.parameters = lambda: [SimpleNamespace(full_tensor=None)]
    engine.load_weights(engine.model)
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    assert engine._vllm._dist.fsdp_version is None  # they are whole: the bridge gathers nothing


def test_a_server_draws_equal_groups_at_once_and_others_one_by_one(make):
    engine = make("server")
    list(engine.generate(REQUESTS, Sampling(3, 3)))
    assert engine._vllm.calls[-1][1] == 1
    equal = [Request(0, (9, 3), (0, 1)), Request(1, (8, 1), (4, 5))]
    list(engine.generate(equal, Sampling(2, 3)))
    assert engine._vllm.calls[-1][:2] == ([[9, 3], [9, 3], [8, 1], [8, 1]], 2)


@pytest.mark.parametrize(
    ("others", "rows", "group"),
    [
        ([(4, [2])], 4, 2),  # the same groups there, one more of them
        ([(0, [])], 2, 2),  # nothing to do there
        ([(3, [3])], 3, 1),  # other groups there: one by one
    ],
)
def test_processes_bring_equally_many_prompts_to_a_server(make, monkeypatch, others, rows, group):
    monkeypatch.setattr("accelerate.utils.gather_object", lambda mine: mine + others)
    engine = make("server", processes=2)
    out = list(engine.generate([Request(0, (9, 3), (0, 1))], Sampling(2, 3)))
    assert [(c.index, c.sample) for c in out] == [(0, 0), (0, 1)]  # what was made up is dropped
    prompts, used, *_ = engine._vllm.calls[-1]
    assert (len(prompts), used) == (rows, group)


def test_a_process_without_work_still_takes_part(make, monkeypatch):
    monkeypatch.setattr("accelerate.utils.gather_object", lambda mine: [*mine, (4, [2])])
    engine = make(tensor_parallel=2, processes=2)
    assert list(engine.generate([], Sampling(2, 3))) == []
    assert engine._vllm.calls[-1][0] == [[EOS]] * 4


def test_a_process_with_a_vllm_of_its_own_takes_part_where_weights_are_gathered(make):
    engine = make(processes=2)
    assert list(engine.generate([], Sampling(2, 3))) == []
    assert engine._vllm.syncs == 1
    assert engine._vllm.calls[-1][0] == [[EOS]]


def test_no_requests_anywhere_are_no_call(make):
    engine = make()
    assert list(engine.generate([], Sampling(2, 3))) == []
    assert engine._vllm.calls == []


def test_a_token_without_a_logprob_ends_the_run(make, monkeypatch):
    engine = make()
    monkeypatch.setattr(engine._vllm, "generate", lambda *_: (None, [[7]], [[[None]]], None))
    with pytest.raises(RunFailed, match="nan"):
        list(engine.generate([Request(0, (3,), (0,))], Sampling(1, 1)))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"model": ADAPTED | {"modules": lambda: [SimpleNamespace(base_layer=1)]}}, "model.lora"),
        ({"mode": "server", "device": "cpu"}, "rollout.vllm.mode"),
        ({"sleep": True, "device": "cpu"}, "rollout.vllm.sleep"),
        (
            {"mode": "server", "vocabulary": 51},
            "rollout.vllm.server: theirs does not take token 50",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_key(make, arguments, key):
    with pytest.raises(UserError, match=key):
        make(**arguments)


def test_a_server_that_leaves_the_temperature_out_is_refused(make, monkeypatch):
    monkeypatch.setattr(Client, "logprobs", "raw_logprobs")
    with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
        make("server")


def test_vllms_own_refusal_is_said_in_one_line(make, monkeypatch):
    def refuse(self, *_, **__):
        raise ValueError("No available memory\nand more")

    monkeypatch.setattr(Bridge, "__init__", refuse)
    with pytest.raises(UserError, match=r"rollout.vllm: vLLM cannot start: No available memory$"):
        make()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_packages_name_the_extra(policy):
    with pytest.raises(UserError, match=r"vllm is missing; install the extra: sps-rl\[vllm\]"):
        VllmEngine(policy, VllmConfig())


def test_an_unreachable_server_names_the_key_and_the_command(monkeypatch):
    monkeypatch.setattr(vllm, "_WAIT", 0.0)
    with pytest.raises(UserError, match=r"rollout.vllm.server.*127.0.0.1:9.*vllm serve"):
        vllm._await("http://127.0.0.1:9")


def test_a_policy_that_is_on_no_disk_is_written_for_the_start(policy, tmp_path):
    before = policy.model.name_or_path
    with _weights_on_disk(policy.model, policy.tokenizer):
        folder = policy.model.name_or_path
        assert folder != before
        written = tmp_path / "copy"
        type(policy.model).from_pretrained(folder).save_pretrained(written)
        type(policy.tokenizer).from_pretrained(folder)
    assert policy.model.name_or_path == before
    policy.model.name_or_path = str(written)
    try:
        with _weights_on_disk(policy.model, policy.tokenizer):
            assert policy.model.name_or_path == str(written)
    finally:
        policy.model.name_or_path = before
