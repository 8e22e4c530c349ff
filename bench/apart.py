"""What a process an answer costs: the same judge of reasoning-gym's countdown, in both pools."""

from __future__ import annotations

from bench.sides import alternate, report, row
from sps.tasks.gym import Gym
from sps.types import Problem
from sps.verify.pool import VerifierPool

NAME = "countdown"
OPTIONS = {"task": NAME, "settings": {}, "unsafe": True}


def main() -> None:
    """200 right answers a turn, two workers."""
    problems = Gym(NAME, {"train": 200}, unsafe=[NAME]).problems("train")
    judge = "sps.tasks.gym:make_judge"
    with (
        VerifierPool(judge, OPTIONS, workers=2, fresh=True) as fresh,
        VerifierPool(judge, OPTIONS, workers=2) as shared,
    ):
        sides = {
            "a process an answer": lambda: _judged(fresh, problems),
            "one process for all": lambda: _judged(shared, problems),
        }
        rows = [row("reasoning-gym's countdown", alternate(sides, repeats=5), "verdicts/s")]
    report("apart", rows)


def _judged(pool: VerifierPool, problems: list[Problem]) -> float:
    futures = [pool.submit(p, f"<answer>{p.answer}</answer>", True) for p in problems]
    return float(sum(future.result().kind == "correct" for future in futures))


if __name__ == "__main__":
    main()
