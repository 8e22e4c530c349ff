"""The vLLM engine with vLLM itself: colocated on a CPU, and a server. Run with `make test-vllm`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed; run `make test-vllm`")

from sps.build import make_policy, make_task
from sps.config.load import dump_recipe, parse_recipe
from sps.errors import UserError
from sps.policy.logprobs import micro_batches, token_logprobs
from sps.rollout.native.engine import NativeEngine
from sps.rollout.table import VllmConfig
from sps.rollout.vllm import VllmEngine
from sps.run.track import read_records
from sps.types import Request, Sampling

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    # Of TRL on a vLLM newer than it knows, and of vLLM's own imports.
    pytest.mark.filterwarnings("ignore"),
]

# Heads of width 32: vLLM's CPU attention knows none of the shipped policy's 24.
BASE = {
    "steps": 400,
    "batch": 32,
    "lr": 1e-2,
    "hidden": 64,
    "layers": 2,
    "heads": 2,
    "ff": 128,
    "solved": 0.8,
}
HOW = VllmConfig(memory=0.3)


def recipe_of(**rollout):
    tree = {
        "name": "vllm",
        "model": {"base": BASE, "device": "cpu"},
        "task": {"numbers": 2, "high": 6, "max_value": 36, "train": 24, "validation": 4, "test": 4},
        "rollout": {"prompts": 4, "n": 4, "max_new_tokens": 8, **rollout},
        "rl": {"algorithm": {"type": "grpo"}, "steps": 2, "lr": 1e-3},
        "irl": {"steps": 1, "every": 2, "lr": 1e-3, "batch": 16, "keep": 2},
        "evaluation": {"n": 4, "every": 0},
        "meter": {"problems": 2, "samples": 2},
    }
    return parse_recipe(tree, "test")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def policy():
    return make_policy(recipe_of())


@pytest.fixture(scope="module")
def requests(policy):
    task = make_task(recipe_of())
    prompts = [policy.encode(task.prompt(problem)) for problem in task.problems("train")]
    return [Request(i, prompt, tuple(range(8))) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def engine(policy):
    engine = VllmEngine(policy, HOW)
    yield engine
    engine.close()


@torch.no_grad()
def gaps(policy, requests, out, temperature=1.0):
    """Trainer's log-probability minus the engine's, at every sampled token."""
    prompts = {r.index: np.array(r.prompt_ids) for r in requests}
    (rows,) = micro_batches(
        [prompts[c.index] for c in out], [c.ids for c in out], policy.pad_id, 10**9
    )
    new_BT, _ = token_logprobs(policy.scorer, rows, temperature)
    drawn_N = np.concatenate([out[i].logprobs for i in rows.which_B])
    return new_BT[rows.mask_BT].numpy() - drawn_N


def shown(name, gap_N, capsys):
    with capsys.disabled():
        mean, most = np.abs(gap_N).mean(), np.abs(gap_N).max()
        sys.stdout.write(f"\n{name}: mean {mean:.2g}, most {most:.2g} nats, {len(gap_N)} tokens\n")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_trainers(engine, policy, requests, temperature, capsys):
    out = list(engine.generate(requests, Sampling(8, 16, temperature)))
    assert sorted((c.index, c.sample) for c in out) == [
        (r.index, s) for r in requests for s in r.samples
    ]
    assert len({tuple(c.ids) for c in out if c.index == 0}) > 1  # samples of a prompt differ
    gap_N = gaps(policy, requests, out, temperature)
    shown(f"float32, temperature {temperature}", gap_N, capsys)
    assert np.abs(gap_N).max() < 1e-4


def test_completions_end_at_an_end_token_or_the_limit(engine, policy, requests):
    out = list(engine.generate(requests, Sampling(8, 5)))
    ends = [np.isin(c.ids, policy.eos_ids) for c in out]
    assert {c.finished for c in out} == {True, False}
    for c, end_T in zip(out, ends, strict=True):
        assert c.finished == end_T[-1]
        assert not end_T[:-1].any()
        assert c.finished or len(c.ids) == 5


def test_every_end_token_ends_a_completion(policy, requests, engine, monkeypatch):
    plain = list(engine.generate(requests, Sampling(8, 16, 0.0)))
    other = int(plain[0].ids[1])  # a token in the middle of an answer
    assert other not in policy.eos_ids
    stops = [*policy.eos_ids, other]
    monkeypatch.setitem(engine._vllm.generation_kwargs, "stop_token_ids", stops)
    first = next(c for c in engine.generate(requests, Sampling(8, 16, 0.0)) if c.index == 0)
    assert first.ids.tolist() == plain[0].ids[:2].tolist()


def test_greedy_is_the_native_engines(engine, policy, requests):
    native = NativeEngine(policy.model, policy.eos_ids, policy.pad_id)
    sampling = Sampling(8, 16, 0.0)
    want = {(c.index, c.sample): c.ids.tolist() for c in native.generate(requests, sampling)}
    got = {(c.index, c.sample): c.ids.tolist() for c in engine.generate(requests, sampling)}
    assert got == want


def test_new_weights_are_sampled_from_once_loaded(engine, policy, requests, capsys):
    """The output layer is tied to the embeddings: it must change with them."""
    before = {name: w.detach().clone() for name, w in policy.model.named_parameters()}
    rng = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for weight in policy.model.parameters():
                if weight.ndim > 1:
                    noise = torch.randn(weight.shape, generator=rng)
                    weight.add_(0.2 * weight.std() * noise)
        stale = gaps(policy, requests, list(engine.generate(requests, Sampling(8, 16))))
        engine.load_weights(policy.model)
        fresh = gaps(policy, requests, list(engine.generate(requests, Sampling(8, 16))))
    finally:
        policy.model.load_state_dict(before, strict=False)
        engine.load_weights(policy.model)
    shown("before the weights are loaded", stale, capsys)
    shown("after", fresh, capsys)
    assert np.abs(stale).mean() > 0.02
    assert np.abs(fresh).max() < 1e-4


def test_engine_works_again_after_close(engine, policy, requests):
    engine.close()
    out = list(engine.generate(requests[:2], Sampling(8, 16)))
    assert len(out) == 16
    assert np.abs(gaps(policy, requests, out)).max() < 1e-4


def test_a_policy_that_is_on_no_disk_is_served(requests, engine, policy, monkeypatch):
    """As one read from a GGUF file: it is written to a folder for vLLM to start from."""
    engine.close()
    monkeypatch.setattr(policy.model, "name_or_path", "")
    out = list(engine.generate(requests[:2], Sampling(8, 16)))
    assert np.abs(gaps(policy, requests, out)).max() < 1e-4


def test_heads_the_cpu_does_not_know_are_refused_at_the_start(tmp_path):
    from conftest import make_policy as small

    with pytest.raises(UserError, match="heads of width 8"):
        VllmEngine(small(), HOW)


def test_bf16_differs_by_its_rounding(engine, policy, requests, capsys, monkeypatch):
    engine.close()
    monkeypatch.setattr(policy.model, "compute_dtype", torch.bfloat16)
    out = list(engine.generate(requests, Sampling(8, 16)))
    gap_N = gaps(policy, requests, out)
    engine.close()
    shown("bfloat16", gap_N, capsys)
    assert 1e-4 < np.abs(gap_N).mean() < 0.02


def test_a_whole_run_of_rl_and_irl(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe_of(engine="vllm", correct=2.0)))
    command = [sys.executable, "-m", "sps", "train", str(path), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = list(read_records(tmp_path / "run" / "metrics.jsonl"))
    rl = [r for r in records if r["kind"] == "rl"]
    assert len(rl) == 2
    assert {"irl", "meter", "eval", "done"} <= {r["kind"] for r in records}
    for record in rl:
        assert 0 < record["engine_gap"] <= record["engine_gap_rms"] < 1e-4
        assert record["engine_weight"] == pytest.approx(1, abs=1e-4)
        assert record["engine_truncated"] == 0
    with capsys.disabled():
        sys.stdout.write(f"\nengine_gap of two steps: {[r['engine_gap'] for r in rl]}\n")
    assert not [r for r in records if r["kind"] == "warning" and "gap_warn" in r["text"]]


@pytest.mark.parametrize("how", ["tensor_parallel", "sharded"])
def test_two_ranks_draw_and_learn_together(how, tmp_path):
    """Three problems for two ranks: one of them makes up what it lacks."""
    path = tmp_path / "recipe.yaml"
    vllm = {"memory": 0.25, "tensor_parallel": 2 if how == "tensor_parallel" else 1}
    path.write_text(dump_recipe(recipe_of(engine="vllm", prompts=3, vllm=vllm)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "sps", "train", str(path), "--out", str(tmp_path / "run")]
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if how == "sharded" else {}
    environment = plain_environment(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true", **sharded)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [r for r in read_records(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "rl"]
    assert [r["groups"] for r in records] == [3, 3]
    # The second step's rollouts are of the weights after the first: they were sent.
    assert all(r["engine_gap"] < 1e-4 for r in records if r["used"])
    assert records[1]["used"]
    assert not [path.name for path in Path("/dev/shm").glob("*cpushm*")]  # for the next job


def plain_environment(**more):
    """Without what a colocated vLLM has set in this process."""
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in ours} | more


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def server(policy, tmp_path_factory):
    """`vllm serve` with the policy; by its module, as the CPU wheel's command does not start."""
    port, log = _free_port(), tmp_path_factory.mktemp("server") / "log"
    transfer = json.dumps({"backend": "nccl"})
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", policy.source, "--port", str(port), "--dtype", "float32"]
    command += ["--logprobs-mode", "processed_logprobs", "--weight-transfer-config", transfer]
    command += ["--enforce-eager", "--gpu-memory-utilization", "0.3", "--max-num-seqs", "64"]
    environment = plain_environment(VLLM_SERVER_DEV_MODE="1")
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def without_weights(monkeypatch):
    """Weights go to a server over NCCL, which a CPU has not: the rest is run as it is."""
    from trl.generation.vllm_client import VLLMClient
    from trl.generation.vllm_generation import VLLMGeneration

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self: None)
    monkeypatch.setattr(VllmEngine, "_check", lambda self: None)


