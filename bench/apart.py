"""What a process an answer costs in processor time: reasoning-gym's countdown, both ways."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable

from sps.tasks.gym.task import Gym, make_judge
from sps.types import Problem, Verdict
from sps.verify.apart import judge_apart

NAME = "countdown"
Judge = Callable[[Problem, str, bool], Verdict]


def main() -> None:
    """50 right answers a turn, both ways in turns."""
    judge = make_judge(NAME, {}, unsafe=True)
    problems = Gym(NAME, {"train": 50}, unsafe=[NAME]).problems("train")
    gc.freeze()  # as a worker does

    def apart(problem: Problem, text: str, finished: bool) -> Verdict:
        return judge_apart(judge, 20.0, 2 << 30, True, (problem, text, finished))

    rates: dict[str, list[float]] = {"a process an answer": [], "one process for all": []}
    for turn in range(8):
        for name, way in zip(rates, (apart, judge), strict=True):
            rate = _rate(way, problems)
            if turn:
                rates[name].append(rate)
    from bench.sides import report, row  # torch, which no worker carries into its children

    report("apart", [row(f"reasoning-gym's {NAME}", rates, "verdicts a processor second")])


def _rate(judge: Judge, problems: list[Problem]) -> float:
    began = _processor_seconds()
    right = sum(judge(p, f"<answer>{p.answer}</answer>", True).kind == "correct" for p in problems)
    return right / (_processor_seconds() - began)


def _processor_seconds() -> float:
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


if __name__ == "__main__":
    main()
