"""Verdicts/s of the pool against Math-Verify called in one process, on the same answers."""

from __future__ import annotations

import logging
import os
import random

from math_verify import parse, verify

from bench.sides import alternate, report, row
from sps.types import Problem
from sps.verify.pool import VerifierPool

FORMS = (  # the same number in two spellings, of a > 1 and b > 1
    (r"\frac{{{a}}}{{{b}}}", r"\frac{{{a2}}}{{{b2}}}"),
    (r"{a}\sqrt{{{b}}}", r"\sqrt{{{a_a_b}}}"),
    (r"\left({a}, {b}\right)", r"({a}.0, {b})"),
    (r"\frac{{{a}\pi}}{{{b}}}", r"\pi\cdot\frac{{{a}}}{{{b}}}"),
    (r"x^2-{a}x+{b}", r"{b}+x(x-{a})"),
)


def samples(questions: int, group: int, integers: float, seed: int) -> list[tuple[str, str]]:
    """Gold answers and completions of a few hundred words; half are right. A share of the questions
    have integer answers; the others are spelt otherwise than the gold, so that no shortcut knows
    them. The wrong answers of a group are a few near misses, as those of a model are."""
    rng = random.Random(seed)
    made = []
    for _ in range(questions):
        a, b = rng.randint(2, 999), rng.randint(2, 999)
        spelt = ("{a}", "{a}") if rng.random() < integers else rng.choice(FORMS)
        gold = spelt[0].format(a=a, b=b, a2=2 * a, b2=2 * b, a_a_b=a * a * b)
        for _ in range(group):
            off = rng.choice((0, 0, 0, 1, 2, 3))
            numbers = {"a": a + off, "b": b, "a2": 2 * a + off, "b2": 2 * b}
            given = spelt[1].format(**numbers, a_a_b=a * a * b + off)
            steps = [
                f"Step {i}: as ${a + i}x = {b}$ we have $x = \\frac{{{b}}}{{{a + i}}}$, and so on."
                for i in range(20)
            ]
            text = "\n".join(steps)
            made.append((gold, f"{text}\nSo the answer is $\\boxed{{{given}}}$."))
    return made


def main() -> None:
    """One worker a core: groups as training draws them, and answers that have nothing in common."""
    logging.disable(logging.WARNING)
    rows = []
    kinds = {
        "groups of 8, half integers": (25, 8, 0.5),
        "all different, no integers": (150, 1, 0.0),
    }
    with VerifierPool("sps.tasks.math.judge:make_judge") as pool:
        for label, (questions, group, integers) in kinds.items():
            # New answers every turn: the pool remembers the verdicts it gave.
            turns = [samples(questions, group, integers, seed) for seed in range(8)]
            ours, theirs = iter(turns), iter(turns)
            sides = {
                f"pool of {os.cpu_count()}": lambda ours=ours: _pooled(pool, next(ours)),
                "math-verify, one process": lambda theirs=theirs: _direct(next(theirs)),
            }
            rows.append(row(label, alternate(sides, repeats=7), "verdicts/s"))
    report("verify", rows)


def _pooled(pool: VerifierPool, work: list[tuple[str, str]]) -> float:
    futures = [pool.submit(Problem(str(i), "", g), t, True) for i, (g, t) in enumerate(work)]
    return float(sum(future.result() is not None for future in futures))


def _direct(work: list[tuple[str, str]]) -> float:
    golds = {gold: parse(f"${gold}$") for gold, _ in work}  # parsed once here too
    return float(sum(verify(golds[gold], parse(text)) is not None for gold, text in work))


if __name__ == "__main__":
    main()
