"""The judge of mathematics: pairs with the verdict a mathematician would give."""

import time

import pytest
from math_verify import parse, verify

from sps.tasks.math.judge import judge, read_gold
from sps.tasks.math.task import Mathematics
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


# Each is wrong whichever of the two is the gold answer.
DIFFERENT = {
    "a letter is no unit": [
        ("a+3t", "a+3"),
        ("7mn", "7"),
        ("4 h", "4"),
        (r"\frac{2}{3}d", r"\frac{2}{3}"),
        (r"\sqrt{5}c", r"\sqrt{5}"),
        ("x+3cm", "x+3"),
        (r"3\mathrm{t}", "3"),
        (r"5\text{i}", "5"),
    ],
    "letters have a case": [
        ("B-b", "0"),
        ("2K", "2k"),
        (r"\frac{N}{n}", "1"),
        ("pQ", "pq"),
        ("E", "e"),
        ("(0, E)", "(0, e)"),
        (r"\text{A}", "a"),
        (r"\Gamma", r"\gamma"),
    ],
    "a product is no mixed number": [
        ("7", "3(4)"),
        ("7", "(3)(4)"),
        ("9", r"4\left(5\right)"),
        ("7", "3[4]"),
        (r"\frac{7}{2}", r"3\left(\frac{1}{2}\right)"),
        ("8", r"2\binom{4}{2}"),
        ("5", r"\frac{6}{2}\cdot 1(2)"),
        ("7", "3 4"),
    ],
    "an equation has two sides": [
        ("3+3=6", "3+3=7"),
        ("7", "3+3=7"),
        ("9", "4=9"),
        ("6", "x=2+2=6"),
        ("8", "2x=8"),
        ("7", "n^2=7"),
        ("x+y=4", "x+y=5"),
        ("x^2+3=0", "x^2+5=0"),
        ("u=2", "v=2"),
        ("x=3,y=4", "x=4,y=3"),
        ("a=b=c=1", "a=b=d=1"),
        ("a=b=c=0", "a=bc=c=0"),
        ("3x+2y=12", "12"),
        ("8", r"8\approx 11"),
        ("st=kt", "st=-kt"),
        ("7=3a+c", "3a+c"),
    ],
    "an inequality has a sense": [
        ("x<4", "x>4"),
        ("x<4", r"x\le 4"),
        ("2<x<5", "2<x<6"),
        (r"x\neq 2", "x=2"),
    ],
    "what the parser leaves out": [
        ("g'", "g"),
        (r"2,4,\ldots,12", "2,4,12"),
        (r"\gcd(m,n)", "1"),
        (r"\text{CD}", "DC"),
        (r"0.\overline{4}", r"0.\overline{5}"),
        ("|x|", "x"),
        (r"\min(p+1,q)", r"\min(p+4,q)"),
        ("2.3456789", "2.3456788"),
        ("-31_8", "-31_9"),
        ("31_8", "31_{8s}"),
        ("31_8", "31_84"),
        ("75", "75_4"),
        ("a=k+3", "a=k+3_2"),
        ("602", "602'"),
        ("0.777...", "0.777"),
        (r"\angle PQR", r"\angle PRQ"),
        (r"\frac{du}{dv}", r"\frac{dv}{du}"),
        ("2024-03-04", "2024-04-03"),
        ("0x2A", "0x2B"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"3=\begin{pmatrix}1\\2\end{pmatrix}"),
        ("h(x)=2x", r"\neq h(x)=2x"),
        ("3+4i", "2<3+4i"),
        ("(3, 4)", "(i+3, 4)"),
        ("(97!)^{90}", "7=(97!)^{90}"),
        ("2^{k}", "2^{k}_3"),
    ],
    "how often, and in what brackets": [
        ("3,3,4", "3,4,4"),
        (r"\{3,4\}", "(3,4)"),
        (r"[3,4)", r"\{x \mid 3 < x < 4\}"),
        (r"(-\infty,1)\cup(4,\infty)", r"x<1\text{ or }x\ge 4"),
    ],
    "words that count": [
        (r"6\text{ million}", "6"),
        (r"6\text{ dozen}", "6"),
        (r"6\text{ pi}", "6"),
        (r"6\text{ hours and 5 minutes}", "6"),
        (r"k\text{ even}", r"k\text{ odd}"),
        (r"6\text{ a.m.}", r"6\text{ p.m.}"),
        (r"30\text{ km/h}", r"30\text{ m/s}"),
        (r"6\text{ mW}", r"6\text{ MW}"),
        (r"6\text{ keV}", r"6\text{ eV}"),
        (r"6^\circ\text{C}", r"6^\circ\text{F}"),
        (r"6^\circ", r"6\text{ radians}"),
        (r"6\%", r"6\text{ cm}"),
        (r"60\%", r"0.60\%"),
        (r"\$6", r"6\text{ cents}"),
        (r"6\text{ April}", r"6\text{ May}"),
        ("6", r"6\text{ is wrong}"),
        ("D", "(C) 6"),
    ],
}


