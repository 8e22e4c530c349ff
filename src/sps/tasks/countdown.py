"""Countdown: reach a target from given numbers, each used exactly once, with + - * /.

    prompt      5 10 8 5 -> 90 :
    trajectory  8 * 10 = 80 5 + 80 = 85 5 + 85 = 90 .

The judge reads either such steps or one expression, `8 * 10 + 5 + 5`, in exact rational
arithmetic. Problems are enumerated, so the splits are disjoint and every problem has a solution.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sps.errors import UserError
from sps.schema import Node, NonNegative, Positive
from sps.tasks import Bench, Task, TaskType
from sps.tasks.arithmetic import Malformed, Number, Reader, apply, shown, tokens_of
from sps.types import Problem, Verdict

OPS = ("+", "-", "*", "/")
SPLITS = {"train": range(0, 80), "validation": range(80, 90), "test": range(90, 100)}
# Pairs to draw demonstrations from. Not a matter of how many problems a run asks for: the policy
# made of them is cached under a name that does not say.
_ATTEMPTED = 84_000
State = tuple[int, ...]  # the numbers still to be used, sorted


class CountdownConfig(Node):
    """Reach a target from a few numbers, each used exactly once. Generated, nothing to download."""

    type: Literal["countdown"] = "countdown"
    numbers: Annotated[int, Field(ge=2, le=6)] = 4
    low: NonNegative = 1
    high: Positive = 10
    max_value: Positive = 99  # of any intermediate result and of the target
    seed: NonNegative = 0  # of the split
    train: Positive = 1000
    validation: Positive = 200
    test: Positive = 200

    @model_validator(mode="after")
    def _range(self) -> CountdownConfig:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


@dataclass(frozen=True)
class Move:
    """One step of a trajectory: left op right = value, and what is left afterwards."""

    left: int
    op: str
    right: int
    value: int
    rest: State


@cache
def moves(state: State, max_value: int) -> tuple[Move, ...]:
    """Every legal step from a state: whole results from 0 to max_value."""
    found = {}
    for i, a in enumerate(state):
        for j, b in enumerate(state):
            if i == j:
                continue
            others = tuple(x for k, x in enumerate(state) if k not in (i, j))
            for op in OPS:
                value = apply(op, a, b)
                if value is not None and value.denominator == 1 and 0 <= value <= max_value:
                    rest = tuple(sorted((*others, int(value))))
                    found[a, op, b] = Move(a, op, b, int(value), rest)
    return tuple(found.values())


@cache
def reachable(state: State, max_value: int) -> frozenset[int]:
    """The targets that some trajectory from this state reaches."""
    if len(state) == 1:
        return frozenset(state)
    rests = {move.rest for move in moves(state, max_value)}
    return frozenset().union(*(reachable(rest, max_value) for rest in rests))


class Countdown(Task):
    """The task: seeded problems in three disjoint splits."""

    name = "countdown"

    def __init__(
        self,
        numbers: int = 4,
        low: int = 1,
        high: int = 10,
        max_value: int = 99,
        seed: int = 0,
        sizes: dict[str, int] | None = None,
    ):
        self.numbers, self.low, self.high = numbers, low, high
        self.max_value, self.seed = max_value, seed
        self.sizes = sizes or {"train": 1000, "validation": 200, "test": 200}
        self._splits: dict[str, list[Problem]] | None = None

    def problems(self, split: str) -> list[Problem]:
        """Problems of one split; the whole enumeration is done once."""
        if self._splits is None:
            self._splits = self._enumerate()
        return self._splits[split]

    def prompt(self, problem: Problem) -> str:
        """The question is already the prompt."""
        return problem.question

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """See `judge`."""
        return judge(problem, text, finished)

    def mode(self, problem: Problem, text: str) -> str | None:
        """See `mode`."""
        return mode(text)

    def vocabulary(self) -> list[str]:
        """One token a number and a sign; '.' ends a trajectory."""
        top = max(self.max_value, self.high)
        return [*(str(i) for i in range(top + 1)), *OPS, "=", "->", ":", "."]

    def attempts(self, seed: int, solved: float) -> Iterator[tuple[Problem, str]]:
        """Endless noisy demonstrations on training problems: some solve, the rest wander."""
        rng = random.Random(seed)
        train = self._pool(_ATTEMPTED)["train"]
        while True:
            numbers, target = train[rng.randrange(len(train))]
            aim = target if rng.random() < solved else None
            problem = self._problem(numbers, target, rng)
            yield problem, self._trajectory(numbers, aim, rng)

    def _trajectory(self, numbers: State, aim: int | None, rng: random.Random) -> str:
        state, steps = numbers, []
        while len(state) > 1:
            options = moves(state, self.max_value)
            if aim is not None:
                options = [m for m in options if aim in reachable(m.rest, self.max_value)]
            if not options:  # a wanderer in a dead end
                break
            move = options[rng.randrange(len(options))]
            steps.append(f"{move.left} {move.op} {move.right} = {move.value}")
            state = move.rest
        return " ".join(steps) + " ."

    def _enumerate(self) -> dict[str, list[Problem]]:
        splits = {}
        for split, pool in self._pool().items():
            want = self.sizes[split]
            if len(pool) < want:
                raise UserError(
                    f"task.{split} asks for {want} problems but only {len(pool)} solvable ones "
                    f"exist with {self.numbers} numbers from {self.low} to {self.high} and values "
                    f"up to {self.max_value}; ask for fewer, or widen task.low, task.high or "
                    "task.max_value"
                )
            rng = random.Random(f"{self.seed} {split}")
            splits[split] = [self._problem(*pair, rng) for pair in pool[:want]]
        return splits

    def _pool(self, enough: int | None = None) -> dict[str, list[tuple[State, int]]]:
        """Solvable (numbers, target) pairs by split, in a seeded order."""
        key = (self.numbers, self.low, self.high, self.max_value, self.seed)
        return _pools(*key, enough=enough or 60 * sum(self.sizes.values()))

    def _problem(self, numbers: State, target: int, rng: random.Random) -> Problem:
        shown = list(numbers)
        rng.shuffle(shown)
        question = f"{' '.join(map(str, shown))} -> {target} :"
        name = f"cd-{'-'.join(map(str, numbers))}-{target}"
        return Problem(name, question, str(target), {"numbers": tuple(shown), "target": target})


@lru_cache(maxsize=4)
def _pools(
    numbers: int, low: int, high: int, max_value: int, seed: int, enough: int
) -> dict[str, list[tuple[State, int]]]:
    """Enumerate number multisets in a seeded order until there are problems enough."""
    span = high - low + 1
    total = comb(span + numbers - 1, numbers)
    rng = random.Random(seed)
    pools: dict[str, list[tuple[State, int]]] = {split: [] for split in SPLITS}
    count = 0
    for rank in rng.sample(range(total), min(total, 100_000)):
        state = tuple(low + x for x in _multiset(rank, span, numbers))
        for target in sorted(reachable(state, max_value)):
            digest = hashlib.sha256(f"{seed} {state} {target}".encode()).digest()
            bucket = int.from_bytes(digest[:4]) % 100
            split = next(s for s, buckets in SPLITS.items() if bucket in buckets)
            pools[split].append((state, target))
            count += 1
        if count >= enough:
            break
    for pool in pools.values():
        rng.shuffle(pool)
    return pools


def _multiset(rank: int, span: int, size: int) -> list[int]:
    """The rank-th multiset of `size` values below `span`, by the combinatorial number system."""
    values = []
    for k in range(size, 0, -1):
        top = k - 1
        while comb(top + 1, k) <= rank:
            top += 1
        rank -= comb(top, k)
        values.append(top - (k - 1))
    return sorted(values)


def judge(problem: Problem, text: str, finished: bool = True) -> Verdict:
    """Exact verdict; `detail` names the first thing that is wrong."""
    if not finished:
        return Verdict("truncated", 0.0, "truncated")
    tokens = tokens_of(text)
    if tokens is None:
        return Verdict("unparsed", 0.0, "malformed")
    if not tokens:
        return Verdict("unparsed", 0.0, "empty")
    pool: list[Number] = list(problem.meta["numbers"])
    target = problem.meta["target"]
    try:
        value, detail = (_read_steps if "=" in tokens else _read_single)(tokens, pool)
    except Malformed:
        return Verdict("unparsed", 0.0, "malformed")
    except ZeroDivisionError:
        return Verdict("wrong", 0.0, "division_by_zero")
    if detail:
        return Verdict("wrong", 0.0, detail, shown(value))
    if value != target:
        return Verdict("wrong", 0.0, "wrong_target", shown(value))
    return Verdict("correct", 1.0, "correct", str(value))


def mode(text: str) -> str | None:
    """The steps of a trajectory or an expression, each of two numbers, as a sorted list.

    So the order of steps that do not need each other and the operands of + and * do not matter:
    `8 * 10 = 80 5 + 80 = 85` and `10 * 8 + 5` are one solution. None for what cannot be read.
    """
    tokens = tokens_of(text)
    if not tokens:
        return None
    reader = Reader(tokens)
    try:
        while reader.left:
            reader.expression()
            if reader.left:
                reader.stated()
    except (Malformed, ZeroDivisionError):
        return None
    steps = []
    for a, op, b in reader.steps:
        first, second = sorted((a, b)) if op in "+*" else (a, b)
        steps.append(f"{shown(first)} {op} {shown(second)}")
    return ", ".join(sorted(steps))


def _read_steps(tokens: list[str], pool: list[Number]) -> tuple[Number, str]:
    """Read `expression = value` steps; each uses numbers of the pool and adds its value to it."""
    reader, value = Reader(tokens), 0
    while reader.left:
        reader.used = []
        value, stated = reader.expression(), reader.stated()
        if not _take(reader.used, pool):
            return stated, "number_not_available"
        if stated != value:
            return stated, "wrong_arithmetic"
        pool.append(value)
    return value, "unused_numbers" if len(pool) > 1 else ""


def _read_single(tokens: list[str], pool: list[Number]) -> tuple[Number, str]:
    reader = Reader(tokens)
    value = reader.expression()
    if reader.left:
        raise Malformed
    if not _take(reader.used, pool):
        return value, "number_not_available"
    return value, "unused_numbers" if pool else ""


def _take(used: list[Number], pool: list[Number]) -> bool:
    """Remove the used numbers from the pool; False if one is not there."""
    for number in used:
        if number not in pool:
            return False
        pool.remove(number)
    return True


def _make(t: CountdownConfig) -> Countdown:
    sizes = {"train": t.train, "validation": t.validation, "test": t.test}
    return Countdown(t.numbers, t.low, t.high, t.max_value, t.seed, sizes)


def _bench(asked: Bench) -> Countdown:
    if asked.name != "countdown":
        raise UserError(f"--bench {asked.name}: countdown takes no argument; write countdown")
    return Countdown()


TYPE = TaskType(
    CountdownConfig,
    _make,
    _bench,
    generates=True,
    embedded=("numbers", "low", "high", "max_value", "seed"),
)
