"""The registry, rows as the hub gives them, and data sets that accept their own answers."""

import json
import os
from pathlib import Path

import pytest

from sps.data.benchmarks import BENCHMARKS, find_benchmark, load_benchmark
from sps.errors import UserError
from sps.tasks import choice
from sps.tasks.math.judge import _compare_reading, judge
from sps.tasks.math.reading import read
from sps.types import Problem

DATA = Path(os.environ.get("SPS_DATA", Path(__file__).parents[4] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "aime_2024.jsonl").exists(),
    reason="no data sets here: put them into a folder and name it in SPS_DATA",
)


def test_registry_has_every_benchmark():
    assert list(BENCHMARKS) == [
        "aime24", "aime25", "brumo25", "hmmt_feb25", "hmmt_nov25", "math500", "gsm8k", "amc23",
        "minerva", "olympiadbench", "mmlu", "arc_c", "gpqa_diamond",
    ]  # fmt: skip


def test_an_unknown_benchmark_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'aime24'"):
        find_benchmark("aime_24")
    with pytest.raises(
        UserError,
        match=r"Known: aime24, aime25.*countdown, gym:NAME, math:ROWS and .*, and python:FILE:ROWS",
    ):
        find_benchmark("zzz")


def test_a_missing_local_copy_says_what_to_put_where(tmp_path):
    with pytest.raises(
        UserError, match=r"no aime_2024\.jsonl in .*HuggingFaceH4/aime_2024"
    ) as said:
        load_benchmark("aime24", str(tmp_path))
    assert "leave --data-dir (task.data_dir in a recipe) out" in str(said.value)


@pytest.mark.parametrize(
    ("name", "row", "problem", "answer"),
    [
        ("olympiadbench", {"question": "q", "final_answer": ["$1$", "2"]}, None, "1, 2"),
        (
            "mmlu",
            {"question": "q", "choices": ["w", "x", "y", "z"], "answer": 2},
            "q\n\nA) w\nB) x\nC) y\nD) z",
            "C",
        ),
        (
            "arc_c",
            {
                "question": "q",
                "choices": {"text": ["w", "x"], "label": ["1", "2"]},
                "answerKey": "2",
            },
            "q\n\n1) w\n2) x",
            "2",
        ),
    ],
)
def test_rows_of_the_hub_are_converted(name, row, problem, answer):
    converted = BENCHMARKS[name].convert(row)
    assert converted["answer"] == answer
    if problem:
        assert converted["problem"] == problem


def test_gpqa_is_shuffled_and_its_letter_follows():
    letters = set()
    for i in range(40):
        row = {"Question": f"q{i}", "Correct Answer": "right"}
        row |= {f"Incorrect Answer {j}": f"no{j}" for j in (1, 2, 3)}
        out = BENCHMARKS["gpqa_diamond"].convert(row)
        assert f"{out['answer']}) right" in out["problem"]
        letters.add(out["answer"])
    assert letters == set("ABCD")


# Rows, and gold answers that Math-Verify does not find equal to themselves: text, not mathematics.
MATHEMATICS = {
    "aime_2024": (30, set()),
    "aime_2025": (30, set()),
    "brumo_2025": (30, set()),
    "hmmt_feb_2025": (30, set()),
    "hmmt_nov_2025": (30, set()),
    "math500": (500, set()),
    "gsm8k_test": (1319, set()),
    "gsm8k_train": (7473, set()),
    "amc23": (40, set()),
    "aime_1983_2023": (975, set()),
    "dapo_math_17k": (17176, set()),
    "minerva_math": (272, set()),
    "olympiadbench_math_en": (675, set()),
    "math_train": (7471, set()),
    "deepmath_part": (4990, set()),
}


@needs_data
@pytest.mark.parametrize("name", MATHEMATICS)
def test_mathematics_accepts_its_own_gold_answers(name):
    rows, strange = MATHEMATICS[name]
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    assert len(golds) == rows
    different = sorted(set(golds))
    assert [g for g in different if judge(g, f"\\boxed{{{g}}}").kind != "correct"] == []
    # The judge takes the same text for the same answer; here it may not: Math-Verify has to see it.
    if name in ("math_train", "deepmath_part"):
        different = different[::10]
    words = [g for g in different if not g.isdecimal()]
    assert {g for g in words if _compare_reading(g, read(g), g).kind != "correct"} == strange


@needs_data
@pytest.mark.parametrize(("name", "rows"), [("arc_c", 1172), ("mmlu", 14042)])
def test_multiple_choice_accepts_its_own_letters(name, rows):
    problems = load_benchmark(name, str(DATA))
    assert len(problems) == rows
    assert all(p.answer in choice.options(p.question) for p in problems)
    assert {choice.judge(p, f"The answer is ({p.answer}).").kind for p in problems} == {"correct"}
    other = {p.answer: next(o for o in "ABCD1234" if o != p.answer) for p in problems}
    assert {choice.judge(p, rf"\boxed{{{other[p.answer]}}}").kind for p in problems} == {"wrong"}


@needs_data
def test_a_solution_of_gsm8k_is_judged_correct_by_its_last_number():
    lines = (DATA / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()[:100]
    rows = [json.loads(line) for line in lines]
    kinds = [judge(row["answer"], f"The answer is {row['answer']}.").kind for row in rows]
    assert kinds == ["correct"] * 100


@needs_data
def test_ids_carry_the_name_of_the_benchmark():
    problems = load_benchmark("aime24", str(DATA))
    assert problems[0].id == "aime24/aime-2024-I-01"
    assert isinstance(problems[0], Problem)
