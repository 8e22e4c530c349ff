"""The embedded policy: a small real Llama with a real tokenizer, made from scratch on the CPU."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SHIPPED = Path(__file__).parent.parent / "assets" / "bases"


def base_hash(base: dict, task: dict) -> str:
    """Names the policy that this recipe makes on this task."""
    text = json.dumps({"base": base, "task": task, "format": 1}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where policies made here are kept; SPS_CACHE overrides."""
    return Path(os.environ.get("SPS_CACHE", Path.home() / ".cache" / "sps")) / "bases"


def find_base(name: str) -> Path | None:
    """The folder of a policy that was shipped or made before."""
    for folder in (SHIPPED / name, cache_folder() / name):
        if (folder / "config.json").exists():
            return folder
    return None


def make_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """One token a word, of which none has a dot: that ends a text, wherever it stands."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", *words])}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token=".")


def make_base(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    attempts: Iterator[tuple[str, str]],
    progress: Callable[[int, int, float], None] = lambda step, of, loss: None,
    **settings: Any,
) -> Path:
    """Train on (prompt, completion) texts, save in `folder`; a crash leaves nothing half made.

    Settings are those of `_train` and `_shape`.
    """
    model = _train(tokenizer, attempts, progress, **settings)
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.draft")
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    return folder


def _train(
    tokenizer, attempts, progress, *, seed: int, steps: int, batch: int, lr: float, **shape: int
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_shape(tokenizer, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        ids, labels = _encode(tokenizer, [next(attempts) for _ in range(batch)])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress(step + 1, steps, loss.item())
    return model


def _shape(tokenizer, hidden: int, layers: int, heads: int, ff: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=ff,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def _encode(tokenizer, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids, and labels on the completion alone."""
    prompts = [tokenizer(p)["input_ids"] for p, _ in batch]
    texts = [tokenizer(c)["input_ids"] for _, c in batch]
    width = max(len(p) + len(c) for p, c in zip(prompts, texts, strict=True))
    ids = torch.full((len(batch), width), tokenizer.pad_token_id)
    labels = torch.full((len(batch), width), -100)
    for row, (p, c) in enumerate(zip(prompts, texts, strict=True)):
        ids[row, : len(p) + len(c)] = torch.tensor(p + c)
        labels[row, len(p) : len(p) + len(c)] = torch.tensor(c)
    return ids, labels
