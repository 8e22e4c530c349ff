"""What figures are made of."""

from pathlib import Path

import pytest

from sps.diagnose.read import Evaluation, RunFolder
from sps.reporting.figures_questions import bucket_figure, diversity_over_steps, passk_over_steps
from sps.reporting.figures_results import paired_forests
from sps.reporting.figures_squeeze import greedy_figure, moved_figure
from sps.reporting.figures_training import (
    cost_table,
    memory_figure,
    meter_figure,
    training_curves,
)
from sps.reporting.plane import Line, draw_lines
from sps.reporting.scales import make_scale
from sps.reporting.study import Study, Subject
from sps.reporting.style import marks


def run(*correct: tuple[int, int], n: int = 4) -> RunFolder:
    """Validations of one question of n samples, as (step, right ones), and one on the test set."""
    found = [Evaluation(f"validation-{s}", "validation", s, n, {"q": c}, {}) for s, c in correct]
    found.append(Evaluation("test", "test", correct[-1][0], n, {"q": n}, {}))
    return RunFolder(Path("made"), "made", evaluations=found)


def study(*subjects: Subject) -> Study:
    return Study("made", list(subjects), [], [], comparison=len(subjects) > 1)


def test_a_validation_counts_where_every_seed_has_it():
    seeds = [run((100, 1), (200, 2), (300, 4)), run((100, 0), (200, 4))]
    one, top = passk_over_steps(study(Subject("grpo", seeds)))
    assert one.data[1]["x"] == [100, 200]
    assert one.data[1]["y"] == pytest.approx([1 / 8, 3 / 4])
    assert top.data[1]["y"] == pytest.approx([1 / 2, 1.0])


def test_pass_at_k_over_training_is_drawn_at_the_largest_k_that_all_have():
    longer, shorter = run((100, 1), (200, 2)), run((100, 1), (200, 2), n=3)
    figures = passk_over_steps(study(Subject("a", [longer]), Subject("b", [shorter])))
    assert [f.id for f in figures] == ["steps-1", "steps-3"]
    _, a, _, b = figures[-1].data  # each after its band
    assert (a["name"], b["name"]) == ("a", "b")
    assert a["x"] == [100, 200]
    # Of 4 samples, 3 miss the only right one with chance 1/4; of 3 samples they are all.
    assert (a["y"], b["y"]) == ([pytest.approx(3 / 4), 1.0], [1.0, 1.0])


def test_one_validation_is_no_curve():
    assert passk_over_steps(study(Subject("a", [run((100, 1))]))) == [None, None]
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
    assert figure.layout["showlegend"]
    assert [(t["name"], t["x"], t["y"]) for t in figure.data] == [
        ("grpo", [100, 200], [-3.0, -2.0])
    ]
    assert greedy_figure(runs, {"grpo": greedy(*rows[1:])}) is None  # a point of each


def test_cost_does_not_call_untimed_what_has_rows_of_its_own():
    records = [
        {"kind": "rl", "step": 1, "time": 10.0, "seconds/update": 1.0},
        {"kind": "eval", "step": 1, "time": 20.0, "seconds/evaluate": 2.0},
        {"kind": "checkpoint", "step": 1, "time": 30.0, "seconds/save": 3.0},
    ]
    table = cost_table(study(Subject("a", [RunFolder(Path("a"), "a", records=records)])))
    # From 9 (10 less the first second) to 30 there are 21 s; 6 of them are timed.
    assert [(row[1], row[2]) for row in table.rows] == [
        ("RL update", "1.0"), ("evaluate", "2.0"), ("checkpoint", "3.0"), ("not timed", "15.0"),
    ]  # fmt: skip
    left = table.note.partition("'not timed'")[2]
    assert "meter" in left
    assert not any(word in left for word in ("evaluation", "checkpoint"))


def test_memory_has_its_size_its_share_and_how_likely_it_is():
    fields = ("memory/size", "memory/share", "memory/nll")
    records = [
        {"kind": "rl", "step": step} | dict(zip(fields, values, strict=True))
        for step, values in ((1, (0, 0.0, 0.0)), (2, (7, 0.25, 1.5)))
    ]
    made = study(Subject("a", [RunFolder(Path("a"), "a", records=records)]))
    figure = memory_figure(made)
    assert [(t["yaxis"], t["y"]) for t in figure.data] == [
        ("y", [0.0, 7.0]), ("y2", [0.0, 0.25]), ("y3", [0.0, 1.5]),
    ]  # fmt: skip
    assert figure.layout["yaxis3"]["title"]["text"] == "nats a token"
    plain = study(Subject("b", [RunFolder(Path("b"), "b", records=[{"kind": "rl", "step": 1}])]))
    assert memory_figure(plain) is None


def test_buckets_of_a_run_are_of_its_first_and_last_validation():
    figure = bucket_figure(study(Subject("a", [run((0, 0), (5, 1), (9, 4))])))
    assert [(t["name"], t["y"]) for t in figure.data] == [
        ("step 0", [1, 0, 0, 0, 0, 0]), ("step 9", [0, 0, 0, 0, 0, 1]),
    ]  # fmt: skip
    assert bucket_figure(study(Subject("a", [run((5, 1))]))) is None


