"""The sentences, the colours, and the cells of tables."""

from pathlib import Path

import pytest

from sps.diagnose.read import Evaluation, RunFolder
from sps.reporting.blocks import Table, clean, percent, smooth
from sps.reporting.figures_results import diversity_table, paired_table, pass_curves, pass_table
from sps.reporting.markup import table
from sps.reporting.page import _facts
from sps.reporting.study import Study, Subject, spell
from sps.reporting.style import marks, spelled
from sps.reporting.words import summary


def _pair(a, b, k, delta, verdict):
    return {"a": a, "b": b, "k": k, "delta": delta, "verdict": verdict, "p": 0.01}


def _study() -> Study:
    curves = {
        "base": {1: [0.10, 0.08, 0.12], 64: [0.60, 0.5, 0.7]},
        "grpo": {1: [0.20, 0.18, 0.22], 64: [0.50, 0.4, 0.6]},
        "sps": {1: [0.18, 0.16, 0.2], 64: [0.61, 0.5, 0.7]},
    }
    run = RunFolder(Path("run"), "run")
    subjects = [Subject(n, [run] if n != "base" else [], c) for n, c in curves.items()]
    pairs = [
        _pair("base", "grpo", 1, [0.1, 0.08, 0.12], "better"),
        _pair("base", "grpo", 64, [-0.1, -0.15, -0.05], "worse"),
        _pair("base", "sps", 1, [0.08, 0.05, 0.11], "better"),
        _pair("base", "sps", 64, [0.01, -0.02, 0.04], "tied"),
        _pair("grpo", "sps", 1, [-0.02, -0.04, 0.0], "tied"),
        _pair("grpo", "sps", 64, [0.11, 0.07, 0.15], "better"),
    ]
    return Study("x", subjects, pairs, [], comparison=True)


def test_summary_is_one_sentence_of_the_pairs_and_a_row_a_method():
    sentence, table = summary(_study())
    assert sentence == (
        "sps against grpo: Pass@64 is 11.0 points higher [7.0, 15.0], "
        "Pass@1 is tied (-2.0 points [-4.0, 0.0])."
    )
    assert table.columns == [
        "method",
        "Pass@1",
        "Pass@64",
        "Pass@1 minus grpo",
        "Pass@64 minus grpo",
    ]
    assert [row[0] for row in table.rows] == ["base", "grpo", "sps"]
    assert table.rows[2][3:] == [("-2.0", "-4.0", "0.0"), ("11.0", "7.0", "15.0")]
    assert table.rows[1][3:] == [None, None]


def test_summary_of_several_methods_says_that_it_names_the_best():
    study = _study()
    study.subjects.append(Subject("dapo", study.subjects[1].runs, study.subjects[1].curve))
    study.paired += [_pair("grpo", "dapo", k, [0.2, 0.1, 0.3], "better") for k in (1, 64)]
    sentence, _ = summary(study)
    assert sentence.startswith(
        "dapo (the highest Pass@64 of 2 methods other than grpo) against grpo: Pass@64 is 20.0"
    )


def test_summary_of_methods_alike_in_pass_at_k_names_the_one_with_more_pass_at_1():
    study = _study()
    study.subjects.append(Subject("dapo", study.subjects[1].runs, study.subjects[1].curve))
    study.paired.append(_pair("grpo", "dapo", 64, [0.105, 0.07, 0.14], "better"))  # sps: 0.11
    study.paired.append(_pair("grpo", "dapo", 1, [0.03, 0.01, 0.05], "better"))  # sps: -0.02
    assert summary(study)[0].startswith(
        "dapo (the highest Pass@64 of 2 methods other than grpo, and of 2 within a point the "
        "highest Pass@1) against grpo: Pass@64 is 10.5"
    )
    study.paired[-2]["delta"][0] = 0.09  # two points below
    assert summary(study)[0].startswith("sps (the highest Pass@64 of 2 methods other than grpo) ")


def test_two_seeds_are_a_reason_for_jumping_intervals():
    study = _study()
    assert "two seeds" not in pass_table(study).note + pass_curves(study).note
    study.subjects[1].counts = [({"q": 1}, 4)] * 2
    assert "rests on a single difference" in pass_table(study).note
    assert "rests on a single difference" in pass_curves(study).note


def test_methods_are_counted_without_the_base_and_the_task_is_the_users_file():
    study = _study()
    run = study.subjects[1].runs[0]
    run.recipe = {"task": {"type": "python", "path": "there/my_task.py"}}
    facts = dict(_facts(study))
    assert facts["methods"] == "2 and the base"
    assert facts["task"] == "my_task.py"
    run.recipe = {"task": {"type": "countdown"}}
    assert dict(_facts(study))["task"] == "countdown"


def test_summary_of_one_method_is_against_the_base():
    study = _study()
    study.subjects, study.paired = study.subjects[:2], study.paired[:2]
    assert summary(study)[0] == (
        "grpo against base: Pass@64 is 10.0 points lower [-15.0, -5.0], "
        "Pass@1 is 10.0 points higher [8.0, 12.0]."
    )


def test_summary_without_scores_claims_nothing():
    sentence, table = summary(Study("x", [], [], [], comparison=True))
    assert "no scores" in sentence
    assert table is None


