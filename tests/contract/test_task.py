"""What every task promises. A new row of TASKS is one more row of EXAMPLES."""

import json
import subprocess
import sys

import pytest

from sps.config.load import dump_recipe, parse_recipe
from sps.errors import UserError
from sps.tasks import Bench
from sps.tasks.countdown import moves, reachable
from sps.tasks.table import TASKS, make_bench
from sps.types import KINDS, Finding
from sps.verify import open_verifier

SIZES = {"train": 8, "validation": 3, "test": 4}
ODD = ["", "\x00", "\\boxed{", "= = =", "\\boxed{" * 500, "1/0", "\ud800", "</think>", "9" * 5000]


def countdown_answer(problem):
    """A trajectory, by search."""
    state, target, steps = tuple(sorted(problem.meta["numbers"])), problem.meta["target"], []
    while len(state) > 1:
        move = next(m for m in moves(state, 99) if target in reachable(m.rest, 99))
        steps.append(f"{move.left} {move.op} {move.right} = {move.value}")
        state = move.rest
    return " ".join(steps) + " ."


def boxed(problem):
    return f"It is so: 3 + 4 = 7. Thus \\boxed{{{problem.answer}}}"


def tagged(problem):
    return f"<answer>{problem.answer}</answer>"


def questions(folder, name, question):
    rows = [{"problem": question.format(i), "answer": "AB"[i % 2]} for i in range(15)]
    if "A)" not in question:
        rows = [row | {"answer": str(i)} for i, row in enumerate(rows)]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


OWN = """
def problems(split):
    first, count = {"train": (0, 8), "validation": (8, 3), "test": (11, 4)}[split]
    numbers = range(first, first + count)
    return [{"question": f"What is {n} + 1?", "answer": n + 1, "n": n} for n in numbers]

def judge(problem, text):
    return text.strip() == str(problem.meta["n"] + 1)

def mode(problem, text):
    return text.strip()
"""


def own_task(folder):
    (folder / "own_task.py").write_text(OWN)
    return str(folder / "own_task.py")


