"""The sentences, the colours, and the cells of tables."""

from pathlib import Path

import pytest

from sps.diagnose.read import RunFolder
from sps.report.blocks import Table, clean, percent, smooth
from sps.report.figures_results import ablation_figures, ablation_table, frontier, paired_table
from sps.report.markup import table
from sps.report.study import Study, Subject
from sps.report.style import LIGHT, marks, resolve
from sps.report.words import headline


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


def test_headline_says_what_the_pairs_say():
    assert headline(_study(), {}) == [
        "grpo raised Pass@1 from 10.0 to 20.0 % and lost 10.0 points of Pass@64 [-15.0, -5.0].",
        "sps raised Pass@1 from 10.0 to 18.0 % and kept Pass@64 as far as can be told "
        "(+1.0 points [-2.0, 4.0]).",
        "Against grpo, sps is ahead on Pass@64 by 11.0 points [7.0, 15.0] and ties on Pass@1 "
        "(-2.0 points [-4.0, 0.0]).",
    ]


def test_headline_without_scores_claims_nothing():
    assert "no scores" in headline(Study("x", [], [], [], comparison=True), {})[0]


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


def test_ablation_needs_two_sizes():
    study = _study()
    row = {"method": "sps", "keep": 3, "n": 8, "irl_lr": 3e-4, "pass_at_k": {"1": [0.5, 0.4, 0.6]}}
    study.ablation = [row]
    assert ablation_table(study) is None
    assert ablation_figures(study) == []
    study.subjects += [Subject("sps k=1", study.subjects[2].runs, study.subjects[2].curve)]
    study.ablation = [row | {"method": "sps k=1", "keep": 1}, row]
    found = ablation_table(study)
    assert found.rows[0] == ["sps k=1", 1, 8, "0.0003", ("50.0", "40.0", "60.0")]
    (figure,) = ablation_figures(study)
    assert [(t["name"], t["x"], t["y"]) for t in figure.data] == [
        ("sps k=1", [1], [0.5]),
        ("sps", [3], [0.5]),
    ]
    assert figure.data[0]["error_y"]["array"] == pytest.approx([0.1])


def test_frontier_joins_a_run_only_to_other_uses_of_it():
    study = _study()
    study.subjects += [Subject("grpo@9", [], study.subjects[1].curve)]
    study.subjects += [Subject("sps 1e-3", study.subjects[2].runs, study.subjects[2].curve)]
    links = [t for t in frontier(study).data if t["mode"] == "lines"]
    assert len(links) == 1
    assert links[0]["line"]["color"] == "@blue/0.55"


def test_frontier_needs_two_methods():
    study = _study()
    assert frontier(study) is not None
    study.subjects = study.subjects[:1]
    assert frontier(study) is None


def test_variants_share_a_colour_and_differ_in_symbol():
    found = marks(["base", "grpo", "sps 3e-4", "sps 1e-3", "grpo@100", "mine", "mine too", "yours"])
    assert found["grpo"].colour == found["grpo@100"].colour == "blue"
    assert found["grpo"].symbol != found["grpo@100"].symbol
    assert found["sps 3e-4"].dash != found["sps 1e-3"].dash
    assert (found["sps 3e-4"].shade, found["sps 1e-3"].shade) == (1.0, 0.7)
    assert found["mine"].colour == found["mine too"].colour != found["yours"].colour


def test_colours_are_resolved_by_name_and_strength():
    assert resolve({"a": ["@blue", "@blue/0.5", "@nothing", "x@y"]}, LIGHT) == {
        "a": ["#2b5f9e", "rgba(43,95,158,0.5)", "@nothing", "x@y"]
    }


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
