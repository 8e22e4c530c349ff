"""What figures are made of."""

from pathlib import Path

import pytest

from sps.diagnose.read import Evaluation, RunFolder
from sps.report.figures_questions import diversity_table, passk_over_steps, validated
from sps.report.figures_squeeze import greedy_figure
from sps.report.figures_training import cost_blocks
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
    assert [f.id for f in figures] == ["steps-1", "steps-2"]
    _, a, _, b = figures[-1].data  # each after its band
    assert (a["name"], b["name"]) == ("a", "b")
    assert a["x"] == [100, 200]
    # Pass@2 of 2 right ones among 3 is certain; of 1 it is 1 - C(2, 2) / C(3, 2).
    assert b["y"] == pytest.approx([2 / 3, 1.0])


def test_one_validation_is_no_way():
    assert passk_over_steps(study(Subject("a", [run((100, 1))]))) == []
    assert passk_over_steps(study(Subject("base"))) == []


def greedy(*rows: tuple[str, int, float]) -> dict:
    """A diagnosis with the greedy log-probability of each split and step."""
    return {"greedy": [{"split": s, "step": at, "greedy_logprob": v} for s, at, v in rows]}


def subject(name: str, seed: str = "seed-0") -> Subject:
    return Subject(name, [RunFolder(Path("compared") / name / seed, name)])


def test_greedy_figure_names_its_questions_and_its_only_method():
    runs = study(subject("grpo"))
    rows = ("validation", 100, -3.0), ("validation", 200, -2.0), ("test", 200, -1.0)
    figure = greedy_figure(runs, {"grpo": greedy(*rows)})
    assert "the validation questions" in figure.note
    assert "base" not in figure.note
    assert figure.layout["showlegend"]
    assert [(t["name"], t["x"], t["y"]) for t in figure.data] == [
        ("grpo", [100, 200], [-3.0, -2.0])
    ]
    assert greedy_figure(runs, {"grpo": greedy(*rows[1:])}) is None  # a point of each


def test_greedy_figure_without_validation_is_of_the_test_set_and_begins_with_the_base():
    runs = study(subject("base", "eval"), subject("grpo"), subject("sps"))
    found = {
        "base": greedy(("test", 0, -5.0)),
        "grpo": greedy(("test", 10, -4.0), ("test", 30, -3.0), ("test at T=1.5", 30, -3.5)),
        "sps": greedy(("test", 30, -4.5)),
    }
    figure = greedy_figure(runs, found)
    assert "the test questions" in figure.note
    assert figure.note.endswith("Step 0 is the base.")
    ways = {t["name"]: (t["x"], t["y"]) for t in figure.data}
    assert ways == {"grpo": ([0, 10, 30], [-5.0, -4.0, -3.0]), "sps": ([0, 30], [-5.0, -4.5])}
    other = study(subject("base", "eval"), Subject("sps", [RunFolder(Path("else/sps/x"), "sps")]))
    assert greedy_figure(other, found) is None  # the base of another comparison


def test_greedy_figure_shows_what_checkpoints_were_selected_by():
    figure = greedy_figure(
        study(subject("a")), {"a": greedy(("select", 1, -2.0), ("select", 2, -1.0))}
    )
    assert "the test questions" in figure.note
    assert figure.data[0]["x"] == [1, 2]


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


def test_cost_does_not_call_untimed_what_has_bars_of_its_own():
    records = [
        {"kind": "rl", "step": 1, "time": 10.0, "seconds/update": 1.0},
        {"kind": "eval", "step": 1, "time": 20.0, "seconds/evaluate": 2.0},
        {"kind": "checkpoint", "step": 1, "time": 30.0, "seconds/save": 3.0},
    ]
    figure, _ = cost_blocks(study(Subject("a", [RunFolder(Path("a"), "a", records=records)])))
    bars = {t["name"]: t["x"] for t in figure.data}
    # From 9 (10 less the first second) to 30 there are 21 s; 6 of them are timed.
    assert bars == {"RL update": [1.0], "evaluate": [2.0], "checkpoint": [3.0], "not timed": [15.0]}
    left = figure.note.partition("'not timed'")[2]
    assert "meter" in left
    assert not any(word in left for word in ("evaluation", "checkpoint"))
