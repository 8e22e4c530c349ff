"""The judge of mathematics: pairs with the verdict a mathematician would give."""

import time

import pytest
from math_verify import parse, verify

from sps.tasks.math import Mathematics, judge, read_gold
from sps.types import Problem


def boxed(answer):
    return f"Adding up, the answer is $\\boxed{{{answer}}}$."


# gold, answer, equal?
PAIRS = [
    # Math-Verify 0.9.0 takes \mathrm{e} for a unit and cuts off all that follows the sign
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}", False),
    (r"1-\frac{1}{\mathrm{e}}", r"1-\frac{1}{e}", True),
    (r"1-e^{-1}", r"1-\frac{1}{\text{e}}", True),
    # words in the middle must not swallow what follows
    (r"3\text{ hours and }\frac{1}{2}", r"3\text{ hours and }\frac{1}{4}", False),
    # thousands separators
    ("10000", "10{,}000", True),
    ("10000", "10,000", True),
    ("10000", r"10\,000", True),
    ("10000", "10 000", True),
    ("1000", "10,00", False),
    ("1234567", "1,234,576", False),
    # intervals
    ("[1,2)", "[1, 2)", True),
    ("[1,2)", "[1,2]", False),
    ("[1,2)", "(1,2)", False),
    (r"(-\infty,3]", r"(-\infty,3)", False),
    (r"[0,1)\cup(2,3]", r"(2,3]\cup[0,1)", True),
    (r"[0,1)\cup(2,3]", r"[0,1]\cup(2,3]", False),
    (r"14 < x \le 20", "(14,20]", True),
    # sets, lists, points
    (r"\{1,2,3\}", r"\{3,2,1\}", True),
    ("1,2,3", "3, 2, 1", True),
    ("1,2,3", "1,2", False),
    ("1,2,3", "1,2,4", False),
    ("(1,2)", "(2,1)", False),
    (r"\pm 2", "-2, 2", True),
    (r"\pm 2", "2", False),
    # percentages: 50 % is 0.5, and 50 where the question asks for per cent; a share is not
    (r"50\%", "0.5", True),
    (r"50\%", "50", True),
    (r"12.5\%", "12.5", True),
    ("12.5", r"12.5\%", True),
    (r"12.5\%", r"\frac18", True),
    ("0.5", r"0.5\%", False),
    (r"12.5\%", r"1.25\%", False),
    # units: left out or spelt otherwise is right, another unit is not
    ("5", r"5\text{ cm}", True),
    (r"5\text{ cm}", "5", True),
    (r"5\text{ hours}", "5 h", True),
    (r"5\text{ cm}", r"5\text{ m}", False),
    (r"5\text{ cm}^2", r"5\text{ cm}^3", False),
    (r"90^\circ", "90", True),
    ("18", r"\$18.00", True),
    (r"\$18", "18", True),
    ("18", "18 dollars", True),
    # mixed numbers
    (r"1\frac{1}{2}", r"\frac{3}{2}", True),
    (r"\frac{3}{2}", "1 1/2", True),
    ("11/2", "1 1/2", False),
    (r"3\frac{1}{4}", r"\frac{3}{4}", False),
    # near misses
    ("204", "205", False),
    ("-5", "5", False),
    (r"\frac{1}{3}", "0.333", False),
    (r"\sqrt{2}", "1.414", False),
    (r"\frac{\sqrt{3}}{3}", r"\frac{\sqrt3}{2}", False),
    ("2^{99}", "2^{98}", False),
    ("2^{99}", "633825300114114700748351602689", False),
    ("3+4i", "3-4i", False),
    (r"\infty", r"-\infty", False),
    ("x^2+2x+1", "(x-1)^2", False),
    (r"2\sqrt{3}+\pi", r"\pi-2\sqrt3", False),
    ("4210_5", "4210_6", False),
    # Math-Verify rounds to 6 places and chops what is below 1e-15
    ("0.0000001", "0.0000002", False),
    (r"e^{-40}", r"e^{-50}", False),
    # the same in other words
    ("2^{99}", "633825300114114700748351602688", True),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("x=5", "5", True),
    ("5", "x=5", True),
    ("120", "5!", True),
    ("-5", "\u22125", True),
    ("025", "25", True),
    ("1.6e-7", r"1.6 \times 10^{-7}", True),
    (r"\text{Evelyn}", "Evelyn", True),
    (r"\text{Evelyn}", r"\text{Evelin}", False),
    (r"\text{(E)}", "E", True),
    (r"\text{(E)}", r"\text{(D)}", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
    # too large to work out: only the same expression is the same
    ("10^{10^{10}}", "10^{10^{10}}", True),
    ("5", "9^{9^{9^{9}}}", False),
]


