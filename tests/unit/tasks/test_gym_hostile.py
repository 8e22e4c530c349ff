"""Hostile answers to every task of reasoning-gym: nothing runs, nothing stays, nothing is right."""

import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="the extra sps-rl[gym] is not installed")

from reasoning_gym.factory import DATASETS

from sps.build import make_task
from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.tasks.gym.scan import evaluator
from sps.tasks.gym.task import Gym, make_judge, screen
from sps.verify import open_verifier
from sps.verify.pool import VerifierPool

# composite has no problems of its own; the other one's verifier takes any answer, and is refused.
TASKS = sorted(set(DATASETS) - {"composite", "game_of_life_halting"})
# By hand, from reading every scorer of reasoning-gym 0.1.25: nine evaluate answers, three evaluate
# or load other text in the same function.
EVALUATING = {
    "binary_matrix", "countdown", "intermediate_integration", "n_queens",
    "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix",
    "string_insertion",
}  # fmt: skip
DOUBTFUL = {"bitwise_arithmetic", "number_sorting", "pool_matrix"}
UNSAFE = sorted(EVALUATING | DOUBTFUL)
FEW = ["countdown", "n_queens", "string_insertion"]  # all of them are in the slow test

TOUCH = "__import__('os').system('touch FILE')"
HOSTILE = [
    TOUCH,
    f"[{TOUCH}]",
    f"({TOUCH}, 24)[1]",
    "open('FILE', 'w').write('x')",
    "[open('FILE', 'w')]",
    f'exec("{TOUCH}")',
    f'eval("{TOUCH}")',
    f'sympify("{TOUCH}")',
    f'sin("{TOUCH}")',
    "sin('__imp' 'ort__(\"os\").system(\"touch FILE\")')",
    "(lambda: open('FILE', 'w'))()",
    "[c for c in ().__class__.__base__.__subclasses__() if 'Popen' in c.__name__]",
    "__import__('subprocess').Popen(['sleep', '600'])",
    "__import__('socket').create_connection(('127.0.0.1', PORT))",
    "__import__('os').kill(TRAINER, 9)",
    "__import__('os')._exit(0)",
    "[__import__('os').write(fd, b'correct') for fd in range(256)]",
    "oracle_answer",
    "entry['answer']",
    "entry['metadata']['solution']",
    "valid_solutions[0]",
    "[c for c in oracle_answer]",
    "__import__('sys')._getframe(1).f_locals['entry']['answer']",
    "__import__('sps.types').types.__dict__.update(Verdict=print)",
    "\uff4f\uff50\uff45\uff4e('FILE', 'w')",
    "import os; os.system('touch FILE')",
    "f\"{open('FILE', 'w')}\"",
    "{'__reduce__': 1}",
    "9" * 20_000,
    "(" * 5000,
    "[" * 50_000,
    "\x00",
    "\ud800",
]
BOMBS = ["9**9**9**9", "factorial(10**9)", "[[[0]*9**7]*9**7]*9**7"]


@pytest.fixture(scope="module")
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


def filled(texts, file, port):
    words = {"FILE": str(file), "PORT": str(port), "TRAINER": str(os.getpid())}
    for word, value in words.items():
        texts = [text.replace(word, value) for text in texts]
    return [f"Here it is: <answer>{text}</answer>" for text in texts]


def problem_of(task):
    return Gym(task, {"train": 1}, seed=5, unsafe=[task]).problems("train")[0]


def marked(pool):
    marks = [worker.mark.encode() for worker in pool._workers]
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found += [path for mark in marks if mark in path.read_bytes()]
    return found


def test_the_tasks_that_evaluate_answers_are_found():
    found = {task for task in TASKS if evaluator(DATASETS[task][0])}
    assert found >= EVALUATING
    assert found <= EVALUATING | DOUBTFUL
    assert evaluator(DATASETS["composite"][0])  # it asks the scorers of others


def test_the_scan_says_where():
    where = evaluator(DATASETS["countdown"][0])
    assert where.startswith("parse_expr in reasoning_gym.games.countdown, line ")


def indirect(answer):
    return eval(answer)


class Helper:
    def work(self, answer):
        return indirect(answer)


class Far:
    helper = Helper()

    def score_answer(self, answer, entry):
        return float(self.helper.work(answer))


class Foreign:
    def score_answer(self, answer, entry):
        import sympy

        return float(sympy.Integer(answer))


class Honest:
    def score_answer(self, answer, entry):
        return float(float(answer) == entry["answer"])


def test_the_scan_follows_calls_through_objects_and_stops_at_strange_libraries():
    assert evaluator(Far).startswith("eval in ")
    assert evaluator(Foreign).startswith("import sympy in ")
    assert evaluator(Honest) == ""


