"""Countdown: the judge by hand, the problems by brute force."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.errors import UserError
from sps.tasks.countdown import Countdown, judge, mode
from sps.types import Problem, Verdict

PROBLEM = Problem("cd", "5 10 8 5 -> 90 :", "90", {"numbers": (5, 10, 8, 5), "target": 90})


def problem(numbers, target):
    return Problem("p", "", str(target), {"numbers": tuple(numbers), "target": target})


CORRECT = [
    "8 * 10 = 80 5 + 80 = 85 5 + 85 = 90 .",
    "8 * 10 = 80 5 + 80 = 85 5 + 85 = 90",
    "8*10=80 5+80=85 5+85=90.",
    "8 * 10 + 5 + 5",
    "(8 * 10) + (5 + 5) .",
    "((8*(10)))+5+5",
    "5 + 5 = 10 8 * 10 = 80 80 + 10 = 90",  # either 10 may be taken
    "8 * 10 + 5 = 85 5 + 85 = 90",  # more than one sign a step
    "  8 * 10\n+ 5 + 5  ",
]


@pytest.mark.parametrize("text", CORRECT)
def test_judge_takes_right_answers(text):
    assert judge(PROBLEM, text) == Verdict("correct", 1.0, "correct", "90")


WRONG = [
    ("8 * 10 = 80 5 + 80 = 86 5 + 86 = 91 .", "wrong", "wrong_arithmetic", "86"),
    ("8 * 10 = 80 5 + 5 = 10 80 - 10 = 70 .", "wrong", "wrong_target", "70"),
    ("8 + 10 + 5 + 5", "wrong", "wrong_target", "28"),
    ("8 * 10 = 80 10 + 80 = 90 .", "wrong", "number_not_available", "90"),  # 10 used twice
    ("8 * 10 + 10", "wrong", "number_not_available", "90"),
    ("9 * 10", "wrong", "number_not_available", "90"),
    ("8 * 10 = 80 5 + 80 = 85 .", "wrong", "unused_numbers", "85"),
    ("8 * 10 + 5", "wrong", "unused_numbers", "85"),
    ("90", "wrong", "number_not_available", "90"),  # the target alone
    ("10 / (5 - 5) + 8", "wrong", "division_by_zero", ""),
    ("5 - 5 = 0 10 / 0 = 8 8 * 8 = 64", "wrong", "division_by_zero", ""),
    ("", "unparsed", "empty", ""),
    (".", "unparsed", "empty", ""),
    ("  \n", "unparsed", "empty", ""),
    ("8 * 10 = 80 5 +", "unparsed", "malformed", ""),
    ("8 * 10 = = 80", "unparsed", "malformed", ""),
    ("8 * 10 = 80 5", "unparsed", "malformed", ""),
    ("(8 * 10", "unparsed", "malformed", ""),
    ("8 * 10)", "unparsed", "malformed", ""),
    ("()", "unparsed", "malformed", ""),
    ("8 10", "unparsed", "malformed", ""),
    ("-8", "unparsed", "malformed", ""),
    ("8 ** 10", "unparsed", "malformed", ""),
    ("8 // 10", "unparsed", "malformed", ""),
    ("5 - 8 = -3", "unparsed", "malformed", ""),  # steps state whole numbers from 0
    ("8 * 10 = 80 . 5 + 5 = 10 .", "unparsed", "malformed", ""),
    ("eighty", "unparsed", "malformed", ""),
]


@pytest.mark.parametrize(("text", "kind", "detail", "answer"), WRONG)
def test_judge_says_which_kind_of_wrong(text, kind, detail, answer):
    assert judge(PROBLEM, text) == Verdict(kind, 0.0, detail, answer)


def test_judge_divides_exactly():
    assert judge(problem((7, 2), 3), "7 / 2 = 3").detail == "wrong_arithmetic"
    assert judge(problem((7, 2), 3), "7 / 2").answer == "7/2"
    assert judge(problem((6, 2), 3), "6 / 2 = 3").kind == "correct"
    # 1/3 * 3 is 1, where floats may say 0.999...; 4 / (1 - 2/3) = 12 has no whole way there.
    assert judge(problem((1, 3, 3), 1), "1 / 3 * 3").kind == "correct"
    assert judge(problem((4, 1, 2, 3), 12), "4 / (1 - 2 / 3)").kind == "correct"


def test_judge_binds_like_arithmetic():
    # 2 + 3 * 4 = 14; 10 - 3 - 2 = 5 and 12 / 3 / 2 = 2 from the left.
    assert judge(problem((2, 3, 4), 14), "2 + 3 * 4").kind == "correct"
    assert judge(problem((10, 3, 2), 5), "10 - 3 - 2").kind == "correct"
    assert judge(problem((12, 3, 2), 2), "12 / 3 / 2").kind == "correct"
    assert judge(problem((10, 3, 2), 9), "10 - (3 - 2)").kind == "correct"


def test_unfinished_answer_is_truncated_even_if_right():
    got = judge(PROBLEM, CORRECT[0], finished=False)
    assert got == Verdict("truncated", 0.0, "truncated")


HOSTILE = [
    "__import__('os').system('true')",
    "(" * 100_000,
    "(" * 60 + "5" + ")" * 60,
    "9" * 5000,
    "*".join(["999999999999999999"] * 400),  # 7200 digits: more than Python turns into text
    "1/" * 2000 + "3",
    "5" + "+5" * 5000,
    "\x00\x01",
    "٣ + ٤",  # digits, but not ours
    "1e9 + 5",
    "8 * 10 = 80 " * 2000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_judge_survives_hostile_text(text):
    got = judge(PROBLEM, text)
    assert got.reward == 0.0
    assert got.kind in ("wrong", "unparsed")


@given(st.text(alphabet="0123456789 +-*/()=.x", max_size=60))
def test_judge_never_raises(text):
    assert judge(PROBLEM, text).reward in (0.0, 1.0)


@pytest.fixture(scope="module")
def task():
    return Countdown(seed=3, sizes={"train": 300, "validation": 60, "test": 60})


@cache
def values_by_brute_force(numbers) -> set[Fraction]:
    """Every value of every whole-number way to combine all the numbers."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    found = set()
    for a, b, *rest in permutations(numbers):
        results = [a + b, a - b, a * b]
        if b and a % b == 0:
            results.append(a // b)
        for value in results:
            if 0 <= value <= 99:
                found |= values_by_brute_force(tuple(sorted((value, *rest))))
    return found


def test_every_problem_has_a_solution(task):
    for split in task.sizes:
        for p in task.problems(split):
            numbers = tuple(sorted(p.meta["numbers"]))
            assert p.meta["target"] in values_by_brute_force(numbers), p.id


def test_splits_share_no_problem(task):
    keys = {}
    for split, size in task.sizes.items():
        problems = task.problems(split)
        assert len(problems) == size
        keys[split] = {(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in problems}
        assert len(keys[split]) == size  # nor twice within a split
        assert len({p.id for p in problems}) == size
    assert not keys["train"] & keys["validation"]
    assert not keys["train"] & keys["test"]
    assert not keys["validation"] & keys["test"]


def test_question_shows_numbers_and_target(task):
    for p in task.problems("test"):
        numbers, target = p.question.removesuffix(" :").split(" -> ")
        assert tuple(map(int, numbers.split())) == p.meta["numbers"]
        assert int(target) == p.meta["target"] == int(p.answer)
        assert 0 <= p.meta["target"] <= 99
        assert all(1 <= n <= 10 for n in p.meta["numbers"])


def test_same_seed_gives_the_same_problems(task):
    again = Countdown(seed=3, sizes=dict(task.sizes))
    other = Countdown(seed=4, sizes=dict(task.sizes))
    assert again.problems("train") == task.problems("train")
    assert other.problems("train") != task.problems("train")


def test_too_few_solvable_problems_is_a_user_error():
    task = Countdown(numbers=2, low=1, high=2, sizes={"train": 500, "validation": 1, "test": 1})
    # Pairs 1 1, 1 2, 2 2 reach {0, 1, 2}, {1, 2, 3}, {0, 1, 4}: nine problems in all.
    with pytest.raises(UserError, match=r"task.train asks for 500 problems but only \d solvable"):
        task.problems("train")


def test_attempts_are_legal_and_solve_as_often_as_asked(task):
    attempts = task.attempts(seed=1, solved=0.3)
    train = Countdown(seed=3)._pool()["train"]
    known = {(numbers, target) for numbers, target in train}
    details = []
    for _ in range(1000):
        p, text = next(attempts)
        assert (tuple(sorted(p.meta["numbers"])), p.meta["target"]) in known
        details.append(judge(p, text).detail)
    assert set(details) <= {"correct", "wrong_target", "unused_numbers"}
    # At least the 300 that aim; a wanderer hits one of up to 100 targets now and then. The standard
    # deviation of 1000 draws at 0.3 is 1.4 points.
    assert 0.26 < details.count("correct") / 1000 < 0.42


def test_attempts_do_not_depend_on_how_many_problems_are_asked_for():
    # The cached policy is named by task and base alone, so what it learns from may not differ.
    few = Countdown(seed=3, sizes={"train": 5, "validation": 2, "test": 2})
    many = Countdown(seed=3, sizes={"train": 500, "validation": 50, "test": 50})
    a, b = few.attempts(seed=1, solved=0.3), many.attempts(seed=1, solved=0.3)
    assert [next(a) for _ in range(20)] == [next(b) for _ in range(20)]


def test_vocabulary_spells_every_attempt(task):
    words = set(task.vocabulary())
    attempts = task.attempts(seed=2, solved=0.5)
    for _ in range(200):
        p, text = next(attempts)
        assert set(f"{p.question} {text}".split()) <= words


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("8 * 10 = 80 5 + 80 = 85 5 + 85 = 90 .", "5 + 80, 5 + 85, 8 * 10"),
        ("10 * 8 = 80 80 + 5 = 85 85 + 5 = 90 .", "5 + 80, 5 + 85, 8 * 10"),  # + and * commute
        ("10 * 8 + 5 + 5", "5 + 80, 5 + 85, 8 * 10"),  # one expression
        ("10 * 8 + 5 = 85 85 + 5 = 90", "5 + 80, 5 + 85, 8 * 10"),  # more than one sign a step
        ("8 * 10 = 80 5 + 5 = 10 80 + 10 = 90 .", "10 + 80, 5 + 5, 8 * 10"),
        ("5 + 5 = 10 8 * 10 = 80 80 + 10 = 90 .", "10 + 80, 5 + 5, 8 * 10"),  # another order
        ("9 - 4 = 5", "9 - 4"),
        ("(7 - 2) / 2", "5 / 2, 7 - 2"),
        ("2 / 4 + 2 / 4", "1/2 + 1/2, 2 / 4, 2 / 4"),  # a multiset: both quarters count
        ("7", ""),
        ("", None),
        ("8 * = 80", None),
        ("8 / 0", None),
    ],
)
def test_mode_is_the_steps_in_no_order(text, steps):
    assert mode(text) == steps


