"""The frontier of a comparison: paths from validations, and what is shown of them."""

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from sps.commands.frontier import difference_lines, frontier_lines
from sps.diagnose.frontier import validation_paths
from sps.diagnose.read import Evaluation, RunFolder
from sps.diagnose.recorded import listed_runs
from sps.reporting.content import sections
from sps.reporting.figures_frontier import frontier_blocks
from sps.reporting.names import place_names
from sps.reporting.study import Study, Subject
from sps.reporting.words import summary

BASE = {"q1": 1, "q2": 1}  # of 4 samples: Pass@1 1/4, Pass@4 1


def run(*validated, n=4, start=BASE):
    """A run by its validations (step, right samples of q1 and of q2), after the base's."""
    rows = [(0, start), *((step, {"q1": a, "q2": b}) for step, a, b in validated)]
    found = [Evaluation(f"validation-{s:06d}", "validation", s, n, c, {}) for s, c in rows]
    found.append(Evaluation("test", "test", 9, n, {"t": 1}, {}))
    records = [{"kind": "rl", "step": 1}]
    return RunFolder(Path("made"), "made", records=records, evaluations=found)


def study(**runs):
    subjects = [Subject(name, own) for name, own in runs.items()]
    return Study("made", [Subject("base"), *subjects], [], [], comparison=True)


GRPO = [run((10, 2, 1), (20, 4, 0)), run((10, 2, 1), (20, 4, 0), (30, 4, 0))]
SPS = [run((10, 2, 2), (20, 3, 2)), run((10, 2, 2), (20, 3, 1))]


def test_paths_hold_the_steps_that_every_seed_has():
    paths = validation_paths({"grpo": GRPO, "sps": SPS})
    assert paths.steps == {"grpo": [10, 20], "sps": [10, 20]}
    assert paths.base_Q.tolist() == [1, 1]
    assert paths.correct["sps"].tolist() == [[[2, 2], [2, 2]], [[3, 2], [3, 1]]]
    assert (paths.n, paths.questions, paths.left_out) == (4, ["q1", "q2"], [])


def test_methods_that_cannot_be_paired_are_named():
    late, other = [run((10, 1, 1)), run()], [run((10, 1, 1), n=8)] * 2
    strange = [run((10, 1, 1), start={"q1": 1, "q3": 1})] * 2
    for odd in (late, other, SPS[:1]):
        paths = validation_paths({"grpo": GRPO, "odd": odd})
        assert list(paths.correct) == ["grpo"]
        assert [text.partition(":")[0] for text in paths.left_out] == ["odd"]
    assert validation_paths({"strange": strange}) is None  # its base and its path differ, too


@pytest.mark.parametrize(
    ("recipe", "weights", "why"),
    [
        ({"rollout": {"max_new_tokens": 8}}, "", "rollout.max_new_tokens 8, not 20"),
        ({"evaluation": {"top_p": 0.9}}, "", "evaluation.top_p 0.9, not None"),
        ({"model": {"path": "there"}}, "", "from other weights than"),
        ({"model": {"path": None, "base": {"steps": 2}}}, "", "from other weights than"),
        ({}, "one", "from other weights than"),
    ],
)
def test_a_run_from_another_base_is_on_no_path_from_this_one(tmp_path, recipe, weights, why):
    told = {"rollout": {"max_new_tokens": 20}, "model": {"path": None, "base": {"steps": 1}}}
    one, odd, alike = run((10, 2, 1)), run((10, 4, 4)), run((10, 2, 2))
    for name, made, own in (("a", one, {}), ("b", odd, recipe), ("c", alike, {})):
        made.folder, made.recipe = tmp_path / name, told | own
        made.folder.mkdir()
        digest = weights if made is odd else weights and "other"
        (made.folder / "base.sha256").write_text(digest)
    paths = validation_paths({"one": [one], "odd": [odd], "alike": [alike]})
    assert list(paths.correct) == ["one", "alike"]
    (said,) = paths.left_out
    assert said.startswith("odd: begins from ")
    assert why in said


def test_without_a_base_or_with_one_sample_there_is_no_frontier():
    bare = RunFolder(Path("made"), "made", evaluations=run((10, 1, 1)).evaluations[1:])
    assert validation_paths({"a": [bare]}) is None
    assert validation_paths({"a": [run((10, 1, 1), n=1)]}) is None
    assert validation_paths({"a": [], "b": [run()]}) is None
    assert frontier_blocks(study(a=[bare])) == []


