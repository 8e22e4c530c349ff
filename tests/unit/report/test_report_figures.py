"""What figures are made of."""

from pathlib import Path

import pytest

from sps.diagnose.read import Evaluation, RunFolder
from sps.report.figures_questions import diversity_table, passk_over_steps, validated
from sps.report.study import Study, Subject


def run(*correct: tuple[int, int], n: int = 4) -> RunFolder:
    """Validations of one question of n samples, as (step, right ones), and one on the test set."""
    found = [Evaluation(f"validation-{s}", "validation", s, n, {"q": c}, {}) for s, c in correct]
    found.append(Evaluation("test", "test", correct[-1][0], n, {"q": n}, {}))
    return RunFolder(Path("made"), "made", evaluations=found)


def study(*subjects: Subject) -> Study:
    return Study("made", list(subjects), [], [], comparison=len(subjects) > 1)


def test_a_validation_counts_where_every_seed_has_it():
    way = validated(Subject("grpo", [run((100, 1), (200, 2), (300, 4)), run((100, 0), (200, 4))]))
    assert list(way) == [100, 200]
    assert [way[s][1][0] for s in way] == pytest.approx([1 / 8, 3 / 4])
    assert [way[s][4][0] for s in way] == pytest.approx([1 / 2, 1.0])


def test_ways_through_training_are_drawn_at_the_largest_k_that_all_have():
    longer, shorter = run((100, 1), (200, 2)), run((100, 1), (200, 2), n=3)
    figures = passk_over_steps(study(Subject("a", [longer]), Subject("b", [shorter])))
    assert [f.id for f in figures] == ["steps-1", "steps-2", "path"]
    a, b = figures[-1].data
    assert (a["name"], b["name"]) == ("a", "b")
    assert a["x"] == pytest.approx([1 / 4, 2 / 4])
    assert b["y"] == pytest.approx([2 / 3, 1.0])
    assert (a["text"], list(a["customdata"])) == (["100", "200"], [100, 200])


def test_one_validation_is_no_way():
    assert passk_over_steps(study(Subject("a", [run((100, 1))]))) == []
    assert passk_over_steps(study(Subject("base"))) == []


def test_diversity_is_of_the_names_that_other_tables_have():
    measures = {"samples": 8, "questions": 2, "distinct_correct": 1.0, "jaccard": None}
    measures |= {"edit": None, "jaccard_correct": None, "edit_correct": None}
    evaluations = [
        ("test", "test", 30), ("test-000010-1", "test", 10), ("aime24", "aime24", None),
        ("test-000030-1.5", "test at T=1.5", 30), ("validation-000020", "validation", 20),
    ]  # fmt: skip
    rows = [{"name": n, "split": s, "step": at, **measures} for n, s, at in evaluations]
    table = diversity_table({"grpo": {"diversity": rows}})
    assert [row[:3] for row in table.rows] == [
        ["grpo", "test", 4],
        ["grpo @10", "test", 4],
        ["grpo", "aime24", 4],
        ["grpo T=1.5", "test", 4],
        ["grpo", "validation @20", 4],
    ]