@pytest.mark.parametrize(("gold", "answer", "equal"), PAIRS)
def test_judge_of_a_boxed_answer(gold, answer, equal):
    assert (judge(gold, boxed(answer)).kind == "correct") == equal


def test_judge_agrees_with_these_labels_more_often_than_math_verify():
    ordinary = [(g, a, e) for g, a, e in PAIRS if "^{9" not in a and "10^{10" not in g]
    direct = sum(verify(parse(f"${g}$"), parse(boxed(a))) == equal for g, a, equal in ordinary)
    ours = sum((judge(g, boxed(a)).kind == "correct") == equal for g, a, equal in ordinary)
    assert ours == len(ordinary)
    assert direct < len(ordinary)


def test_the_last_box_counts():
    assert judge("7", r"First \boxed{3}. But no: \boxed{7}").kind == "correct"
    assert judge("3", r"First \boxed{3}. Checking again, the total is \boxed{7}").kind == "wrong"
    assert judge("7", r"<think>\boxed{3}</think> so \boxed{7}").answer == "7"


def test_boxes_joined_by_and_are_one_answer():
    assert judge("2, 5", r"$\boxed{2}$ and $\boxed{5}$").kind == "correct"
    assert judge("2, 5", r"$\boxed{2}$ and $\boxed{6}$").kind == "wrong"


def test_a_final_answer_stated_after_the_boxes_counts():
    text = r"Interest is $\boxed{255}$. The final answer is $10{,}455$. I hope it is correct."
    assert judge("10455", text).kind == "correct"
    assert judge("255", text).kind == "wrong"


@pytest.mark.parametrize(
    ("gold", "text", "equal"),
    [
        ("(x-2)(x+2)", r"\left(x-2\right)\left(x+2\right)", True),
        ("4,6,14,15", "4, 6, 14, 15", True),
        ("10, 4, 2", "4, 12, 2", False),  # not the last number alone
        ("1000.99", "1000,99", True),
        (r"\frac{\sin x}{\cos x}", r"\tan x", True),
        ("-2", "-2.", True),
    ],
)
def test_a_text_that_is_nothing_but_an_answer_is_read_whole(gold, text, equal):
    assert (judge(gold, text).kind == "correct") == equal


def test_an_answer_without_a_box_is_found():
    assert judge("18", "She makes 9 * 2 = 18 dollars. The answer is 18.").kind == "correct"
    assert judge("18", "The answer is 19.").kind == "wrong"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "empty"),
        ("I do not know.", "no answer found"),
        (r"\boxed{}", "the box is empty"),
        (r"\boxed{" + "1+" * 2000 + "1}", "the answer is too long"),
        (r"\boxed{" + "(" * 40 + "1" + ")" * 40 + "}", "brackets are nested too deep"),
        (r"\boxed{??}", "not a mathematical expression"),
    ],
)
def test_what_cannot_be_read_is_unparsed_and_says_why(text, detail):
    verdict = judge("5", text)
    assert (verdict.kind, verdict.reward, verdict.detail) == ("unparsed", 0.0, detail)


def test_cut_off_is_truncated_unless_asked_to_judge_what_is_there():
    assert judge("5", r"so far \boxed{5} and", finished=False).kind == "truncated"
    assert judge("5", r"so far \boxed{5} and", finished=False, cut="judge").kind == "correct"
    assert judge("5", "so far 5", finished=False, cut="judge").kind == "truncated"


def test_judge_in_this_process_keeps_its_time_limit(monkeypatch):
    monkeypatch.setattr("sps.tasks.equality.verify", lambda *args, **more: time.sleep(60))
    task = Mathematics({}, seconds=0.2)
    verdict = task.judge(Problem("p", "?", "x+y"), boxed("y+x"), True)
    assert (verdict.kind, verdict.detail) == ("timeout", "no verdict within 0.2 s")


def test_gold_is_parsed_once():
    read_gold.cache_clear()
    for answer in ("1", r"\frac{1}{2}", "x"):
        judge(r"x+\frac{3}{7}", boxed(answer))
    assert read_gold.cache_info().misses == 1
    assert read_gold.cache_info().hits == 2


def test_prompt_is_the_template_with_the_instruction():
    problem = Problem("p", "What is 1+1?", "2")
    assert Mathematics({}, "qwen_boxed").prompt(problem) == (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within "
        "\\boxed{}.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert Mathematics({}, "chat").prompt(problem) == [
        {
            "role": "user",
            "content": "What is 1+1?\n\nPlease reason step by step, and put your final answer "
            "within \\boxed{}.",
        }
    ]
    opened = Mathematics({}, "r1").prompt(problem)
    assert opened.endswith("User: What is 1+1?\n\nAssistant: <think>\n")