@pytest.mark.parametrize(("one", "other"), [pair for pairs in DIFFERENT.values() for pair in pairs])
def test_what_is_not_the_same_is_wrong_both_ways(one, other):
    kinds = {judge(one, boxed(other)).kind, judge(other, boxed(one)).kind}
    assert kinds <= {"wrong", "unparsed"}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # units
        ("27", r"27\mbox{m}^3"),
        (r"27\mbox{m}^3", "27"),
        ("4", r"4\text{ L}"),
        (r"12\text{ square cm}", r"12\,\mathrm{cm}^2"),
        (r"45\text{ mph}", r"45\text{ miles per hour}"),
        ("9.8", r"9.8 \mathrm{~m} / \mathrm{s}^{2}"),
        ("14", "14 students"),
        ("3000000", r"3\text{ million}"),
        (r"3\pi", r"3\pi\text{ square feet}"),
        # numbers
        ("5/2", r"2\frac12"),
        (r"\frac{4}{9}", r"0.\overline{4}"),
        ("12", "3(4)"),
        (r"\frac{1}{432}", r"2.314814814815 \times 10^{-3}"),
        ("4", r"\mbox{four}"),
        ("6e5", "N = 6e5"),
        ("R_1+R_2", "R_{2}+R_{1}"),
        ("A_n", "A_{n}"),
        (r"2^4 3^2", r"2^4\cdot 3^2"),
        ("(2+i)^2", "3+4i"),
        # equations and inequalities
        ("y=3x-2", "3x-y-2=0"),
        ("y=3x-2", "f(x)=3x-2"),
        ("y-1=3(x-1)", "y=3x-2"),
        ("uv=6", r"v=\frac{6}{u}"),
        ("x^2+y^2=9", "y^2=9-x^2"),
        ("9", "a+b=9"),
        ("9", "4+5=9"),
        ("9", "9=x"),
        (r"\frac{1}{6}", r"P(A|B)=\frac{1}{2}\cdot\frac{1}{3}=\frac{1}{6}"),
        ("2.65", r"\sqrt{7}\approx 2.65"),
        (r"\frac{3}{5}", r"\cos A=\frac35"),
        ("(3,4)", "x=3, y=4"),
        ("x=3,y=4", "y=4,x=3"),
        ("4>x", "x<4"),
        (r"(-\infty,4]", r"x\le 4"),
        # brackets and stray signs
        (r"3\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}3\\6\end{pmatrix}"),
        (r"\begin{pmatrix}\frac12\\1\end{pmatrix}", r"\frac12\begin{pmatrix}1\\2\end{pmatrix}"),
        ("(1,2)", r"\langle 1, 2\rangle"),
        ("$x+7", "x+7"),
        ("x+$7", "7+x"),
        ("The area is $12$", "12"),
        (r"\text{Yes}", "yes"),
        (r"\text{B, D}", "D, B"),
        # what models write
        (r"\log_3 5", r"\log_{3}(5)"),
        (r"\sqrt[3]{5}", r"\sqrt[3]5"),
        (r"1.7\times 10^{-8}", "0.000000017"),
        ("8", r"\text{8 hours}"),
        ("8", r"n = 8\text{ terms}"),
        ("8", r"\textcolor{blue}{8}"),
        ("9.8", r"9.8\,\mathrm{m/s^2}"),
        ("21", r"21^{\circ}\mathrm{C}"),
        ("17", r"\text{seventeen}"),
        ("D", r"\textbf{(D)}\ 14"),
        ("321_4", "k = 321_4"),
        ("110", "110_2"),
        (r"n\equiv 2\pmod{7}", r"n \equiv 2\ (\text{mod } 7)"),
        ("[3,4)", r"\{x \in \mathbb{R} \mid 3 \le x < 4\}"),
        (r"(-\infty,1)\cup(4,\infty)", r"x<1\text{ or }x>4"),
    ],
)
def test_another_spelling_is_right(gold, answer):
    assert judge(gold, boxed(answer)).kind == "correct"