@pytest.mark.parametrize("task", UNSAFE)
def test_a_task_that_evaluates_is_refused_unless_it_is_named(task):
    recipe = parse_recipe({"task": {"type": "gym", "name": task, "train": 1}}, "test")
    with pytest.raises(UserError, match=rf"task\.unsafe: \[{task}\]"):
        make_task(recipe).problems("train")
    with pytest.raises(UserError, match=f"--unsafe {task}"):
        make_judge(task, {})


def test_a_verifier_that_takes_any_answer_is_refused():
    with pytest.raises(UserError, match="game_of_life_halting takes '\\?!' for a right answer"):
        Gym("game_of_life_halting", {"train": 5}).problems("train")


def test_a_name_that_is_not_the_task_is_refused():
    task = {"type": "gym", "name": "sudoku", "unsafe": ["countdown"]}
    with pytest.raises(UserError, match="countdown is not the task of this recipe, sudoku"):
        parse_recipe({"task": task}, "test")


@pytest.mark.parametrize("task", sorted(set(UNSAFE) - {"string_insertion"}))
def test_the_screen_lets_right_answers_through(task):
    problems = Gym(task, {"train": 10}, seed=1, unsafe=[task]).problems("train")
    # Where no closed form was found the gold answer has an Integral in it, and only that passes.
    solved = [p.answer for p in problems if "Integral" not in p.answer]
    assert len(solved) >= 5
    assert [answer for answer in solved if not screen.plain(answer)] == []


ALL = """
from sps.tasks.gym.task import make_judge as one

def make_judge(tasks, unsafe):
    judges = {task: one(task, {}, "zero", unsafe) for task in tasks}
    return lambda problem, text, finished: judges[problem.id](problem, text, finished)
"""


@pytest.fixture
def all_tasks(tmp_path, monkeypatch):
    """One judge for many tasks, so that one pool does for them all."""
    (tmp_path / "all_judges.py").write_text(ALL)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "all_judges:make_judge"


def judged(pool, problems, texts):
    futures = {
        (task, text): pool.submit(type(p)(task, p.question, p.answer, p.meta), text, True)
        for task, p in problems.items()
        for text in texts
    }
    return {key: future.result(timeout=240) for key, future in futures.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
def test_hostile_answers_do_nothing_and_are_never_right(all_tasks, tmp_path, port, unsafe, workers):
    tasks = FEW if unsafe else ["basic_arithmetic", "sudoku", "rearc", "codeio", "knights_knaves"]
    problems = {task: problem_of(task) for task in tasks}
    options = {"tasks": tasks, "unsafe": unsafe}
    gold = {task: f"<answer>{p.answer}</answer>" for task, p in problems.items()}
    file = tmp_path / "made"
    with VerifierPool(all_tasks, options, workers=2, time_limit=5, fresh=unsafe) as pool:
        got = judged(pool, problems, filled(HOSTILE, file, port))
        assert {key: v for key, v in got.items() if v.kind == "correct" or v.reward} == {}
        assert not file.exists()
        assert len(marked(pool)) == 2  # the workers, and nothing they started
        assert len(workers) == 2
        for task, text in gold.items():  # what came before has changed no judge
            assert judged(pool, {task: problems[task]}, [text])[task, text].kind == "correct"
    refused = [v for v in got.values() if v.detail.startswith("refused")]
    assert len(refused) > 25 * len(tasks) if unsafe else not refused


def test_bombs_end_at_a_limit(all_tasks, tmp_path, port, workers):
    tasks = ["countdown", "spiral_matrix"]  # one that asks sympy, one that asks Python
    options = {"tasks": tasks, "unsafe": True}
    problems = {task: problem_of(task) for task in tasks}
    with VerifierPool(all_tasks, options, workers=2, time_limit=0.5, fresh=True) as pool:
        got = judged(pool, problems, filled(BOMBS, tmp_path, port))
        assert {v.reward for v in got.values()} == {0.0}
        assert {v.kind for v in got.values()} <= {"wrong", "timeout", "crashed"}
        assert len(workers) == 2


# A library of reasoning-gym's leaves a file open.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_hostile_answers_to_every_task_as_a_recipe_runs_it(task, tmp_path, port):
    named = {"unsafe": [task]} if task in UNSAFE else {}
    tree = {"type": "gym", "name": task, "train": 2, "validation": 1, "test": 1, "time_limit": 2}
    recipe = parse_recipe({"task": {**tree, "workers": 2, **named}}, "test")
    made = make_task(recipe)
    problem = made.problems("train")[0]
    verifier = open_verifier(made)
    file = tmp_path / "made"
    try:
        texts = filled(HOSTILE + BOMBS, file, port)
        futures = [verifier.submit(problem, text, True) for text in texts]
        verdicts = [future.result(timeout=240) for future in futures]
        assert {v.reward for v in verdicts} == {0.0}
        assert not file.exists()
        assert len(marked(verifier)) == 2
        gold = verifier.submit(problem, f"<answer>{problem.answer}</answer>", True).result()
        assert gold.kind == ("wrong" if problem.answer == "None" else "correct")
    finally:
        verifier.close()
    assert not file.exists()
