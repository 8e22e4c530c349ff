"""What is trained on is nowhere held out."""

import json
import random

import pytest

from sps.build import open_run
from sps.config.load import parse_recipe
from sps.data.load import load_problems
from sps.data.splits import check_overlap, read_questions
from sps.data.subset import hold_out
from sps.errors import UserError
from sps.policy.embedded import SHIPPED
from sps.run.track import read_records
from sps.tasks.math.task import MathConfig

BASE = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
LONG = "A farmer has {} cows and wants to know how many legs they have between them in {}"


def write(path, questions, answer=lambda i: "7"):
    rows = [{"id": f"q{i}", "problem": q, "answer": answer(i)} for i, q in enumerate(questions)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def twice(count: int) -> list[str]:
    """Each of `count` questions twice, in another order and another spelling."""
    once = [f"What is the number {i}?" for i in range(count)]
    again = [f"what is the   number ${i}$" for i in range(count)]
    return once + random.Random(0).sample(again, count)


def letters(problems) -> set[str]:
    return {"".join(c for c in p.question.lower() if c.isalnum()) for p in problems}


def test_no_question_is_on_both_sides(tmp_path):
    data = write(tmp_path / "a.jsonl", twice(50))
    read = read_questions(MathConfig(data=data, validation=10, test=10))
    assert (len(read.splits["train"]), len(read.dropped)) == (30, 50)
    sides = [letters(read.splits[name]) for name in ("train", "validation", "test")]
    assert len(set.union(*sides)) == sum(map(len, sides)) == 50


def test_data_without_duplicates_are_split_as_ever(tmp_path):
    data = write(tmp_path / "a.jsonl", [f"What is {i}?" for i in range(60)], str)
    read = read_questions(MathConfig(data=data, validation=5, test=6, subset=20, seed=3))
    assert read.dropped == []
    assert read.splits == hold_out(load_problems(data), {"validation": 5, "test": 6}, 20, 3)
    # The order itself: numpy's generator of [3, 60], written down once.
    assert [p.id for p in read.splits["train"][:4]] == ["q43", "q35", "q30", "q52"]


def test_too_few_are_counted_without_the_copies(tmp_path):
    data = write(tmp_path / "a.jsonl", twice(20))
    said = "has 20 problems, and 20 rows that repeat a question and are left out: too few"
    with pytest.raises(UserError, match=said):
        read_questions(MathConfig(data=data, validation=10, test=10))


def tree(data: str, **task) -> dict:
    task = {"type": "math", "data": data, "template": "plain", "workers": 1, **task}
    meter = {"problems": 1, "samples": 1}
    return {"model": {"path": str(BASE)}, "task": task, "meter": meter}


def test_what_was_left_out_is_on_record_once(tmp_path):
    data = write(
        tmp_path / "a.jsonl", [*twice(30), "What is the number 1?"], lambda i: str(i // 60)
    )
    recipe = parse_recipe(tree(data, validation=4, test=4), "test")
    for resume in (False, True):
        run = open_run(recipe, tmp_path / "run", resume)
        run.verifier.close()
    (record,) = read_records(tmp_path / "run" / "metrics.jsonl")
    assert (record["kind"], record["step"]) == ("warning", 0)
    assert "31 questions are there more than once" in record["text"]
    assert "1 have another answer than the first: q1 and q60" in record["text"]
    assert len(record["duplicates"]) == 31
    assert record["duplicates"][-1] == ["q60", "q1", "contradicts"]


def test_near_duplicates_of_held_out_questions_are_reported(tmp_path):
    questions = [f"What is {i}?" for i in range(20)]
    questions += [LONG.format(3, f"year {i}") for i in range(10)]  # 10 alike, of which 4 held out
    recipe = parse_recipe(
        tree(write(tmp_path / "a.jsonl", questions, str), validation=4, test=4), ""
    )
    read = read_questions(recipe.task)
    long = {name: [p for p in read.splits[name] if "farmer" in p.question] for name in read.splits}
    assert read.dropped == []
    assert long["train"]
    assert long["validation"] or long["test"]
    found, text = check_overlap(recipe.task, read.splits)
    pairs = {(o.train_id, o.test_id) for o in found}
    assert pairs == {
        (a.id, b.id)
        for seen, held in (("train", "validation"), ("train", "test"), ("validation", "test"))
        for a in long[seen]
        for b in long[held]
    }
    assert "nearly the same as held-out ones" in text
