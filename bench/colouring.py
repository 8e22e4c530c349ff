"""Graph colouring, a second bed for bench.beds: the task, and the tiny policy that starts it.

python bench/colouring.py FOLDER      makes the policy (about ten minutes of one core)

A graph of eight nodes and thirteen edges, each written as its two nodes; the answer names one of
three colours for each node, and no edge may join two of a colour:

    prompt      ab bc ad cd ... :
    answer      r g r b ...

A distinct solution is a colouring up to the names of its colours; every graph has four or more.
The policy is of the size and is trained as Countdown's is: on attempts, half of them right and the
rest at random.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

NODES, EDGES, COLOURS = "abcdefgh", 13, "rgb"
SIZES = {"train": 1000, "validation": 200, "test": 200}
Edges = tuple[tuple[int, int], ...]


@cache
def solutions(edges: Edges) -> list[tuple[int, ...]]:
    """Every colouring, up to the names of its colours: a new one has the next number."""
    below = [[i for i, j in edges if j == node] for node in range(len(NODES))]
    found: list[tuple[int, ...]] = []

    def extend(known: tuple[int, ...]) -> None:
        if len(known) == len(NODES):
            found.append(known)
            return
        for colour in range(min(max(known, default=-1) + 2, len(COLOURS))):
            if all(known[node] != colour for node in below[len(known)]):
                extend((*known, colour))

    extend(())
    return found


def graphs(split: str, count: int) -> list[Edges]:
    """Seeded, and in one split alone."""
    rng = random.Random(f"colouring {split}")
    pairs = list(combinations(range(len(NODES)), 2))
    found: dict[Edges, None] = {}
    while len(found) < count:
        edges = tuple(sorted(rng.sample(pairs, EDGES)))
        bucket = int.from_bytes(hashlib.sha256(repr(edges).encode()).digest()[:4]) % 100
        own = "train" if bucket < 80 else "validation" if bucket < 90 else "test"
        if own == split and edges not in found and len(solutions(edges)) >= 4:
            found[edges] = None
    return list(found)


def named(edges: Edges) -> list[str]:
    """Edges by the names of their nodes, those to earlier nodes of each node together."""
    return sorted((NODES[i] + NODES[j] for i, j in edges), key=lambda name: (name[1], name[0]))


def problems(split: str) -> list[dict]:
    """For `sps`: the rows of a split."""
    rows = [named(edges) for edges in graphs(split, SIZES[split])]
    return [{"id": "".join(row), "question": " ".join(row) + " :", "edges": row} for row in rows]


def prompt(problem) -> str:
    """For `sps`: the edges."""
    return problem.question


def judge(problem, text: str) -> bool:
    """For `sps`: a colour for each node, and two for each edge."""
    said = text.split()
    if len(said) != len(NODES) or not {*said} <= {*COLOURS}:
        return False
    colour = dict(zip(NODES, said, strict=True))
    return all(colour[a] != colour[b] for a, b in problem.meta["edges"])


def mode(problem, text: str) -> str:
    """For `sps`: the colouring, colours numbered as they come."""
    seen: dict[str, int] = {}
    return "".join(str(seen.setdefault(colour, len(seen))) for colour in text.split())


def attempts() -> Iterator[tuple[str, str]]:
    """Prompts and answers to learn from, on graphs of the training split."""
    rng, train = random.Random(0), graphs("train", 20_000)
    while True:
        edges = train[rng.randrange(len(train))]
        if rng.random() < 0.5:
            found = solutions(edges)
            numbers = found[rng.randrange(len(found))]
            colours = rng.sample(COLOURS, len(COLOURS))
            said = [colours[number] for number in numbers]
        else:
            said = [rng.choice(COLOURS) for _ in NODES]
        yield f"{' '.join(named(edges))} :", f"{' '.join(said)} ."


def make(folder: Path) -> None:
    """Train the policy and save it."""
    import torch

    from sps.policy.embedded import make_base, make_tokenizer

    def show(step: int, of: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"step {step} of {of}, loss {loss:.3f}", flush=True)

    torch.set_num_threads(1)
    words = [*(a + b for a, b in combinations(NODES, 2)), *COLOURS, ":", "."]
    shape = {"hidden": 96, "layers": 3, "heads": 4, "ff": 192}
    how = {"seed": 0, "steps": 3000, "batch": 128, "lr": 3e-3}
    make_base(folder, make_tokenizer(words), attempts(), show, **how, **shape)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
