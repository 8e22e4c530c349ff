"""Runs on a GPU as users start them: what the engine draws is what the trainer trains on.

Every recipe of the paper with its own settings, on a small model of the same family; and each way
to save memory or time, alone and together. Random weights are bf16 at its worst, so that the gap
which they show bounds that of real ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sps.build import open_run
from sps.config.load import load_recipe
from sps.loop import train
from sps.policy.layers import _Recomputed
from sps.run.track import read_records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's compiler
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ROOT = Path(__file__).parents[2]
PAPER = ["grpo", "dapo", "gspo", "sps"]
GAP = 0.05  # nats a token


def byte_tokenizer():
    """One token a byte: any text can be a prompt."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: i for i, letter in enumerate(["<end>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", model_max_length=8192
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A small Qwen2 with random weights and 60 sums as its questions."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=320, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=512, max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, initializer_range=0.05,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [
        {"id": str(i), "problem": f"What is {i} + {i * i}?", "answer": str(i + i * i)}
        for i in range(60)
    ]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def run(start, out, recipe, *more):
    """The records of a run of a paper's recipe with a model, data and steps that fit here."""
    own = (
        f"model.path={start / 'model'}", f"task.data={start / 'sums.jsonl'}", "task.subset=40",
        "task.validation=8", "task.test=2", "task.benchmarks=[]", "rl.steps=4", "evaluation.n=4",
    )  # fmt: skip
    this = open_run(load_recipe(ROOT / "recipes" / "paper" / recipe, [*own, *more]), out)
    # The algorithm learns from right and wrong answers, and this model knows none.
    this.verifier = Parity()
    layers = this.policy.model.base_model.layers
    assert isinstance(layers[0], _Recomputed) == this.recipe.model.checkpointing
    train(this)
    records = read_records(out / "metrics.jsonl")
    return this, [r for r in records if r["kind"] == "rl" and r["used"]], records


class Parity:
    """A verifier that finds texts of even length right."""

    def submit(self, problem, text, finished):
        from concurrent.futures import Future

        from sps.types import Verdict

        done = Future()
        right = len(text) % 2 == 0
        done.set_result(Verdict("correct" if right else "wrong", float(right)))
        return done

    def close(self):
        """Nothing to give back."""


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_recipe_samples_what_it_trains(start, tmp_path, name):
    this, rl, records = run(start, tmp_path / "run", f"{name}.yaml")
    assert type(this.engine).__name__ == "CudaEngine"
    assert len(rl) == 4
    assert max(r["engine_gap"] for r in rl) < GAP
    assert any(r["kind"] == "irl" for r in records) == (name == "sps")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_memory_and_time_saved_change_nothing_in_what_is_sampled(
    start, tmp_path, compiled, checkpointing, lora
):
    settings = (
        f"model.compile={json.dumps(compiled)}", f"model.checkpointing={json.dumps(checkpointing)}",
        f"model.lora={json.dumps(lora)}", "rollout.max_new_tokens=256", "rl.lr=1e-3",
    )  # fmt: skip
    _, rl, _ = run(start, tmp_path / "run", "sps.yaml", *settings)
    assert max(r["engine_gap"] for r in rl) < GAP


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_gspo_clips_nothing_where_nothing_is_learnt(start, tmp_path, compiled, checkpointing):
    settings = (
        f"model.compile={json.dumps(compiled)}", f"model.checkpointing={json.dumps(checkpointing)}",
        "rl.lr=1e-30", "rollout.max_new_tokens=512",
    )  # fmt: skip
    _, rl, _ = run(start, tmp_path / "run", "gspo.yaml", *settings)
    assert [(r["clipped"], r["ratio"]) for r in rl] == [(0.0, 1.0)] * 4