def test_the_mode_of_an_answer_is_of_its_own_steps():
    assert Countdown().mode(PROBLEM, CORRECT[0]) == mode(CORRECT[0]) is not None
    assert Countdown().mode(PROBLEM, "2 + 2 = 4") == "2 + 2"


def test_a_difference_is_not_its_reverse():
    assert mode("(1 - 3) * 4") != mode("(3 - 1) * 4")
    assert mode("4 / 2") != mode("2 / 4")


@st.composite
def trees(draw, numbers):
    """Two writings of one expression tree: as it is, and with operands of + and * swapped."""
    if len(numbers) == 1:
        return str(numbers[0]), str(numbers[0])
    cut = draw(st.integers(1, len(numbers) - 1))
    left, right = draw(trees(numbers[:cut])), draw(trees(numbers[cut:]))
    op = draw(st.sampled_from("+*"))
    swap = draw(st.booleans())
    sides = (right[1], left[1]) if swap else (left[1], right[1])
    return f"({left[0]}) {op} ({right[0]})", f"({sides[0]}) {op} ({sides[1]})"


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5).flatmap(trees))
def test_swapped_operands_are_the_same_solution(both):
    assert mode(both[0]) == mode(both[1])
    assert mode(both[0]).count(",") + 1 == both[0].count("+") + both[0].count("*")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_independent_steps_may_come_in_any_order(a, b, c, d):
    one, two = f"{a} + {b} = {a + b}", f"{c} * {d} = {c * d}"
    end = f"{a + b} + {c * d} = {a + b + c * d} ."
    assert mode(f"{one} {two} {end}") == mode(f"{two} {one} {end}")
