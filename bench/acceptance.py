"""Tokens a step in the tail of real rollouts where tokens are guessed; no GPU needed.

python -m bench.acceptance MODEL --questions data/gsm8k_train.jsonl --first 100 --groups 8 --n 16
    --tokens 400 --lot 8 --rollouts gsm8k.jsonl

What is drawn depends on no guess, so texts are enough: they are sampled with the native engine in
bf16 (or read, where --rollouts is there already) and gone through as the engine on a GPU would.
Rows go on in lockstep until few are left; from then on each takes what was guessed right, and a
token. A lot is a rollout of its own: so many samples of every question.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from sps.policy.load import load_policy
from sps.rollout.cuda.guesses import Group
from sps.rollout.native.engine import NativeEngine
from sps.tasks.prompts import BOXED, chat
from sps.types import Request, Sampling

Row = dict[str, Any]


def sample(options: argparse.Namespace) -> None:
    """Rollouts, at temperature 1, into a file."""
    policy = load_policy(options.model, dtype="bfloat16")
    policy.model.to(torch.bfloat16)
    lines = options.questions.read_text(encoding="utf-8").splitlines()
    asked = range(options.first, options.first + options.groups)
    prompts = {i: policy.encode(chat(json.loads(lines[i])["problem"], BOXED, "")) for i in asked}
    requests = [Request(i, prompts[i], tuple(range(options.n))) for i in asked]
    native = NativeEngine(policy.model, policy.eos_ids, policy.pad_id, 256)
    with options.rollouts.open("w") as file:
        for c in native.generate(requests, Sampling(options.n, options.tokens)):
            row = {"index": c.index, "sample": c.sample, "prompt": prompts[c.index]}
            file.write(json.dumps(row | {"ids": c.ids.tolist()}) + "\n")


def groups_of(done: list[Row], left: list[Row], start: int, alone: bool) -> list[tuple]:
    """A group and the number of its text there for each row that is left; alone: its own text."""
    groups: dict[Any, Group] = {}
    places = []
    for row in left:
        key = (row["index"], row["sample"] if alone else None)
        if key not in groups:
            groups[key] = Group(row["prompt"])
            for other in done:
                if other["index"] == row["index"] and not alone:
                    groups[key].add(other["ids"])
        places.append((groups[key], groups[key].add(row["ids"][:start])))
    return places


def steps(rows: list[Row], few: int, depth: int, alone: bool) -> tuple[int, int, float]:
    """Steps of the tail without and with guesses, and tokens a row and step."""
    lengths = sorted(len(r["ids"]) for r in rows)
    start = lengths[-few - 1] if few < len(rows) else 0
    left = [r for r in rows if len(r["ids"]) > start]
    if not left:  # more than `few` are cut off at the same length
        return 0, 0, 0.0
    places = groups_of([r for r in rows if len(r["ids"]) <= start], left, start, alone)
    at, number, turns = [start] * len(left), 0, 0
    while any(a < len(r["ids"]) for a, r in zip(at, left, strict=True)):
        number += 1
        taken: dict[int, list[int]] = {}
        for i, row in enumerate(left):
            rest = row["ids"][at[i] :]
            if rest:
                guess, right = places[i][0].guess(places[i][1], depth), 0
                while right < min(len(guess), len(rest)) and guess[right] == rest[right]:
                    right += 1
                taken[i] = rest[: right + 1]
        for group, _ in places:  # what the last step drew is known one step late, as in the engine
            group.look()
        for i, ids in taken.items():
            places[i][0].extend(places[i][1], ids)
            at[i] += len(ids)
        turns += len(taken)
    return lengths[-1] - start, number, sum(len(r["ids"]) - start for r in left) / turns


def main() -> None:
    """A line for each number of rows left, depth and source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--rollouts", type=Path, required=True)
    for name, usual in {"first": 0, "groups": 8, "n": 16, "tokens": 400, "lot": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    if not options.rollouts.exists():
        if not options.questions:
            parser.error("--questions is needed where the file of --rollouts is not there yet")
        sample(options)
    rows = [json.loads(line) for line in options.rollouts.read_text().splitlines()]
    count = sum(len(r["ids"]) for r in rows)
    print(f"{len(rows)} rollouts, {count} tokens")
    lots = range(0, options.n, options.lot)
    parts = [[r for r in rows if lot <= r["sample"] < lot + options.lot] for lot in lots]
    for few in (8, 16, 32):
        for depth in (1, 3, 4, 7, 12):
            for source in ("own text", "group"):
                found = [steps(part, few, depth, source == "own text") for part in parts]
                plain, guessed = (sum(f[i] for f in found) for i in (0, 1))
                if not guessed:
                    continue
                each = ", ".join(f"{p} -> {g} steps ({t:.2f} a row)" for p, g, t in found if p)
                print(f"{few} rows, {depth} guesses, {source}: {plain / guessed:.2f}: {each}")


if __name__ == "__main__":
    main()
