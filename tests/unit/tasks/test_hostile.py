"""Code as an answer to the tasks of our own: it does nothing, and is never right."""

import pytest

from sps.tasks.choice import Choice
from sps.tasks.countdown import Countdown
from sps.types import Problem
from sps.verify import InlineVerifier
from sps.verify.pool import VerifierPool

TOUCH = "__import__('os').system('touch FILE')"
CODE = [
    TOUCH, f"[{TOUCH}]", f"({TOUCH}, 7)[1]", f"7 + 0*{TOUCH}", "open('FILE','w').write('x')",
    f'eval("{TOUCH}")', f'exec("{TOUCH}")', f'sympify("{TOUCH}")', f'sin("{TOUCH}")',
    f'\\sin("{TOUCH}")', f"\\text{{{TOUCH}}}", f"\\operatorname{{eval}}({TOUCH})",
    "(lambda: open('FILE','w'))()", "().__class__.__base__.__subclasses__()", "problem.answer",
    "gold", "entry['answer']", "__import__('os')._exit(0)", "import os; os.remove('FILE')",
    "f\"{open('FILE','w')}\"", "__import__('subprocess').Popen(['touch', 'FILE'])",
]  # fmt: skip
FORMS = (r"\boxed{{{0}}}", "${0}$", "The answer is {0}", "<answer>{0}</answer>")


def own_tasks():
    countdown = Countdown(sizes={"train": 4, "validation": 1, "test": 1})
    chosen = Problem("c", "Which?\n\nA) x\nB) y", "B")
    return {
        "countdown": (InlineVerifier(countdown.judge), countdown.problems("train")[0]),
        "choice": (InlineVerifier(Choice({"test": [chosen]}).judge), chosen),
        "math": (
            VerifierPool("sps.tasks.math.judge:make_judge", workers=1),
            Problem("p", "?", "19"),
        ),
    }


@pytest.fixture(scope="module")
def tasks():
    made = own_tasks()
    yield made
    for verifier, _ in made.values():
        verifier.close()


@pytest.mark.parametrize("name", ["countdown", "choice", "math"])
def test_code_is_no_answer(tasks, name, tmp_path):
    verifier, problem = tasks[name]
    file = tmp_path / "made"
    texts = [form.format(code.replace("FILE", str(file))) for code in CODE for form in FORMS]
    futures = [verifier.submit(problem, text, True) for text in texts]
    verdicts = dict(zip(texts, (f.result(timeout=120) for f in futures), strict=True))
    assert {t: v for t, v in verdicts.items() if v.reward or v.kind == "correct"} == {}
    assert not file.exists()