def test_diversity_over_training_is_over_seeds_that_tell_solutions_apart():
    def seed(*rows):
        found = [Evaluation(f"v{s}", "validation", s, 4, {"q": sum(c)}, {}, (c,)) for s, c in rows]
        return RunFolder(Path("made"), "made", evaluations=found)

    seeds = [seed((0, (1, 1)), (5, (2,)), (9, ())), seed((0, (2, 2)), (5, (2, 1)))]
    distinct, pcmd = diversity_over_steps(study(Subject("a", seeds)))
    assert distinct.data[1]["x"] == [0, 5]
    assert distinct.data[1]["y"] == pytest.approx([2.0, 1.5])
    # Pairs of different solutions: all of 1 and 4 of 6; none of 1 and 2 of 3.
    assert pcmd.data[1]["y"] == pytest.approx([(1 + 2 / 3) / 2, (0 + 2 / 3) / 2])
    assert diversity_over_steps(study(Subject("a", [run((0, 1), (5, 2))]))) == [None, None]


def test_kl_of_phases_has_labels_that_are_plain_numbers():
    def drawn(*kls):
        rows = [{"kind": "meter", "step": i, "of": "rl", "kl": kl} for i, kl in enumerate(kls)]
        records = [{"kind": "rl", "step": 1}, *rows]
        figure = meter_figure(study(Subject("a", [RunFolder(Path("a"), "a", records=records)])))
        return figure.layout["yaxis"]["ticktext"]

    assert drawn(0.03, 0.3) == ["0.02", "0.05", "0.1", "0.2"]
    assert drawn(1e-12, 1.0) == ["1e-12", "1e-09", "1e-06", "0.001", "1"]


def test_legend_of_differences_shows_a_filled_mark_where_there_is_one():
    rows = [
        {"a": "base", "b": "sps", "k": k, "delta": [0.1, 0.05, 0.2], "verdict": "better"}
        for k in (1, 64)
    ]
    made = study(Subject("base"), Subject("sps"))
    made.paired.extend(rows)
    (figure,) = paired_forests(made)
    (trace,) = figure.data
    assert trace["marker"]["symbol"] == ["circle", "circle-open"]
    assert trace["y"] == ["sps, Pass@64", "sps, Pass@1"]


def test_phases_stand_in_the_order_of_their_steps_whichever_method_has_them():
    ends = {"a": [91, 13], "b": [100, 20]}
    found = {
        name: {"phases": [{"of": "rl", "step": s, "to_greedy": 0.1} for s in steps]}
        for name, steps in ends.items()
    }
    figure = moved_figure(study(subject("a"), subject("b")), found)
    upright = make_scale(figure.layout["xaxis"], ["to 91", "to 13", "to 100", "to 20"], 0, 1, 0)
    assert upright.names == ("to 13", "to 20", "to 91", "to 100")
    assert figure.layout["xaxis"]["type"] == "category"


def test_the_reward_is_a_mean_and_no_share_of_right_rollouts():
    one = subject("a")
    one.runs[0].records += [{"kind": "rl", "step": s, "reward": 0.5} for s in (1, 2)]
    figure = training_curves(study(one))[0]
    assert figure.layout["yaxis"]["title"]["text"] == "mean reward"
    assert "%" not in figure.layout["yaxis"].get("tickformat", "")
    assert figure.note.startswith("Mean reward of each step's batch")


@pytest.mark.parametrize(("at", "low", "high"), [(0.0, 0.0, 0.02), (1.0, 0.98, 1.0)])
def test_a_frontier_of_equal_points_has_room_for_labels_that_differ(at, low, high):
    points = [(at, at)] * 2
    _, layout = draw_lines([Line("a", [10], points, points, points)], 8, 1, marks(["a"]))
    for name in ("xaxis", "yaxis"):
        first, last = layout[name]["range"]
        assert first == pytest.approx(low, abs=0.0021)
        assert last == pytest.approx(high, abs=0.0021)
        assert 0 <= first < last


def test_the_axes_of_a_frontier_begin_at_0_and_have_room_for_names_at_the_top():
    points = [(0.0, 1.0), (0.5, 0.0)]
    _, layout = draw_lines([Line("a", [10], points, points, points)], 8, 1, marks(["a"]))
    assert layout["xaxis"]["range"] == [0, pytest.approx(0.55)]
    assert layout["yaxis"]["range"] == [0, pytest.approx(1.08)]


def test_an_axis_of_zeros_has_some_width():
    scale = make_scale({"rangemode": "tozero"}, [0.0, 0.0], 0, 100, 0.05)
    assert (scale.low, scale.high) == (0, 1)
    below = make_scale({"rangemode": "tozero"}, [-2.0, 0.0], 0, 100, 0.05)
    assert (below.low, below.high) == (-2.1, 0)