def test_summary_of_a_run_sets_its_first_validation_beside_its_last():
    def at(step, right, solutions, greedy):
        more = {"greedy_logprob": greedy}
        return Evaluation(f"v{step}", "validation", step, 2, {"q": right}, more, (solutions,))

    records = [{"kind": "rl", "step": s, "entropy": e} for s, e in ((1, 0.9), (2, 0.5))]
    evaluations = [at(0, 1, (1,), -3.0), at(2, 2, (1, 1), -2.0)]
    run = RunFolder(Path("r"), "r", records=records, evaluations=evaluations)
    curve = {1: [0.5, 0.4, 0.6], 2: [0.9, 0.8, 1.0]}
    subject = Subject("GRPO", [run], curve, [({"q": 1, "r": 1}, 2)])
    sentence, table = summary(Study("r", [subject], [], [], comparison=False))
    assert sentence == (
        "GRPO solves 50.0 % [40.0, 60.0] of 2 test questions with one sample, "
        "90.0 % [80.0, 100.0] with 2."
    )
    assert table.columns[1:] == ["step 0", "step 2"]
    rows = {row[0]: [c[0] if isinstance(c, tuple) else c for c in row[1:]] for row in table.rows}
    assert rows == {
        "Pass@1, %": ["50.0", "100.0"],
        "Pass@2, %": ["100.0", "100.0"],
        "distinct right solutions a question": ["1.00", "2.00"],
        "PCMD, %": [None, "100.0"],
        "log p(greedy answer), nats": ["-3.00", "-2.00"],
        "token entropy, nats": ["0.90", "0.50"],
    }


def test_methods_are_called_as_people_write_them():
    names = ["grpo", "SPS keep=2", "grpo@100", "dr_grpo", "my-dapo_2", "sparse", "base", "maxrl"]
    assert [spelled(name) for name in names] == [
        "GRPO", "SPS keep=2", "GRPO@100", "Dr. GRPO", "my-DAPO 2", "sparse", "base", "MaxRL",
    ]  # fmt: skip
    names = [
        "memory_sps",
        "memory_no_rl",
        "sps type=low_kl",
        "sps_paper_lr @10",
        "my_task",
        "kl_cov",
    ]
    assert [spelled(name) for name in names] == [
        "memory + SPS", "memory without RL", "SPS type=low_kl", "SPS paper lr @10", "my_task",
        "KL-Cov",
    ]  # fmt: skip
    study = spell(_study())
    assert [s.name for s in study.subjects] == ["base", "GRPO", "SPS"]
    assert {(p["a"], p["b"]) for p in study.paired} == {
        ("base", "GRPO"), ("base", "SPS"), ("GRPO", "SPS"),
    }  # fmt: skip
    both = Study("x", [Subject("grpo"), Subject("GRPO")], [], [], comparison=True)
    assert [s.name for s in spell(both).subjects] == ["grpo", "GRPO"]


def test_diversity_table_has_what_each_method_tells():
    study = _study()
    assert diversity_table(study) is None
    study.subjects[1].facts = {"distinct": [1.5, 1, 2], "pcmd": [0.5, 0.4, 0.6]}
    study.subjects[1].facts |= {"pcmd_questions": 7, "greedy_logprob": -3.0}
    study.subjects[2].facts = {"distinct": [0.5, 0, 1], "pcmd": None, "pcmd_questions": 0}
    rows = diversity_table(study).rows
    assert rows[0] == ["base", None, None, None, None, None]
    assert rows[1] == ["grpo", ("1.50", "1.00", "2.00"), ("50.0", "40.0", "60.0"), 7, "-3.00", None]
    assert rows[2][1:4] == [("0.50", "0.00", "1.00"), None, 0]


def test_paired_table_has_a_row_for_each_pair_of_methods():
    found = paired_table(_study())
    assert found.columns == [
        "method",
        "minus",
        "k = 1",
        "k = 64",
        "at k = 1",
        "p",
        "at k = 64",
        "p",
    ]
    assert found.rows[0][:4] == [
        "grpo",
        "base",
        ("10.0", "8.0", "12.0"),
        ("-10.0", "-15.0", "-5.0"),
    ]
    assert len(found.rows) == 3


def test_variants_share_a_colour_and_differ_in_symbol():
    found = marks(["base", "grpo", "sps 3e-4", "sps 1e-3", "grpo@100", "mine", "mine too", "yours"])
    assert found["grpo"].colour == found["grpo@100"].colour == "blue"
    assert found["grpo"].symbol != found["grpo@100"].symbol
    assert found["sps 3e-4"].dash != found["sps 1e-3"].dash
    assert (found["sps 3e-4"].shade, found["sps 1e-3"].shade) == (1.0, 0.7)
    assert found["mine"].colour == found["mine too"].colour != found["yours"].colour
    memory = marks(["SPS", "memory", "memory + SPS", "memory + SPS @100", "memory without RL"])
    assert len({mark.colour for mark in memory.values()}) == 4
    assert memory["memory + SPS"].colour == memory["memory + SPS @100"].colour


def test_smooth_skips_what_is_not_there():
    assert smooth([1.0, None, 3.0], 3) == [1.0, 2.0, 3.0]
    assert smooth([float("nan")], 3) == [None]


def test_numbers_that_json_cannot_hold_become_nothing():
    assert clean({"a": [float("inf"), 1.5]}) == {"a": [None, 1.5]}


def test_table_keeps_interval_ends_for_copying():
    html = table(Table("t", "T", "", ["m", "v"], [["<a>", percent([0.5, 0.25, 0.75])]]))
    assert '<td data-low="25.0" data-high="75.0"><span>50.0</span>' in html
    assert '<td class="words">&lt;a&gt;</td>' in html


@pytest.mark.parametrize("rows", [16, 17])
def test_long_tables_hide_their_end_behind_a_button(rows):
    html = table(Table("t", "T", "", ["m"], [["x"]] * rows))
    assert html.count("<tr class=more>") == max(0, rows - 16)
    assert ("Show all" in html) is (rows > 16)