# Of each row: its keys, given a folder; the text of a right answer; a benchmark of sps eval.
EXAMPLES = {
    "countdown": (lambda folder: SIZES, countdown_answer, "countdown"),
    "math": (
        lambda folder: {
            "data": questions(folder, "aime_2024.jsonl", "What is {} times 1?"),
            "subset": 8, "validation": 3, "test": 4, "workers": 1, "time_limit": 20.0,
        },
        boxed,
        "aime24",
    ),
    "choice": (
        lambda folder: {
            "data": questions(folder, "arc_challenge.jsonl", "{}?\n\nA) even\nB) odd"),
            "subset": 8, "validation": 3, "test": 4,
        },
        boxed,
        "arc_c",
    ),
    "gym": (
        lambda folder: {"name": "basic_arithmetic", "workers": 1, "time_limit": 20.0, **SIZES},
        tagged,
        "gym:basic_arithmetic",
    ),
    "python": (
        lambda folder: {"path": own_task(folder), "workers": 1, "time_limit": 20.0},
        lambda problem: problem.answer_text,
        "python:{folder}/own_task.py",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(TASKS))
def made(request, tmp_path_factory):
    """Of a row: its name, its config, two tasks made from it, its folder."""
    row = TASKS[request.param]
    for package in row.needs:
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    keys = EXAMPLES[request.param][0](folder)
    config = parse_recipe({"task": {"type": request.param, **keys}}, "test").task
    return request.param, config, row.make(config), row.make(config), folder


def right(made, problem):
    return EXAMPLES[made[0]][1](problem)


def test_every_row_has_an_example():
    assert set(EXAMPLES) == set(TASKS)


def test_its_keys_are_a_branch_of_the_recipe(made):
    name, config = made[:2]
    assert isinstance(config, TASKS[name].config)
    recipe = parse_recipe({"task": config.model_dump()}, "test")
    assert recipe.task == config
    assert f"type: {name}" in dump_recipe(recipe)
    with pytest.raises(UserError, match=r"task\.typo: no such key"):
        parse_recipe({"task": {**config.model_dump(), "typo": 1}}, "test")


def test_problems_are_the_same_every_time_and_in_one_split(made):
    _, _, task, again, _ = made
    splits = {split: task.problems(split) for split in SIZES}
    assert {split: len(problems) for split, problems in splits.items()} == SIZES
    assert splits == {split: again.problems(split) for split in SIZES}
    for key in ("id", "question"):
        seen = [getattr(p, key) for problems in splits.values() for p in problems]
        assert len(set(seen)) == len(seen)
    json.dumps([dict(p.meta) for p in splits["train"]])  # it goes to the pool's workers


def test_prompts_show_the_question(made):
    task = made[2]
    for problem in task.problems("train"):
        prompt = task.prompt(problem)
        if isinstance(prompt, list):
            assert {"role", "content"} == {*prompt[-1]}
            assert prompt[-1]["role"] == "user"
            prompt = prompt[-1]["content"]
        assert problem.question in prompt


def test_right_answers_are_right_and_others_have_a_kind(made):
    task = made[2]
    problems = task.problems("test")
    for problem, other in zip(problems, problems[1:] + problems[:1], strict=True):
        verdict = task.judge(problem, right(made, problem), True)
        assert (verdict.kind, verdict.reward) == ("correct", 1.0)
        assert task.judge(problem, right(made, problem), False).kind == "truncated"
        if problem.answer != other.answer:
            wrong = task.judge(problem, right(made, other), True)
            assert (wrong.kind, wrong.reward) == ("wrong", 0.0)


def test_its_verifier_says_what_its_judge_says(made):
    task = made[2]
    texts = ["", "no", *(right(made, p) for p in task.problems("test"))]
    asked = [(p, text, done) for p in task.problems("test") for text in texts for done in (1, 0)]
    verifier = open_verifier(task)
    try:
        futures = [verifier.submit(p, text, bool(done)) for p, text, done in asked]
        for (p, text, done), future in zip(asked, futures, strict=True):
            assert future.result(120) == task.judge(p, text, bool(done))
    finally:
        verifier.close()


@pytest.mark.parametrize("text", ODD)
def test_no_text_makes_a_judge_raise(made, text):
    task = made[2]
    problem = task.problems("test")[0]
    verdict = task.judge(problem, text, True)
    assert verdict.kind in KINDS
    assert verdict.reward == 0.0
    assert isinstance(task.mode(problem, text), str | None)


def test_equal_answers_have_equal_modes(made):
    task = made[2]
    for problem in task.problems("test"):
        text = right(made, problem)
        found = task.mode(problem, text)
        assert found is None or isinstance(found, str)
        assert task.mode(problem, f" {text}\n") == found


def test_findings_are_on_record_with_rows(made):
    for found in made[2].findings():
        assert isinstance(found, Finding)
        assert found.text
        json.dumps(found.rows)


def test_sps_eval_knows_it(made):
    name, _, _, _, folder = made
    asked = Bench(EXAMPLES[name][2].format(folder=folder), limit=3, data_dir=str(folder), workers=1)
    task = make_bench(asked)
    problems = task.problems("test")[:3]
    assert len(problems) == 3
    assert type(task) is type(made[2])
    assert task.judge(problems[0], EXAMPLES[name][1](problems[0]), True).kind == "correct"


def test_a_task_that_the_embedded_policy_knows_can_teach_it():
    for name, row in TASKS.items():
        if not row.embedded:
            continue
        task = row.make(row.config(**SIZES))
        assert set(row.embedded) <= set(row.config.model_fields), name
        words = set(task.vocabulary())
        attempts = task.attempts(0, 1.0)
        for _ in range(5):
            problem, text = next(attempts)
            assert {*problem.question.split(), *text.split()} <= words
            assert task.judge(problem, text, True).kind == "correct"


def test_the_tables_are_light():
    code = (
        "import sys, sps.tasks.table, sps.rollout.table;"
        "sys.exit(bool({'torch', 'sympy', 'pyarrow', 'reasoning_gym'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