def test_a_gold_answer_with_a_stray_dollar_is_read_whole():
    assert judge("x^2 + 7$", boxed("7")).kind == "wrong"
    assert judge("10$ + x", boxed("10")).kind == "wrong"
    assert judge("f(n)=n$, $g(n)=1", boxed("1")).kind == "wrong"
    assert judge("10$ + x", boxed("x+10")).kind == "correct"


def test_a_wrong_function_is_told_without_solving_equations(monkeypatch):
    asked = []
    monkeypatch.setattr("math_verify.grader.solve", lambda *args, **more: asked.append(args))
    gold = r"y=\frac{x^5-3x^2+1}{e^x+\sin x}"
    assert judge(gold, boxed(gold.replace("3x", "4x"))).kind == "wrong"
    assert asked == []


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
    assert judge("(2, 5)", r"$x = \boxed{2}$, $y = \boxed{5}$").kind == "correct"
    assert judge("0.5", r"$\boxed{\frac{1}{2}}$ or $\boxed{0.5}$").kind == "correct"


@pytest.mark.parametrize(
    "joint",
    [" and ", " or ", ", ", "", "\n\n", "$, or $", "/", " = ", r" \\ ", "$ (b) $", "\n2. ", "\n- "],
)
@pytest.mark.parametrize("pair", [("2", "5"), ("5", "2")])
def test_two_answers_are_not_one_of_them_in_any_order(joint, pair):
    text = f"So $\\boxed{{{pair[0]}}}{joint}\\boxed{{{pair[1]}}}$."
    assert judge("2", text).kind == judge("5", text).kind == "wrong"


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("-4", r"So $x=-\boxed{4}$."),
        ("-4", r"\[-\boxed{4}\]"),
        (r"4\pi", r"The area is $\boxed{4}\pi$."),
        (r"-(a+b)\sqrt{2}", r"$-\boxed{a+b}\sqrt{2}$"),
        ("16", r"$\boxed{4}^2$"),
    ],
)
def test_a_box_is_part_of_its_formula(gold, text):
    assert judge(gold, text).kind == "correct"
    assert judge("a+b" if "a" in gold else "4", text).kind == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        r"- \boxed{4}",
        r"$\boxed{4}\text{ cm}$",
        r"$\boxed{4}^\circ$",
        r"So - \boxed{4}!",
        r"\boxed{4}.",
    ],
)
def test_a_dash_a_unit_or_a_stop_beside_a_box_is_not(text):
    assert judge("4", text).kind == "correct"


def test_a_box_on_the_way_is_not_part_of_the_answer():
    text = r"Half of it is $\boxed{4}$, and therefore all of it is $\boxed{8}$."
    assert judge("8", text).kind == "correct"
    assert judge("4", text).kind == "wrong"


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (r"So \boxed{4}.", "wrong"),
        ("The answer is 4.", "wrong"),
        ("The answer is blue.", "wrong"),
        ("Hence $x = 4$.", "wrong"),
        ("The answer is 6.", "correct"),
        ("", "correct"),
        ("That is all.", "correct"),
    ],
)
def test_a_thought_counts_only_where_nothing_is_said_after_it(after, kind):
    assert judge("6", rf"<think>It may be \boxed{{6}}.</think> {after}").kind == kind


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 8, in f\nTypeError: bad 8'


