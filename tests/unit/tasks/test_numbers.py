"""Exact numbers: equal fields when, and only when, they are equal."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Rational, pi, sqrt

from sps.tasks.math.judge import judge
from sps.tasks.math.numbers import Exact, exact


@pytest.mark.parametrize(
    ("latex", "ratio", "radicand", "power"),
    [
        ("-12", Fraction(-12), 1, 0),
        ("1.50", Fraction(3, 2), 1, 0),
        (r"\frac{6}{-4}", Fraction(-3, 2), 1, 0),
        ("6/4", Fraction(3, 2), 1, 0),
        (r"\sqrt{72}", Fraction(6), 2, 0),  # 72 = 36 * 2
        (r"\frac{1}{\sqrt{3}}", Fraction(1, 3), 3, 0),
        (r"\dfrac{2\sqrt{6}}{\sqrt{2}}", Fraction(2), 3, 0),  # 2 sqrt(12) / 2 = 2 sqrt(3)
        (r"-\frac{3\pi}{4}", Fraction(-3, 4), 1, 1),
        (r"\frac{5}{2\pi}", Fraction(5, 2), 1, -1),
        (r"0\pi", Fraction(0), 1, 0),
        ("$7$", Fraction(7), 1, 0),
    ],
)
def test_exact_reads(latex, ratio, radicand, power):
    found = exact(latex)
    assert found is not None
    assert found[0] == Exact(ratio, radicand, power)


@pytest.mark.parametrize(
    "latex",
    ["", "-", "x", "1+2", r"1\frac{1}{2}", r"\frac{1}{0}", "1/0", "--3", "1,2", r"\sqrt{x}", "3 4"],
)
def test_exact_leaves_the_rest_to_math_verify(latex):
    assert exact(latex) is None


def test_a_root_with_factors_too_large_to_look_for_is_left_to_math_verify():
    # 4034 * 2017 = 2 * 2017^2, and 2017 is a prime; 4034 alone is without square factors.
    latex = r"\frac{\sqrt{4034}}{\sqrt{2017}}"
    assert exact(latex) is None
    assert exact(r"\sqrt{4034}") == (Exact(Fraction(1), 4034), False)
    assert judge(r"\sqrt{2}", f"\\boxed{{{latex}}}").kind == "correct"
    assert judge(r"\sqrt{3}", f"\\boxed{{{latex}}}").kind == "wrong"


NUMBERS = st.tuples(
    st.integers(0, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.booleans()
)


def spelt(a, r, b, s, with_pi):
    top = f"{a}\\sqrt{{{r}}}" + ("\\pi" if with_pi else "")
    value = Rational(a, b) * sqrt(r) / sqrt(s) * (pi if with_pi else 1)
    return f"\\frac{{{top}}}{{{b}\\sqrt{{{s}}}}}", value


@given(NUMBERS, NUMBERS)
def test_exact_agrees_with_sympy(first, second):
    (latex_a, a), (latex_b, b) = spelt(*first), spelt(*second)
    assert (exact(latex_a) == exact(latex_b)) == (a == b)