def mixing(share, ended):
    """A run with such a `checkpoint.mix` that ended with such a share of the base."""
    made = run((10, 2, 1))
    made.recipe = {"checkpoint": {"mix": share}}
    made.records.append({"kind": "done", "step": 10, "mixed": ended})
    made.evaluations.append(Evaluation("mixed-000010", "mixed", 10, 4, {"q1": 2, "q2": 1}, {}))
    return made


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"fixed": (0.3, 0.3), "auto": ("auto", 0.0)}, False),  # of which none was needed
        ({"fixed": (0.3, 0.3), "auto": ("auto", 0.1)}, True),
        ({"odd": ([0.3], 0.3)}, False),  # a recipe that was edited
    ],
)
def test_of_shares_that_chose_themselves_it_is_said(shares, said):
    blocks = frontier_blocks(study(**{name: [mixing(*how)] for name, how in shares.items()}))
    assert "its weights mixed with the base's" in blocks[0].note
    assert ("was chosen on these questions" in blocks[0].note) == said


def test_record_can_be_read_back_into_its_numbers():
    paths = validation_paths({"grpo": GRPO, "sps": SPS})
    found = json.loads(json.dumps(paths.record(paths.compare())))
    assert found["base"] == {"point": [1 / 4, 1], "correct": "1 1"}
    sps = found["methods"]["sps"]
    assert sps["steps"] == [10, 20]
    assert sps["correct"] == [["2 2", "2 2"], ["3 2", "3 1"]]
    right = np.array([[line.split() for line in at] for at in sps["correct"]], int)
    assert [x for x, _ in sps["points"]] == pytest.approx((right / 4).mean((1, 2)))
    # Both reach 1/2. Up to 3/8 grpo keeps all, from there on to 1/2 it falls by half of Pass@4.
    assert found["range"] == [1 / 4, 1 / 2]
    (gap,) = found["gaps"]
    assert (gap["name"], gap["minus"]) == ("sps", "grpo")
    assert [at[0] for at in gap["at"]] == pytest.approx([0, 0, 1 / 4])


def test_lines_say_the_numbers_and_the_verdict():
    paths = validation_paths({"grpo": GRPO, "sps": SPS, "odd": SPS[:1]})
    said = frontier_lines(paths.record(paths.compare()))
    assert "2 validation questions" in said[0]
    assert said[2].split()[:3] == ["GRPO", "50.0", "37.5"]
    assert said[3].split()[:2] == ["SPS", "56.2"]
    # Half the range, where it is 1/4 on average.
    assert said[4] == "  at equal Pass@1, in points of Pass@4:"
    assert re.fullmatch(r"     SPS against GRPO  \+12.5 \[.*\]  (tied|above)", said[5])
    assert said[6] == "  Left out: odd: not every seed has been validated yet"
    assert max(map(len, said)) <= 80


def test_differences_stand_under_each_other():
    rows = [
        ("SPS against GRPO", 8.34, -60.1, 76.7, "tied"),
        ("x against GRPO", -10, -12, -8, "below"),
    ]
    assert difference_lines(rows) == [
        "SPS against GRPO   +8.3 [-60.1, +76.7]  tied",
        "x against GRPO    -10.0 [-12.0, -8.0]   below",
    ]


def test_without_test_scores_the_report_opens_with_the_verdict_of_the_frontier():
    sentence, _ = summary(study(grpo=GRPO, sps=SPS))
    assert re.match(r"At equal Pass@1, sps .* grpo.* \(?\+12.5 points \[", sentence)


def test_with_test_scores_the_report_opens_with_what_its_table_shows():
    made = study(grpo=GRPO, sps=SPS)
    for subject in made.subjects:
        subject.curve = {1: [0.5, 0.4, 0.6], 8: [0.9, 0.8, 1.0]}
    row = {"a": "grpo", "b": "sps", "delta": [0.0, -0.1, 0.1], "verdict": "tied"}
    made.paired = [row | {"k": k} for k in (1, 8)]
    sentence, table = summary(made)
    assert sentence.startswith("sps against grpo: Pass@8 is tied")
    assert "Pass@8 minus grpo" in table.columns


