"""Training on mathematics, multiple choice and reasoning-gym with a model from a folder."""

import json

import pytest

from sps.build import make_task, open_run
from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.loop import train
from sps.policy.embedded import SHIPPED
from sps.run.track import read_records

BASE = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
SMALL = {
    "rollout": {"prompts": 2, "n": 2, "max_new_tokens": 6},
    "rl": {"steps": 1},
    "irl": {"steps": 1, "keep": 1},
    "evaluation": {"n": 2, "validation_n": 2, "every": 0},
    "meter": {"problems": 2, "samples": 2},
}


def rows(path, count, question="{0} + {0} = ?"):
    made = [{"problem": question.format(i), "answer": str(2 * i)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(path)


def run(tmp_path, task, **more):
    tree = {"model": {"path": str(BASE)}, "task": task, **SMALL, **more}
    run = open_run(parse_recipe(tree, "test"), tmp_path / "run")
    try:
        return train(run), read_records(tmp_path / "run" / "metrics.jsonl")
    finally:
        run.verifier.close()


def test_mathematics_trains_and_reports_overlap_first(tmp_path):
    shared = "How many ways are there to put {0} balls into {0} boxes of one colour?"
    task = {
        "type": "math",
        "data": rows(tmp_path / "train.jsonl", 30, shared),
        "subset": 10,
        "validation": 4,
        "template": "plain",
        "benchmarks": ["aime24"],
        "data_dir": str(tmp_path),
        "workers": 1,
    }
    rows(tmp_path / "aime_2024.jsonl", 5, shared)
    scores, records = run(tmp_path, task)
    assert scores.ids == tuple(f"aime24/aime_2024-{i:06d}" for i in range(5))
    assert sum(scores.kinds.values()) == 10  # 5 questions, 2 samples, none lost
    assert records[0]["kind"] == "warning"
    assert "training questions occur in benchmarks (aime24:" in records[0]["text"]
    kinds = [k for k in records[1] if k.startswith("verdict/")]
    assert records[1]["kind"] == "rl"
    assert sum(records[1][k] for k in kinds) == pytest.approx(1.0)


def test_the_test_set_can_be_the_first_questions_of_each_benchmark(tmp_path):
    task = {
        "type": "math",
        "data": rows(tmp_path / "train.jsonl", 80),
        "benchmarks": ["aime24", "aime25"],
        "data_dir": str(tmp_path),
        "limit": 2,
    }
    rows(tmp_path / "aime_2024.jsonl", 5)
    rows(tmp_path / "aime_2025.jsonl", 5)
    made = make_task(parse_recipe({"task": task}, "test")).problems("test")
    assert [p.id.partition("/")[0] for p in made] == ["aime24"] * 2 + ["aime25"] * 2
    assert [p.answer for p in made] == ["0", "2", "0", "2"]


def test_overlapping_questions_can_be_dropped(tmp_path):
    shared = "How many ways are there to put {0} balls into {0} boxes of one colour?"
    task = {
        "type": "math",
        "data": rows(tmp_path / "train.jsonl", 30, shared),
        "benchmarks": ["aime24"],
        "data_dir": str(tmp_path),
        "overlap": "drop",
    }
    rows(tmp_path / "aime_2024.jsonl", 5, shared)
    tree = {"model": {"path": str(BASE)}, "task": task, **SMALL}
    # 30 questions less the 5 of the benchmark are 25: fewer than the 64 to be held out.
    with pytest.raises(UserError, match="has 25 problems: too few"):
        open_run(parse_recipe(tree, "test"), tmp_path / "run")


def test_multiple_choice_trains(tmp_path):
    path = tmp_path / "train.jsonl"
    made = [{"problem": f"{i}?\n\nA) x\nB) y", "answer": "AB"[i % 2]} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    task = {"type": "choice", "data": str(path), "template": "plain", "validation": 4, "test": 4}
    scores, _ = run(tmp_path, task)
    assert len(scores.ids) == 4
    assert set(scores.kinds) <= {"correct", "wrong", "unparsed", "truncated"}


def test_multiple_choice_refuses_golds_that_are_no_options(tmp_path):
    path, test = tmp_path / "train.jsonl", tmp_path / "arc_challenge.jsonl"
    made = [{"problem": f"{i}?\n\nA) x\nB) y", "answer": "ABC"[i % 3]} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    task = {"type": "choice", "data": str(path), "validation": 4, "test": 4}
    with pytest.raises(UserError, match=r"task\.data: .*train\.jsonl: row 3: the answer 'C'"):
        make_task(parse_recipe({"task": task}, "test"))
    path.write_text("".join(json.dumps(row | {"answer": "y"}) + "\n" for row in made))
    test.write_text(json.dumps(made[2]) + "\n")
    task |= {"benchmarks": ["arc_c"], "data_dir": str(tmp_path)}
    with pytest.raises(UserError, match=r"task\.data_dir: benchmark arc_c: row 1: the answer 'C'"):
        make_task(parse_recipe({"task": task}, "test"))


def test_reasoning_gym_trains(tmp_path):
    pytest.importorskip("reasoning_gym", reason="the extra sps-rl[gym] is not installed")
    task = {"type": "gym", "name": "basic_arithmetic", "template": "plain", "workers": 1}
    task |= {"train": 6, "validation": 3, "test": 3}
    scores, _ = run(tmp_path, task)
    assert len(scores.ids) == 3


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"task": {"type": "math", "data": "x.jsonl"}}, r"task\.data: there is no file x\.jsonl"),
        ({"task": {"type": "gym", "name": "sudok"}}, "did you mean"),
    ],
)
def test_bad_task_input_fails_before_any_work(tmp_path, tree, message):
    pytest.importorskip("reasoning_gym", reason="the extra sps-rl[gym] is not installed")
    recipe = parse_recipe({"model": {"path": str(BASE)}, **tree}, "test")
    with pytest.raises(UserError, match=message):
        open_run(recipe, tmp_path / "run")


def test_mathematics_without_a_model_says_which_key(tmp_path):
    task = {"type": "math", "data": rows(tmp_path / "t.jsonl", 200), "template": "plain"}
    with pytest.raises(UserError, match=r"model\.path: the embedded policy knows Countdown alone"):
        open_run(parse_recipe({"task": task}, "test"), tmp_path / "run")