@pytest.mark.parametrize(
    "text",
    [
        "Let n = 8.\n```python\nprint(8)\n```",
        "Let n = 8.\n```\nx = 8\nprint(x)\n```",
        "Now run it.\n```output\n8\n```",
        "Now run it.\n```python\nprint(8)",
        f"It fails:\n{TRACEBACK}",
        "We write\nimport math\nx = 8\nprint(x)",
        "def f(x):\n    return 8",
        "NameError: name 'n8' is not defined, 8",
        "sympy.SympifyError: 8",
        "    assert n == 8\nAssertionError",
        "x = symbols('x')\nsolve(x - 8)",
        '#include <stdio.h>\nint main() {\n  int x = 8;\n  printf("%d", x);\n}',
        "Exception in thread main\n\tat Main.main(Main.java:8)",
        "process exited with code 8",
        "We ask Python\n>>> 4+4\n8",
        "```python\nprint('\\\\boxed{8}')\n```",
    ],
)
def test_code_and_tracebacks_at_the_end_are_no_answer(text):
    assert judge("8", text).kind == "unparsed"
    announced = judge("8", f"The answer is 8.\n{text}")
    assert announced.kind == "correct"
    assert judge("8", f"So $\\boxed{{8}}$.\n{text.replace('8', '9')}").kind == "correct"


def test_a_final_answer_stated_after_the_boxes_counts():
    text = r"Interest is $\boxed{255}$. The final answer is $10{,}455$. I hope it is correct."
    assert judge("10455", text).kind == "correct"
    assert judge("255", text).kind == "wrong"


@pytest.mark.parametrize(
    "after",
    [
        r"The final answer is $(2,\frac{\pi}{3}).$",
        r"Final Answer: The point of the 3rd circle is $(2,\frac{\pi}{3})$",
        "The final answer is clear.",
    ],
)
def test_a_right_box_is_not_lost_to_what_follows(after):
    text = rf"So $\boxed{{(2,\frac{{\pi}}{{3}})}}$. {after}"
    assert judge(r"(2,\frac{\pi}{3})", text).kind == "correct"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He buys 3 at $4: 3 * 4 = $12.\nSo he pays $12 for 3 shirts.", "12"),
        ("20 / 5 = 4 cows. Thus the farm needs 4 more cows to get 25 litres.", "4"),
        (
            "7 + 6 = 13. She will be 14 years old in 7 years.",
            "7",
        ),  # 13 is not said: the last number
        ("It lasts 9 days with 27 litres.", "27"),  # and where nothing was worked out
    ],
)
def test_of_several_numbers_the_one_that_was_worked_out_is_the_answer(text, answer):
    assert judge(answer, text).kind == "correct"
    others = {"12": "3", "4": "25", "7": "13", "27": "9"}
    assert judge(others[answer], text).kind == "wrong"


@pytest.mark.parametrize(
    "formula",
    [
        *("6x", "6 + x", "x - 6", "6ab", "6i", "6 pi", "pi/6", "6π", "√6", "sqrt(6)", "6 sqrt(2)"),
        *("x^6", "log 6", r"\sqrt{6}", r"\binom{6}{2}", "x < 6", "n ≥ 6", "x ≠ 6", "6 million"),
        *("6 dozen", "6:5", "6 1/2", "6e2", "6,000", "2x = 6"),
    ],
)
def test_a_formula_that_nothing_marks_is_more_than_its_number(formula):
    assert judge("6", f"Hence the answer is {formula}").kind in ("wrong", "unparsed")


@pytest.mark.parametrize(
    ("gold", "formula"),
    [("x^2+3", "x^2 + 3"), (r"\sqrt{6}", "sqrt(6)"), ("6000000", "6 million"), ("x>6", "x > 6")],
)
def test_a_formula_that_nothing_marks_is_read(gold, formula):
    assert judge(gold, f"Hence the answer is {formula}.").kind == "correct"


@pytest.mark.parametrize(
    "said",
    ["6 (a whole number)", r"6 \text{ cm}", "6cm", "3! = 6", "x = 6", "$6/hour", "6 - I am sure"],
)
def test_words_beside_a_number_make_no_formula_of_it(said):
    assert judge("6", f"Hence the answer is {said}.").kind == "correct"