def test_figure_has_the_paths_the_base_and_names_at_the_ends():
    made = study(grpo=GRPO, sps=SPS, odd=[run((10, 1, 1), n=8)] * 2)
    figure, table = frontier_blocks(made)
    lines = {t["name"]: t for t in figure.data if "name" in t}
    assert list(lines) == ["grpo", "sps", "base"]
    assert lines["sps"]["x"] == pytest.approx([1 / 4, 1 / 2, 9 / 16])
    assert lines["grpo"]["y"] == pytest.approx([1, 1, 1 / 2])
    assert lines["sps"]["customdata"] == ["step 0", "step 10", "step 20"]
    assert (lines["base"]["x"], lines["base"]["y"]) == ([1 / 4], [1])
    assert figure.layout["shapes"][0]["y0"] == 1
    low, high = figure.layout["xaxis"]["range"]
    assert low < 1 / 4
    assert high > 9 / 16
    assert {n["text"]: (n["x"], n["y"]) for n in figure.layout["annotations"]} == {
        "<b>grpo</b>": (lines["grpo"]["x"][-1], lines["grpo"]["y"][-1]),
        "<b>sps</b>": (lines["sps"]["x"][-1], lines["sps"]["y"][-1]),
        "<b>base</b>": (1 / 4, 1),
    }
    assert figure.layout["meta"]["key"] == "a mark every 10 steps, to step 20; bars span 2 seeds"
    assert "tied" in figure.note or "higher Pass@4" in figure.note
    assert [(w, t.partition(":")[0]) for w, t in made.missing] == [("frontier", "odd")]
    rows = {row[0]: row for row in table.rows}
    assert table.columns[4] == "minus grpo"
    assert rows["grpo"][4] is None
    assert rows["sps"][1] == "56.2"
    assert rows["grpo"][2][0] == "37.5"  # Pass@4 is 1, the base's, up to step 10


def tempered(one, step, **of_heats):
    """A run that was validated at other temperatures too: T0_5=(right of q1, right of q2)."""
    for heat, (a, b) in of_heats.items():
        name = f"temperature-{float(heat[1:].replace('_', '.')):g}"
        right = {"q1": a, "q2": b}
        one.evaluations.append(Evaluation(f"{name}-{step:06d}", name, step, 4, right, {}))
    return one


def test_a_path_goes_on_through_temperatures_in_their_order():
    one = tempered(run((10, 2, 1), (20, 2, 2)), 20, T0_5=(3, 2), T2=(1, 1), T0_25=(4, 0))
    tempered(one, 10, T0_5=(4, 4))  # not the end
    steps = validation_paths({"a": [tempered(one, 0, T0_5=(2, 1))]}).steps
    assert steps["a"] == [10, 20, "T=2", 20, "T=0.5", "T=0.25"]
    assert steps["base at other temperatures"] == ["T=0.5"]
    one.recipe = {"evaluation": {"temperature": 0.4}}  # of the points that name none
    assert validation_paths({"a": [one]}).steps["a"] == [
        10,
        20,
        *["T=0.5", "T=2", "T=0.5"],
        20,
        "T=0.25",
    ]


def test_a_seed_without_a_temperature_has_it_left_out_for_all():
    seeds = [tempered(run((10, 2, 1)), 10, T0_5=(3, 1)), run((10, 2, 2))]
    assert validation_paths({"a": seeds}).steps == {"a": [10]}
    strange = tempered(run((10, 2, 1)), 10, Tnan=(3, 1), T0_5=(3, 1))
    strange.evaluations[-2] = Evaluation("temperature-x-000010", "temperature-x", 10, 4, {}, {})
    assert validation_paths({"a": [strange]}).steps == {"a": [10, "T=0.5"]}


def test_what_is_sampled_at_other_temperatures_is_dotted_and_counts():
    plain = run((10, 2, 1), (20, 2, 2))
    one = tempered(tempered(run((10, 2, 1), (20, 2, 2)), 20, T0_5=(3, 3)), 0, T0_5=(2, 1))
    figure, table = frontier_blocks(study(grpo=[plain], sps=[one]))
    drawn = [(t["name"], t["line"]["dash"], t["customdata"]) for t in figure.data if "line" in t]
    assert drawn == [
        ("grpo", "solid", ["step 0", "step 10", "step 20"]),
        ("sps", "solid", ["step 0", "step 10", "step 20"]),
        ("sps", "dot", ["step 20", "T=0.5"]),
        ("base at other temperatures", "dot", ["step 0", "T=0.5"]),
    ]
    heated = [t for t in figure.data if t.get("name") == "sps"][1]
    assert (heated["x"], heated["y"]) == ([1 / 2, 3 / 4], [1, 1])
    assert heated["marker"]["symbol"].endswith("-open")
    assert "through other sampling temperatures (T=0.5)" in figure.note
    assert figure.layout["meta"]["key"] == "a mark every 10 steps, to step 20, then dotted at T=0.5"
    rows = {row[0]: row for row in table.rows}
    assert [rows[name][1] for name in rows] == ["50.0", "75.0", "37.5"]


