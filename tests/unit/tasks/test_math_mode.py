"""Which solution a right answer of mathematics is, by its intermediate results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sps.tasks.math.mode import mode
from sps.tasks.math.task import Mathematics
from sps.types import Problem

NOTHING = mode("17", "\\boxed{17}")


def text_of(*results):
    return "".join(f"Then x = {r}. " for r in results) + "So \\boxed{17}"


SAME = [
    ("3 * 4 = 12 and 12 + 5 = 17. \\boxed{17}", ("12",)),
    ("12 + 5 = 17, because $4 \\cdot 3 = 12$; \\boxed{17}", ("12",)),
    ("So x = 3 * 4 = 12, $y=\\boxed{17}$", ("12",)),  # 3 is no result, nor is the box
    ("x = 3 \\times 4 = 12", ("12",)),
    ("x = 5y and z = 2^3 and f = 4(x)", ()),  # not numbers alone
    ("a <= 12 and b == 12 and c != 12", ()),
    ("It costs 2 * 6 = $12. Then 5 = 5 more.", ("12", "5")),
    ("2 * 6 = 12 apples", ("12",)),
    ("6 + 6 = 12\\text{ cm}", ("12",)),
    ("x = 1,200.", ("1200",)),
    ("x = 1200.0", ("1200",)),
    ("x = 0.5", ("1/2",)),
    ("x = \\frac{2}{4}", ("1/2",)),
    ("x = -\\dfrac{1}{2}", ("-0.5",)),
    ("x = \u22123", ("-3",)),
    ("x = 1/0", ()),
    ("```python\nx = 12\n```\nSo \\boxed{17}", ()),  # a program is not read
]


@pytest.mark.parametrize(("text", "results"), SAME)
def test_results_are_read(text, results):
    assert mode("17", text) == mode("17", text_of(*results))


def test_other_results_are_another_solution():
    ways = [text_of(), text_of(12), text_of(7), text_of(-7), text_of(12, 7), text_of(12, 12)]
    assert len({mode("17", way) for way in ways}) == len(ways)


def test_the_answer_is_left_out_however_it_is_spelt():
    assert mode("17", text_of("17")) == mode("17", text_of("17.0", "17")) == NOTHING
    assert mode("$\\frac{1}{2}$", text_of("0.5")) == NOTHING
    assert mode("(5, 12)", "\\boxed{x = 5, y = 12}") == NOTHING  # a box is the answer
    assert mode("x^2", text_of("12")) == mode("17", text_of("12"))  # no number


def test_the_task_leaves_out_the_answer_of_the_problem():
    task = Mathematics({})
    assert task.mode(Problem("p", "12", "17"), text_of("17")) == NOTHING
    assert task.mode(Problem("p", "17", "12"), text_of("17")) != NOTHING


def test_it_is_short_and_the_same_on_every_machine():
    assert mode("17", text_of(12)) == "6b51d431df5d"  # sha256 of '12'


@given(st.permutations(["12", "7", "7", "-3", "1,000", "\\frac{1}{3}"]))
def test_the_order_of_results_does_not_matter(results):
    assert mode("17", text_of(*results)) == mode("17", text_of("-3", "7", "12", "7", "1000", "1/3"))


@given(st.text(alphabet="=0123456789.,-/$\\{}frac boxed\n", max_size=200))
def test_any_text_has_a_mode(text):
    assert len(mode("17", text)) == 12