def test_what_is_denied_is_not_the_answer():
    assert judge("6", "The answer is not 6.").kind != "correct"
    assert judge("6", "The answer isn't $6$.").kind != "correct"
    assert judge("6", "The answer is not 6 but 7.").kind == "wrong"
    assert judge("7", "The answer is not 6 but 7.").kind == "correct"


def test_a_letter_in_brackets_is_an_answer():
    assert judge("D", "The answer is (D).").kind == "correct"
    assert judge("D", "The answer is (C).").kind == "wrong"


def test_the_mark_of_an_answer_is_no_part_of_it():
    assert judge("1400", "#### 1,400").kind == "correct"
    assert judge("1400", "**1,400**").kind == "correct"


def test_of_a_gold_answer_in_prose_only_what_it_is_said_to_be_is_taken():
    assert judge("all primes $p$", boxed("p")).kind != "correct"
    assert judge("not $3$", boxed("3")).kind != "correct"
    assert judge("The least is $3$.", boxed("3")).kind == "correct"


@pytest.mark.parametrize("answer", ["61!!", "(9!)!"])
def test_a_factorial_of_a_factorial_is_not_worked_out(answer, monkeypatch):
    monkeypatch.setattr(
        "sps.tasks.math.equality.verify", lambda *args, **more: pytest.fail("worked out")
    )
    assert judge("61", boxed(answer)).kind == "wrong"


def test_a_wrong_inequality_is_told_without_solving_it(monkeypatch):
    asked = []
    monkeypatch.setattr("sympy.logic.boolalg.Boolean.as_set", lambda self: asked.append(self))
    gold = r"x^6-x^5+x^4-x^3+x^2-x+\frac{3}{4}>0"
    assert judge(gold, boxed(gold.replace("x^4", "4x"))).kind == "wrong"
    assert asked == []


def test_ordinals_and_the_subject_of_a_sentence_are_not_the_answer():
    text = r"So $\boxed{12}$. Final Answer: The 7th class should get 12"
    assert judge("12", text).kind == "correct"
    assert judge("7", text).kind == "wrong"
    assert judge("60", "Final answer: The volume of $PQRS$ is 60. I hope so.").kind == "correct"


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
    assert judge("8", "Bought for $3, sold for $8. The profit is 5. #### 5").kind == "wrong"
    assert judge("5", "Bought for $3, sold for $8. The answer is $5.").kind == "correct"
    assert judge("2, 7", "The answer is $x = 2$ or $x = 7$.").kind == "correct"
    assert judge(r"\text{Mary}", "The answer is Mary.").kind == "correct"


@pytest.mark.parametrize("end", ["$3\\pi.$", "\\(3\\pi.\\)", "$$3\\pi.$$", "$3\\pi,$"])
def test_a_full_stop_inside_a_formula_cuts_nothing_off(end):
    assert judge(r"3\pi", f"The answer is {end}").kind == "correct"
    assert judge("3", f"The answer is {end}").kind == "wrong"
    assert judge("3", f"Hence we get {end}").kind == "wrong"


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
    monkeypatch.setattr("sps.tasks.math.equality.verify", lambda *args, **more: time.sleep(60))
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


def test_answers_that_no_completion_can_have_are_found():
    """Sentences, of which a box has the number alone, and what no box can hold."""
    lost = {"a": "The answer is 8.", "b": "Answer: 5", "c": r"\frac{5"}
    fine = {
        "d": "8",
        "i": "Answer: $5$",
        "e": r"\frac{1}{2}",
        "f": "Tuesday",
        "g": "x = 8",
        "h": r"\text{(A)}",
    }
    problems = [Problem(name, "?", gold, {}) for name, gold in {**lost, **fine}.items()]
    task = Mathematics({"train": problems[:2], "test": problems[2:]}, workers=1)
    (found,) = task.findings()
    assert found.kind == "warning"
    assert found.rows == [list(row) for row in lost.items()]
    assert "3 of 9 different answers" in found.text
    assert "that of a: The answer is 8." in found.text
    assert not Mathematics({"train": problems[3:]}, workers=1).findings()
