"""`sps data`: what a recipe's data are, before anything is trained on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sps.commands.terminal import say
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.data.config import data_sets
from sps.data.splits import source_counts
from sps.tasks import Task
from sps.tasks.prompts import Prompt
from sps.types import Problem

Encode = Callable[[Prompt], tuple[int, ...]]
Decode = Callable[[tuple[int, ...]], str]
SPLITS = ("train", "validation", "test")


def run_data(path: Path, show: int, overrides: Sequence[str]) -> None:
    """Say it all, one thing a paragraph."""
    recipe = load_recipe(path, overrides)
    from sps.build import make_task  # torch
    from sps.policy.load import find_model

    if recipe.model.path is not None:
        find_model(recipe.model.path, recipe.model.gguf)  # as `sps train` would refuse it
    task = make_task(recipe)
    encode, decode, unknown, said = _coder(recipe)
    problems = {split: task.problems(split) for split in SPLITS}
    prompts = [task.prompt(p) for split in SPLITS for p in problems[split]]
    lengths = {
        split: [len(encode(task.prompt(p))) for p in problems[split]] if encode else []
        for split in SPLITS
    }
    say("\n".join([*_counts(problems, lengths), *([said] if said else [])]))
    mixed = source_counts(recipe.task, problems["train"])
    if mixed:
        say("\nof the training problems: " + ", ".join(f"{k} {n}" for k, n in mixed.items()))
    say("\n" + _answers(problems))
    say("\n" + "\n".join(_repeats(recipe, task, problems)))
    _limit(recipe, lengths)
    if encode and (lost := _unknown(prompts, encode, unknown)):
        say("\n" + lost)
    for problem in problems["train"][:show]:
        say("\n" + _shown(task, problem, encode, decode))


def _coder(recipe: Recipe) -> tuple[Encode | None, Decode, set[int], str]:
    """How the policy encodes a prompt and decodes ids, without its weights, and the ids that stand
    for unknown words; or why it cannot."""
    from transformers import AutoTokenizer

    from sps.build import ensure_base
    from sps.policy.load import encode, find_model

    model = recipe.model
    folder, gguf = find_model(model.path or str(ensure_base(recipe)), model.gguf)
    where, how = str(folder), {"gguf_file": gguf} if gguf else {}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            where, trust_remote_code=model.trust_remote_code, **how
        )
    except Exception as error:  # the hub, or the files of a stranger, fail in many ways
        said = (str(error).strip().splitlines() or [repr(error)])[0][:200]
        return None, str, set(), f"no lengths in tokens: model.path: {where}: no tokenizer ({said})"

    def read(ids: tuple[int, ...]) -> str:
        return str(tokenizer.decode([*ids], clean_up_tokenization_spaces=False))

    # The tokenizer of a small policy may have an unknown token in its core alone.
    core = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    names = {tokenizer.unk_token, getattr(core, "unk_token", None)} - {None}
    unknown = {tokenizer.convert_tokens_to_ids(name) for name in names}
    unknown -= {tokenizer.bos_token_id, tokenizer.eos_token_id}  # GPT-2 has one token for all
    return lambda prompt: encode(tokenizer, prompt, where), read, unknown, ""


def _unknown(prompts: Sequence[Prompt], encode: Encode, unknown: set[int]) -> str:
    """A warning of prompts with words that the policy cannot read; empty without any."""
    lost = [prompt for prompt in prompts if not unknown.isdisjoint(encode(prompt))]
    if not lost:
        return ""
    words = (lost[0] if isinstance(lost[0], str) else _plain(lost[0])).split()
    found = [word for word in dict.fromkeys(words) if not unknown.isdisjoint(encode(word))]
    such = f", such as {', '.join(map(repr, found[:5]))}" if found else ""
    return (
        f"warning: {len(lost)} of {len(prompts)} prompts hold words that the policy's tokenizer "
        f"does not know{such}; it cannot tell these apart. Name another model in model.path, or "
        "make a policy that knows them"
    )


def _repeats(recipe: Recipe, task: Task, problems: dict[str, list[Problem]]) -> list[str]:
    """Questions that are there twice, overlap with benchmarks and held-out ones, equal prompts."""
    found = {finding.key: finding.text for finding in task.findings()}
    lines = [*found.values()]
    if data_sets(recipe.task):
        if "duplicates" not in found:
            lines.insert(0, "no question is there more than once")
        if recipe.task.overlap == "off":
            lines.append(
                "overlap with benchmarks and held-out questions: not looked for, as "
                "task.overlap: off says"
            )
        elif "overlaps" not in found:
            lines.append("no training question is nearly the same as a held-out one")
    seen = Counter(str(task.prompt(p)) for split in SPLITS for p in problems[split])
    again = seen.total() - len(seen)
    return [*lines, f"{again or 'no'} prompts are the same as another, whatever their ids"]


def _counts(problems: dict[str, list[Problem]], lengths: dict[str, list[int]]) -> list[str]:
    lines = [f"{'':12}{'problems':>9}{'tokens of a prompt: median':>28}{'95 %':>7}{'longest':>9}"]
    for split in SPLITS:
        line = f"{split:12}{len(problems[split]):9}"
        if own := lengths[split]:
            middle, most = np.percentile(own, [50, 95], method="higher")
            line += f"{middle:28}{most:7}{max(own):9}"
        lines.append(line)
    return lines


def _answers(problems: dict[str, list[Problem]]) -> str:
    """The most frequent answers: one that is often right can be guessed."""
    answers = Counter(p.answer_text for split in SPLITS for p in problems[split])
    del answers[""]
    if not answers:
        return "answers: none; the judge knows by itself"
    most = ", ".join(f"{answer:.40} ({n})" for answer, n in answers.most_common(3))
    return f"answers: {len(answers)} different ones; most frequent: {most}"


def _limit(recipe: Recipe, lengths: dict[str, list[int]]) -> None:
    room = recipe.rollout.max_new_tokens
    longest = max((n for own in lengths.values() for n in own), default=0)
    if longest:
        say(
            f"\nthe longest sequence may have {longest + room} tokens: {longest} of a prompt and "
            f"rollout.max_new_tokens {room}"
        )


def _shown(task: Task, problem: Problem, encode: Encode | None, decode: Decode) -> str:
    """A prompt as it goes to the policy: rendered by its chat template, and as token ids."""
    prompt = task.prompt(problem)
    text = prompt if isinstance(prompt, str) else _plain(prompt)
    lines = [f"--- {problem.id}, answer {problem.answer!r:.80}"]
    if encode is None:
        return "\n".join([*lines, text])
    ids = encode(prompt)
    read = decode(ids)
    if isinstance(prompt, str) and read != text:  # a token that begins the text, unknown words
        lines += [text, "as the policy reads it:"]
    return "\n".join([*lines, read, f"ids: {' '.join(map(str, ids))}"])


def _plain(messages: list[dict[str, str]]) -> str:
    return "\n".join(f"[{message['role']}] {message['content']}" for message in messages)
