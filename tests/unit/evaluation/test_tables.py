"""Tables and progress of an evaluation, number by number."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.progress import BarColumn, TextColumn

from sps.algo.passk import mean_interval, paired
from sps.evaluation import progress
from sps.evaluation.compare import compare, compare_markdown
from sps.evaluation.evaluate import Tally
from sps.evaluation.progress import (
    BarProgress,
    NoProgress,
    PlainProgress,
    describe,
    make_progress,
)
from sps.evaluation.scores import count_scores
from sps.evaluation.tables import latex, markdown, question_table, results, write_results

TEN = [f"q{i}" for i in range(10)]


def row(question, sample=0, verdict="wrong", answer="", length=4, logp=-2.0):
    """A judged sample."""
    made = {"problem_id": question, "sample": sample, "verdict": verdict, "detail": "d"}
    return made | {"answer": answer, "length": length, "sum_logprob": logp}


def one_each(verdict, right=0):
    """Ten questions, one sample each; the first so many are right."""
    rows = [row(q, verdict="correct" if i < right else verdict) for i, q in enumerate(TEN)]
    return {"b_1": count_scores(TEN, 1, rows, None)}, {"b_1": rows}


def test_a_table_is_in_per_cent_with_intervals():
    none, _ = one_each("timeout")
    lines = markdown("m", none).splitlines()
    most = f"{mean_interval(np.zeros(10))[2]:.1%}"[:-1]  # of 0 of 10
    cell = f"0.0 [0.0, {most}]"
    # All samples were lost to the clock, and all questions are in the bucket of none.
    assert f"| b_1 | 10 | {cell} | {cell} | timeout 100.0 % |" in lines
    assert "| b_1 | 10 | 0 | 0 | 0 | 0 | 0 |" in lines
    cell = f"$0.0_{{[0.0,\\,{most}]}}$"
    assert rf"b\_1 & {cell} & {cell} \\" in latex(none).splitlines()
    right, _ = one_each("correct")
    cell = f"100.0 [{mean_interval(np.ones(10))[1]:.1%}"[:-1] + ", 100.0]"
    assert f"| b_1 | 10 | {cell} | {cell} | none |" in markdown("m", right)


def test_solutions_have_a_table_where_they_are_told_apart():
    rows = [row("q", 0, "correct"), row("q", 1, "correct"), row("r", 0, "correct"), row("r", 1)]
    told = count_scores(["q", "r"], 2, rows, None, [(1, 1), (1,)])
    plain, both = count_scores(["q", "r"], 2, rows, None), {"b": told}
    lines = markdown("m", both | {"c": plain}).splitlines()
    start = lines.index(
        "| solutions | distinct right a question | PCMD, % | questions with two right |"
    )
    assert lines[start + 2].startswith("| b | 1.50 [")  # (2 + 1) / 2
    assert "| 100.0 [" in lines[start + 2]
    assert lines[start + 2].endswith("| 1 |")
    assert lines[start + 3] == ""
    assert "solutions" not in markdown("m", {"c": plain})
    found = results({}, both | {"c": plain})["benchmarks"]
    assert found["b"]["solutions"] == {"q": [1, 1], "r": [1]}
    assert "distinct" not in found["c"]


def test_a_comparison_is_in_points_with_the_p_value(tmp_path):
    for name, right in (("a", 1), ("b", 9)):
        (tmp_path / name).mkdir()
        write_results(tmp_path / name, {"model": name}, *one_each("wrong", right))
    found = compare(tmp_path / "a", tmp_path / "b" / "results.json")
    said = compare_markdown(found).splitlines()
    one, nine = (np.arange(10) < right for right in (1, 9))
    gap = paired(one * 1.0, nine * 1.0)
    low, high = (f"{x:+.1%}"[:-1] for x in gap.delta[1:])
    want = f"| b_1 | Avg | 10.0 | 90.0 | +80.0 [{low}, {high}] | {gap.p:.3f} | better |"
    assert said[:2] == ["A: a  ", "B: b"]
    assert said[5] == want
    (rows,) = found["benchmarks"].values()
    assert rows[0]["a"] == pytest.approx(mean_interval(one * 1.0))
    assert rows[0]["b"] == pytest.approx(mean_interval(nine * 1.0))


def test_evaluations_of_other_sizes_are_compared_up_to_the_smaller(tmp_path):
    for name, n in (("a", 3), ("b", 6)):
        rows = [row(q, i, "correct" if i < 2 else "wrong") for q in TEN for i in range(n)]
        (tmp_path / name).mkdir()
        write_results(
            tmp_path / name, {"model": name}, {"t": count_scores(TEN, n, rows, None)}, {"t": rows}
        )
    for first, second in ("ab", "ba"):
        found = compare(tmp_path / first, tmp_path / second)["benchmarks"]["t"]
        assert [r["measure"] for r in found] == ["Avg", "Pass@3"]
    # Of b less of a: 2 of 6 are right, three are drawn without any with 4/6 * 3/5 * 2/4.
    assert [r["delta"][0] for r in found] == pytest.approx([2 / 3 - 2 / 6, 1 - (1 - 1 / 5)])


def test_a_question_shows_its_commonest_answer_cut_to_forty_characters():
    rows = [
        row("q", 0, "correct", "x | " + 50 * "y"),
        row("q", 1, "wrong", "x | " + 50 * "y"),
        row("q", 2, "wrong", "3"),
        row("q", 3, "timeout", ""),
        row("r", 0, "unparsed", ""),
        row("r", 1, "timeout", "b\n c"),
        row("r", 2, "unparsed", "a"),
        row("r", 3, "wrong", ""),
    ]
    table = question_table({"b": count_scores(["q", "r"], 4, rows, None)}, {"b": rows})
    cut = "x \\| " + 36 * "y"
    assert table.splitlines()[2:] == [
        f"| q | 1/4 | wrong 2, timeout 1 | `{cut}` |",
        "| r | 0/4 | unparsed 2, timeout 1, wrong 1 | `a` |",  # of equals the first by alphabet
    ]


def test_a_question_has_the_answers_of_its_own_benchmark():
    rows = {name: [row("q", answer=name)] for name in ("one", "two")}
    scores = {name: count_scores(["q"], 1, own, None) for name, own in rows.items()}
    said = question_table(scores, rows)
    assert said.splitlines()[2:] == [
        "| q | 0/1 | wrong 1 | `one` |",
        "| q | 0/1 | wrong 1 | `two` |",
    ]


def test_means_are_over_the_samples_that_have_them():
    rows = [
        row("q", 0, length=4, logp=-1.0),
        row("q", 1, length=2, logp=-0.00004),
        row("q", 2, length=None, logp=None),
        row("q", 3, length=9, logp=None),
    ]
    scores = count_scores(["q"], 4, rows, None)
    assert scores.mean_length == 5  # (4 + 2 + 9) / 3
    assert scores.mean_logprob == pytest.approx(-1.00004 / 6)
    found = results({"model": "m"}, {"b": scores})["benchmarks"]["b"]
    assert found["mean_logprob"] == -0.1667
    nothing = count_scores(["q"], 1, [row("q", length=None, logp=None)], None)
    assert (nothing.mean_length, nothing.mean_logprob) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(1.0, "0:09"), (6.55, "0:59"), (6.61, "0:59"), (6.7, "1:00"), (400.0, "1:00:00")],
)
def test_time_left_is_a_clock(seconds, left):
    # One of ten samples took so long: nine times that is left.
    said = describe(Tally(total=10, done=1, tokens=200), seconds)
    assert said.endswith(f", {200 / seconds:.0f} tokens/s, {left} left")


def test_nothing_drawn_yet_has_no_speed():
    said = "3/10 samples, 33.3 % correct, 1 questions solved"
    assert describe(Tally(total=10, done=3, stored=3, correct=1, solved=1), 5.0) == said
    assert describe(Tally(total=10), 5.0) == "0/10 samples, 0.0 % correct, 0 questions solved"


def test_a_bar_shows_what_is_done(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    bar = BarProgress("aime24")
    (task,) = bar.bar.tasks
    assert (task.completed, task.total, bar.bar.live.is_started) == (0, None, True)
    now, tally = 108.0, Tally(total=100, done=30, stored=10, correct=15, tokens=400, solved=7)
    bar(tally)
    assert (task.completed, task.total) == (30, 100)
    assert task.description == describe(tally, 8.0)
    texts = [c for c in bar.bar.columns if isinstance(c, TextColumn)]
    assert [c.render(task).plain for c in texts] == ["aime24", task.description]
    assert isinstance(bar.bar.columns[1], BarColumn)
    bar.close()
    assert not bar.bar.live.is_started


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_for_those_who_look_and_nothing_for_the_other_ranks(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    assert isinstance(make_progress("x"), PlainProgress)  # what is printed goes elsewhere
    monkeypatch.setattr(progress.sys, "stdout", Terminal())
    shown = make_progress("x")
    shown.close()
    assert isinstance(shown, BarProgress)
    assert isinstance(make_progress("x", loud=False), NoProgress)


def test_plain_progress_speaks_every_ten_seconds(monkeypatch):
    now = iter([100.0, 100.0, 109.9, 110.0, 119.0, 120.5, 121.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    out = io.StringIO()
    watch = PlainProgress("x", out)
    for done in range(6):
        watch(Tally(total=10, done=done))
    lines = out.getvalue().splitlines()
    assert [line.split("/")[0] for line in lines] == ["x: 0", "x: 2", "x: 4"]
    assert lines[1].endswith("0 questions solved, 0:40 left")  # 2 of 10 in 10 s