@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_the_note_is_of_the_lines_that_are_dotted(base, end):
    one = run((10, 2, 1), (20, 2, 2))
    for step, there in ((0, base), (20, end)):
        tempered(one, step, T0_5=(3, 1)) if there else None
    figure, _ = frontier_blocks(study(sps=[one]))
    key = figure.layout["meta"]["key"]
    assert ("Dotted it goes on through" in figure.note) == end == (", then dotted at" in key)
    assert ("as the base does from the star" in figure.note) == (base and end)
    assert ("Dotted is the base at" in figure.note) == (base and not end) == (", dotted at" in key)


def test_many_temperatures_fit_below_the_figure():
    heats = {f"T{heat}": (1, 1) for heat in ("0_1", "0_2", "0_4", "0_6", "0_8", "1_2", "1_4")}
    figure, _ = frontier_blocks(study(sps=[tempered(run((10, 2, 1)), 10, **heats)]))
    assert figure.layout["meta"]["key"].endswith("to step 10, then dotted at T=1.4 to T=0.1")
    assert "(T=1.4, T=1.2, T=0.8, T=0.6, T=0.4, T=0.2, T=0.1)" in figure.note


def test_of_a_run_listed_twice_temperatures_are_no_steps(tmp_path):
    right, heats = {"0": [1, 1], "10": [2, 1], "20": [3, 1]}, {"20": {"0.5": [3, 2], "2": [1, 1]}}
    short = {"method": "a", "seed": 0, "n": 4, "right": {"0": [1, 1], "10": [2, 1]}}
    lines = [short | {"tempered": {"10": heats["20"]}}, short | {"right": right}]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert validation_paths(listed_runs(tmp_path / "runs.jsonl")).steps == {"a": [10, 20]}


def test_of_a_path_without_temperatures_that_others_have_it_is_said():
    with_heat = tempered(run((10, 2, 1)), 10, T0_5=(3, 1), T2=(1, 1))
    chosen = tempered(tempered(run((10, 2, 1), (20, 1, 1)), 10, T0_5=(3, 1)), 0, T0_5=(2, 1))
    paths = validation_paths({"a": [with_heat], "b": [chosen]})  # b ends with step 10
    assert paths.steps["b"] == [10, 20]
    assert [text.partition(", as others")[0] for text in paths.left_out] == [
        "b: its path has no T=2, T=0.5",
        "base at other temperatures: its path has no T=2",
    ]
    assert validation_paths({"a": [with_heat], "c": [with_heat]}).left_out == []
    assert validation_paths({"b": [chosen]}).left_out[0].startswith("b: its path has no T=0.5, as")


def test_methods_validated_at_another_temperature_are_left_out():
    one, other = (tempered(run((10, 2, 1)), 0, T0_5=(2, 1)) for _ in range(2))
    one.recipe, other.recipe = ({"evaluation": {"temperature": heat}} for heat in (1, 0.5))
    paths = validation_paths({"a": [one], "b": [other]})
    assert list(paths.correct) == ["a", "base at other temperatures"]
    assert paths.left_out[0] == "b: not validated at the base's sampling temperature, 1"
    paths = validation_paths({"b": [other], "a": [one]})
    assert (list(paths.correct), paths.temperature) == (["b"], 0.5)
    assert paths.left_out == ["a: not validated at the base's sampling temperature, 0.5"]


