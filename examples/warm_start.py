"""A supervised start for a model that RL finds nothing to teach: it learns to answer, and to stop.

python examples/warm_start.py MODEL data/gsm8k_train.jsonl runs/gsm8k/start --first 3700
python examples/warm_start.py MODEL countdown runs/countdown/start --first 30000 --epochs 1
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np

from sps.config.recipe import BaseTraining
from sps.data.load import load_problems
from sps.errors import RunFailed, UserError
from sps.phases.irl import forward_kl_step
from sps.policy.load import Policy, load_policy, pick_device
from sps.policy.resolve import resolve_model
from sps.policy.update import Budget, make_optimizer
from sps.tasks.countdown import Countdown
from sps.tasks.prompts import BOXED, TEMPLATES, Prompt, render

Pair = tuple[np.ndarray, np.ndarray]  # token ids of a prompt, and of its answer with the end token


def main(given: list[str] | None = None) -> None:
    """Train on the worked solutions of the first rows; save the model and the rows left over."""
    options = read_options(given)
    if options.out.exists():
        raise UserError(f"{options.out} is there already; choose another folder, or remove it")
    prompts, answers, rest = countdown(options) if is_countdown(options) else rows(options)
    device = pick_device(options.device)
    dtype = "bfloat16" if device == "cuda" else "float32"  # of the computation, as in training
    policy = load_policy(resolve_model(options.model), dtype=dtype, device=device)
    pairs = [encode(policy, *both) for both in zip(prompts, answers, strict=True)]
    train(policy, pairs, options)
    save(policy, rest, options.out)
    print(f"{options.out}: the model" + f", and {len(rest)} rows left in rest.jsonl" * bool(rest))


def is_countdown(options: argparse.Namespace) -> bool:
    """The word instead of a file."""
    return str(options.data) == "countdown" and not options.data.exists()


def countdown(options: argparse.Namespace) -> tuple[list[Prompt], list[str], list[str]]:
    """Attempts at training problems, some of them aimless, as the embedded policy learns from."""
    attempts = Countdown().attempts(options.seed, options.solved)
    texts = [(p.question, text) for p, text in islice(attempts, options.first or 10_000)]
    return [question for question, _ in texts], [text for _, text in texts], []


def rows(options: argparse.Namespace) -> tuple[list[Prompt], list[str], list[str]]:
    """Prompts and answers of the first rows of the file, and the lines of the others."""
    answers, rest = read_answers(options.data, options.first)
    problems = load_problems(str(options.data), key="DATA")[: len(answers)]
    return [render(options.template, p.question, BOXED, p.meta) for p in problems], answers, rest


def read_answers(path: Path, first: int | None) -> tuple[list[str], list[str]]:
    """Answers to learn, from the first rows, and the lines of the other rows as they are."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a .jsonl file") from None
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines or (first or 0) > len(lines):
        raise UserError(f"{path} has {len(lines)} rows; --first is a number from 1 to that")
    answers = [worked_answer(line, f"{path}: line {n}") for n, line in lines[:first]]
    return answers, [line for _, line in lines[len(answers) :]]


def worked_answer(line: str, where: str) -> str:
    """The solution without calculator marks (<<48/2=24>>) or last line (#### 24), then a box."""
    try:
        row = dict(json.loads(line))
    except (TypeError, ValueError):
        raise UserError(f"{where} is not a JSON object; mend or remove it") from None
    for key in ("solution", "answer"):
        if not str("" if row.get(key) is None else row[key]).strip():
            raise UserError(
                f"{where} has no `{key}`; a row needs its worked `solution`, and the `answer` "
                "alone: add it, or remove the line"
            )
    steps = re.sub(r"<<[^<>]*>>", "", str(row["solution"]).partition("####")[0])
    return f"{steps.strip()}\nThe answer is \\boxed{{{str(row['answer']).strip()}}}"


def encode(policy: Policy, prompt: Prompt, answer: str) -> Pair:
    """The prompt's ids as `sps train` makes them, and the answer's as they follow it."""
    tokenizer, ids, text = policy.tokenizer, policy.encode(prompt), prompt
    if not isinstance(text, str):
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    elif not text[-1:].isspace():
        answer = f" {answer}"
    # In one piece: some tokenizers put a space, and a first token, before a text that stands alone.
    whole = tokenizer(text + answer, add_special_tokens=isinstance(prompt, str))["input_ids"]
    rest = whole[len(ids) :]
    if tuple(whole[: len(ids)]) != ids:  # what follows would change the prompt's last token
        rest = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if not policy.eos_ids:
        raise UserError(f"{policy.source}: it has no end token, so it cannot learn to stop")
    end = tokenizer.eos_token_id  # an engine stops at any of eos_ids, which this is one of
    return np.array(ids), np.array([*rest, policy.eos_ids[0] if end is None else end])


def train(policy: Policy, pairs: list[Pair], options: argparse.Namespace) -> None:
    """AdamW on the mean of -log p over the answers' tokens."""
    rng, budget = np.random.default_rng(options.seed), Budget(32768)
    optimizer = make_optimizer(policy.model, options.lr, (0.9, 0.999), 1e-8, 0.0)
    parts = -(-len(pairs) // options.batch)
    shuffled = (rng.permutation(len(pairs)) for _ in range(options.epochs))
    batches = [batch for order in shuffled for batch in np.array_split(order, parts)]
    length = [len(answer) for _, answer in pairs]
    print(
        f"{len(pairs)} answers of {np.mean(length):.0f} tokens on average, 95 % within "
        f"{np.percentile(length, 95):.0f}; {len(batches)} steps on {policy.model.device}"
    )
    losses, tokens, began = [], 0, time.perf_counter()
    for step, batch in enumerate(batches, 1):
        warm = min(1.0, step / max(1, len(batches) // 10))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * warm * (1 - (step - 1) / len(batches))
        prompts, answers = map(list, zip(*(pairs[i] for i in batch), strict=True))
        losses.append(forward_kl_step(policy, optimizer, prompts, answers, budget)["loss"])
        tokens += sum(map(len, prompts + answers))
        if step % 10 == 0 or step in (1, len(batches)):
            speed = tokens / (time.perf_counter() - began)
            print(f"step {step:4}  loss {np.mean(losses):.3f}  {speed:,.0f} tok/s", flush=True)
            losses = []


def save(policy: Policy, rest: list[str], out: Path) -> None:
    """A Hugging Face folder, there only when it is whole."""
    draft = out.with_name(f"{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    policy.model.save_pretrained(draft)
    policy.tokenizer.save_pretrained(draft)
    if rest:
        (draft / "rest.jsonl").write_text("\n".join(rest) + "\n", encoding="utf-8")
    draft.rename(out)


def read_options(given: list[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="Hugging Face folder, hub id, .gguf file, or a run")
    parser.add_argument("data", type=Path, help="a .jsonl file, or: countdown")
    parser.add_argument("out", type=Path, help="where the model goes")
    parser.add_argument(
        "--first", type=positive, help="rows used, from the top; default: all, or 10000 attempts"
    )
    parser.add_argument("--epochs", type=positive, default=3)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--batch", type=positive, default=64, help="rows of an optimizer step")
    parser.add_argument("--template", choices=TEMPLATES, default="plain", help="as in the recipe")
    how = "countdown: share of attempts that are right; the rest are aimless"
    parser.add_argument("--solved", type=share, default=BaseTraining().solved, help=how)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def share(text: str) -> float:
    """From 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise ValueError
    return number


def positive(text: str) -> int:
    """A whole number from 1; argparse says what is wrong."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    try:
        main()
    except (UserError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
