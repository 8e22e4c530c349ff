"""reasoning-gym tasks by name, with their own verifiers."""

import pytest

pytest.importorskip("reasoning_gym", reason="the extra sps-rl[gym] is not installed")

from sps.errors import UserError
from sps.tasks.gym.task import Gym


@pytest.fixture(scope="module")
def gym():
    sizes = {"train": 20, "validation": 5, "test": 5}
    return Gym("basic_arithmetic", sizes, seed=3, settings={"max_digits": 2})


def test_splits_have_their_sizes_and_share_no_question(gym):
    splits = {name: gym.problems(name) for name in ("train", "validation", "test")}
    assert {name: len(p) for name, p in splits.items()} == {"train": 20, "validation": 5, "test": 5}
    questions = [p.question for problems in splits.values() for p in problems]
    assert len(set(questions)) == 30


def test_the_same_seed_gives_the_same_problems(gym):
    again = Gym("basic_arithmetic", gym.sizes, seed=3, settings={"max_digits": 2})
    assert [p.question for p in again.problems("train")] == [
        p.question for p in gym.problems("train")
    ]


def test_its_own_verifier_judges(gym):
    problem = gym.problems("test")[0]
    right, wrong = problem.answer, str(int(problem.answer) + 1)
    assert gym.judge(problem, f"<answer>{right}</answer>", True).kind == "correct"
    assert gym.judge(problem, rf"\boxed{{{right}}}", True).kind == "correct"
    assert gym.judge(problem, f"<answer>{wrong}</answer>", True).kind == "wrong"
    assert gym.judge(problem, right, True).kind == "unparsed"
    assert gym.judge(problem, "so", False).kind == "truncated"


def test_a_thought_counts_only_where_nothing_is_answered_after_it(gym):
    problem = gym.problems("test")[0]
    right, wrong = f"<answer>{problem.answer}</answer>", r"\boxed{99999}"
    for text, kind in [
        (f"<think>{right}? no</think> My answer: {wrong}", "wrong"),
        (f"<think>{wrong}? no</think> {right}", "correct"),
        (f"<think><answer>99999</answer>? no</think> \\boxed{{{problem.answer}}}", "correct"),
        (f"<think>{right}</think> That is all.", "correct"),
        (f"<think>{right}</think> <answer></answer>", "wrong"),  # an answer, and an empty one
    ]:
        assert gym.judge(problem, text, True).kind == kind, text


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match="did you mean basic_arithmetic"):
        Gym("basic_arithmetics", {"train": 1}).problems("train")


def test_an_unknown_setting_is_said():
    with pytest.raises(UserError, match=r"task\.settings"):
        Gym("basic_arithmetic", {"train": 1}, settings={"digits": 2}).problems("train")