@pytest.mark.parametrize(("right", "short"), [((1, 0), True), ((4, 2), False)])
def test_the_range_of_all_is_that_of_the_methods(right, short):
    one = tempered(tempered(run((10, 2, 1), (20, 2, 2)), 20, T0_5=(3, 3)), 0, T0_5=right)
    paths = validation_paths({"grpo": [one], "sps": [one]})
    record = paths.record(paths.compare())
    assert record["range"] == [1 / 4, 3 / 4]
    said = frontier_lines(record | {"k": 128})  # as wide as it gets
    assert any("the base counts as 0" in line for line in said) == short
    assert any(line.startswith("  base, other T ") for line in said)
    assert max(map(len, said)) <= 80
    _, table = frontier_blocks(study(grpo=[one], sps=[one]))
    assert ("counts as 0 where it does not reach" in table.note) == short


def test_bars_span_the_seeds():
    figure, _ = frontier_blocks(study(sps=SPS))
    (line,) = [t for t in figure.data if t["name"] == "sps"]
    # At step 20 one seed has 3 and 2 of 4 right, the other 3 and 1: Pass@1 is 5/8 and 1/2, and
    # Pass@4 is 1 in both. At the base and at step 10 the seeds agree.
    assert line["error_x"]["array"] == pytest.approx([0, 0, 1 / 16])
    assert line["error_x"]["arrayminus"] == pytest.approx([0, 0, 1 / 16])
    assert line["error_y"]["array"] == line["error_y"]["arrayminus"] == [0, 0, 0]


def test_one_method_has_nothing_to_subtract_and_one_seed_no_bars():
    figure, table = frontier_blocks(study(a=[run((10, 3, 0), (30, 2, 2))]))
    assert len(table.columns) == len(table.rows[0]) == 4
    # After 10 steps, then after 20 more.
    assert figure.layout["meta"]["key"] == "a mark at each validation, to step 30"
    assert "Bars" not in figure.note


def test_names_lie_off_each_other_and_off_lines():
    # Three paths that end in one point, another that passes right of it.
    end = (0.5, 0.9)
    lines = {name: [(0.1, 0.9), end] for name in ("memory", "memory + SPS", "memory without RL")}
    lines["GRPO"] = [(0.1, 0.9), (0.52, 0.95), (0.52, 0.2)]
    spots = place_names(lines, [], [[0.0, 1.0], [0.0, 1.0]])
    boxes = []
    for name, spot in spots.items():
        x, y = lines[name][-1]
        wide = 7.5 * len(name)
        left = 670 * x + spot.right - {"left": 0, "center": wide / 2, "right": wide}[spot.anchor]
        middle = 390 * (1 - y) + spot.down
        boxes.append((left, middle - 6, left + wide, middle + 6))
        assert 0 < left < left + wide < 670 + 5
        if name != "GRPO":
            assert not (left < 670 * 0.52 < left + wide and middle > 390 * 0.05), name
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_names_are_text_and_not_markup():
    figure, _ = frontier_blocks(study(**{"<b>x": [run((10, 2, 2))]}))
    assert "<b>&lt;b&gt;x</b>" in [note["text"] for note in figure.layout["annotations"]]


def test_the_report_begins_with_the_frontier():
    first = sections(study(grpo=GRPO, sps=SPS), {})[0]
    assert [block.id for block in first.present()][:2] == ["frontier", "frontier-table"]


STUCK = [run((10, 1, 1), (20, 0, 1))] * 2  # never above the base's Pass@1 of 1/4


def test_methods_that_share_no_range_get_no_verdict_and_no_numbers():
    paths = validation_paths({"grpo": GRPO, "sps": SPS, "stuck": STUCK})
    said = frontier_lines(paths.record(paths.compare()))
    assert re.fullmatch(r"      SPS against GRPO  \+12.5 \[.*\]  (tied|above)", said[6])
    assert said[7] == "    stuck against GRPO no shared range of Pass@1"
    assert len(said) == 8  # one interval is not several that hold at the same time
    figure, table = frontier_blocks(study(grpo=GRPO, sps=SPS, stuck=STUCK))
    sentence = "stuck and grpo have no shared range of Pass@1: one of them is never above the base"
    assert sentence in figure.note
    rows = {row[0]: row for row in table.rows}
    assert rows["stuck"][4:] == [None, "no shared range", None, None, None]
    assert rows["sps"][4][0] == "12.5"
    # The headline is of those that can be compared, as long as there are any.
    assert summary(study(sps=SPS, stuck=STUCK, grpo=GRPO))[0].startswith("At equal Pass@1, grpo")
    assert summary(study(grpo=GRPO, stuck=STUCK))[0].startswith(sentence)
