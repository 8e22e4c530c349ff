"""Verdicts/s of the pool against Math-Verify called in one process, on the same answers."""

from __future__ import annotations

import logging
import os
import random

from math_verify import parse, verify

from bench.sides import alternate, report, row
from sps.types import Problem
from sps.verify.pool import VerifierPool

GOLDS = (r"\frac{%d}{%d}", r"%d\sqrt{%d}", r"%d^{%d}", "%d,%d", r"\left(%d, %d\right)", "%d.%d")


def samples(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Gold answers and completions of a few hundred words; half are right, a third are integers."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        a, b = rng.randint(2, 30), rng.randint(2, 30)
        gold = str(a * b) if rng.random() < 0.33 else rng.choice(GOLDS) % (a, b)
        given = gold if rng.random() < 0.5 else str(a + b)
        steps = [
            f"Step {i}: since ${a + i}x = {b}$ we find $x = \\frac{{{b}}}{{{a + i}}}$, and so on."
            for i in range(20)
        ]
        text = "\n".join(steps)
        made.append((gold, f"{text}\nSo the answer is $\\boxed{{{given} }}$."))
    return made


def main() -> None:
    """The pool with one worker a core, and with one worker."""
    logging.disable(logging.WARNING)
    work = samples(400)
    sides = {}
    pools = {
        f"pool of {n}": VerifierPool("sps.tasks.math:make_judge", workers=n)
        for n in sorted({os.cpu_count() or 1, 1}, reverse=True)
    }
    for name, pool in pools.items():
        sides[name] = lambda pool=pool: _pooled(pool, work)
    sides["math-verify, one process"] = lambda: _direct(work)
    rates = alternate(sides, repeats=5)
    for pool in pools.values():
        pool.close()
    report("verify", [row(f"{len(work)} completions", rates, "verdicts/s")])


def _pooled(pool: VerifierPool, work: list[tuple[str, str]]) -> float:
    futures = [pool.submit(Problem(str(i), "", g), t, True) for i, (g, t) in enumerate(work)]
    return float(sum(future.result() is not None for future in futures))


def _direct(work: list[tuple[str, str]]) -> float:
    golds = {gold: parse(f"${gold}$") for gold, _ in work}  # parsed once here too
    return float(sum(verify(golds[gold], parse(text)) is not None for gold, text in work))


if __name__ == "__main__":
    main()