def test_a_server_answers_with_the_trainers_logprobs(
    server, policy, requests, without_weights, capsys
):
    engine = VllmEngine(policy, VllmConfig(mode="server", server=server))
    uneven = [*requests, Request(99, requests[0].prompt_ids, (3, 5))]
    ended = set()
    for asked, most in ((requests, 12), (uneven, 5)):  # nearly all have ended; hardly any
        out = list(engine.generate(asked, Sampling(8, most)))
        assert [(c.index, c.sample) for c in out] == [
            (r.index, s) for r in asked for s in r.samples
        ]
        ended |= {c.finished for c in out}
        assert all(c.finished == (c.ids[-1] in policy.eos_ids) for c in out)
        gap_N = gaps(policy, asked, out)
        assert np.abs(gap_N).max() < 1e-4
    assert ended == {True, False}
    shown("server, float32", gap_N, capsys)
    engine.close()


def test_a_server_of_another_vocabulary_is_refused(server, policy, without_weights, monkeypatch):
    tokens = policy.model.config.vocab_size
    monkeypatch.setattr(policy.model.config, "vocab_size", tokens + 1)
    with pytest.raises(UserError, match=f"rollout.vllm.server: .* does not take token {tokens},"):
        VllmEngine(policy, VllmConfig(mode="server", server=server))


def test_an_address_that_is_no_vllm_is_refused(server, policy, without_weights):
    with pytest.raises(UserError, match=r"rollout\.vllm\.server: no vLLM server at"):
        VllmEngine(policy, VllmConfig(mode="server", server=f"{server}/nothing"))
