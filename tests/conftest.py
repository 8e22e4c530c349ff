"""What tests share: one thread for exact repetition, and small models made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from transformers import LlamaConfig, LlamaForCausalLM

from sps.policy.embedded import make_tokenizer
from sps.policy.load import Policy
from sps.run import disk
from sps.tasks.countdown import Countdown
from sps.verify.pool import VerifierPool

torch.set_num_threads(1)
settings.register_profile("sps", deadline=None, derandomize=True)
settings.load_profile("sps")


def make_policy() -> Policy:
    """A Llama with random weights, the tokenizer of Countdown, and logits far from flat."""
    tokenizer = make_tokenizer(Countdown().vocabulary())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.2,
    )
    return Policy(LlamaForCausalLM(config).eval(), tokenizer, "test")


@pytest.fixture(scope="session")
def policy() -> Policy:
    """Shared: tests may run it, not change it."""
    return make_policy()


@pytest.fixture
def own_policy() -> Policy:
    """The same policy for a test that changes its weights."""
    return make_policy()


@pytest.fixture
def ragged():
    """Prompts and completions of many lengths, a completion of one token among them."""
    rng = np.random.default_rng(0)
    lengths = [(3, 5), (7, 1), (2, 9), (5, 5), (1, 3), (9, 2)]
    prompts = [rng.integers(1, 100, p).astype(np.int32) for p, _ in lengths]
    completions = [rng.integers(1, 100, c).astype(np.int32) for _, c in lengths]
    return prompts, completions


@pytest.fixture
def disk_calls(monkeypatch) -> list[str]:
    """Which files are waited for until they are on the disk, and which are removed, in order."""
    found: list[str] = []

    def spy(word, real):
        return lambda path, *more: [found.append(f"{word} {path.name}"), real(path, *more)][1]

    monkeypatch.setattr(disk, "sync", spy("sync", disk.sync))
    monkeypatch.setattr(Path, "unlink", spy("drop", Path.unlink))
    return found


@pytest.fixture
def workers(monkeypatch) -> list[VerifierPool]:
    """The pool of each worker that any pool has started, in place of another or not."""
    found: list[VerifierPool] = []
    start = VerifierPool._start
    monkeypatch.setattr(VerifierPool, "_start", lambda pool: [found.append(pool), start(pool)])
    return found


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory) -> list[dict]:
    """What each of two ranks leaves after runs of TRL: e2e/trl_ranks.py."""
    folder, here = tmp_path_factory.mktemp("ranks"), Path(__file__).parent
    paths = os.pathsep.join(map(str, (here.parent / "src", here)))
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
            *("--standalone", "--nproc_per_node", "2"),
            *(str(here / "e2e" / "trl_ranks.py"), str(folder)),
        ],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=240,
    )
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="session")
def _cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def one_cache(_cache_folder):
    """One embedded policy for all runs, made once and away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPS_CACHE", str(_cache_folder))
        yield
