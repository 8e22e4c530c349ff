"""Figures as SVG files, read as a reader would: by the labels of their axes."""

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from made_folders import make_comparison, make_run

from sps.commands.report import run_report
from sps.errors import UserError
from sps.reporting.blocks import Figure, Section, axis, band, line, percent_axis
from sps.reporting.draw import draw
from sps.reporting.export import export_figures
from sps.reporting.style import DARK

SVG = "{http://www.w3.org/2000/svg}"


class Drawn:
    """A file, and what its marks and bars say by the labels of its axes."""

    def __init__(self, text):
        self.root = ET.fromstring(text)
        self.texts = ["".join(t.itertext()) for t in self.root.iter(f"{SVG}text")]
        labels = [(t, self._value("".join(t.itertext()))) for t in self.root.iter(f"{SVG}text")]
        ticks = [(t, v) for t, v in labels if v is not None]
        self.x = [(float(t.get("x")), v) for t, v in ticks if t.get("text-anchor") == "middle"]
        self.y = [
            (float(t.get("y")) - 0.35 * float(t.get("font-size")), v)
            for t, v in ticks
            if t.get("text-anchor") == "end"
        ]

    @staticmethod
    def _value(text):
        plain = text.replace("\N{MINUS SIGN}", "-").replace(",", "")
        found = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)(%?)", plain)
        return float(found[1]) / (100 if found[2] else 1) if found else None

    def read(self, pixel, ticks, log=False):
        """The value at a pixel, from the first and the last label of an axis."""
        (a, low), (b, high) = ticks[0], ticks[-1]
        if log:
            low, high = math.log(low), math.log(high)
        value = low + (pixel - a) / (b - a) * (high - low)
        return math.exp(value) if log else value

    def marks(self, log=False):
        return [
            (self.read(float(c.get("cx")), self.x, log), self.read(float(c.get("cy")), self.y))
            for c in self.root.iter(f"{SVG}circle")
        ]

    def paths(self, attribute):
        """Corners of the paths of a colour, in pixels."""
        return [
            [tuple(map(float, at.split())) for at in re.split("[ML]", p.get("d").strip("Z"))[1:]]
            for p in self.root.iter(f"{SVG}path")
            if attribute(p)
        ]


def figure(data, layout=None, height=320):
    return Figure("f", "A title", "", data, layout or {"yaxis": axis("y")}, height)


DOTS = {"mode": "lines+markers", "marker": {"symbol": "circle", "size": 7}}


def test_marks_lie_where_the_labels_of_the_axes_say():
    x, y = [0, 50, 120, 300], [-5.5, -2.75, 0.3, -1.0]
    drawn = Drawn(draw(figure([line(x, y, "a", "blue", **DOTS)])))
    assert len(drawn.x) >= 3
    assert len(drawn.y) >= 3
    for (px, py), vx, vy in zip(drawn.marks(), x, y, strict=True):
        assert px == pytest.approx(vx, abs=0.5)
        assert py == pytest.approx(vy, abs=0.02)


def test_shares_and_a_log_axis_are_drawn_as_labelled():
    ks = [1, 2, 4, 8, 128]
    layout = {
        "xaxis": axis("k", type="log", tickvals=ks, ticktext=ks),
        "yaxis": percent_axis("solved"),
    }
    data = [line(ks, [0.04, 0.08, 0.15, 0.26, 0.935], "a", "red", **DOTS)]
    drawn = Drawn(draw(figure(data, layout)))
    assert drawn.y[0][1] == 0
    assert "%" in "".join(drawn.texts)
    for (px, py), k, value in zip(drawn.marks(log=True), ks, data[0]["y"], strict=True):
        assert px == pytest.approx(k, rel=0.01)
        assert py == pytest.approx(value, abs=0.003)


def test_bars_begin_at_zero_and_end_at_their_value():
    bar = {"type": "bar", "name": "a", "x": ["to 50", "to 100"], "y": [1.5, -3.0]}
    striped = bar | {"name": "b", "y": [-2.0, 0.5], "marker": {"color": "@red", "pattern": {}}}
    data = [bar | {"marker": {"color": "@blue/0.7"}}, striped]
    drawn = Drawn(draw(figure(data)))
    boxes = [r for r in drawn.root.iter(f"{SVG}rect") if float(r.get("height")) != 320]
    legend, boxes = boxes[-6:-4], boxes[-4:]
    assert all(float(r.get("y")) < 30 for r in legend)
    for r, value in zip(boxes, [1.5, -3.0, -2.0, 0.5], strict=True):
        ends = [float(r.get("y")), float(r.get("y")) + float(r.get("height"))]
        read = sorted(drawn.read(pixel, drawn.y) for pixel in ends)
        assert read == pytest.approx(sorted((0, value)), abs=0.03)
    assert boxes[2].get("fill") == "url(#hatch-red)"
    assert float(boxes[0].get("x")) < float(boxes[2].get("x")) < float(boxes[1].get("x"))


def test_stacked_areas_add_up():
    areas = [
        line([1, 2], y, name, colour, stackgroup="one", fillcolor=f"@{colour}/0.5")
        for y, name, colour in (([0.1, 0.3], "correct", "green"), ([0.9, 0.7], "wrong", "grey"))
    ]
    drawn = Drawn(draw(figure(areas, {"yaxis": percent_axis("share", range=[0, 1])})))
    first, second = drawn.paths(lambda p: p.get("fill-opacity") == "0.5")
    read = [[drawn.read(y, drawn.y) for _, y in path] for path in (first, second)]
    assert read[0] == pytest.approx([0.1, 0.3, 0, 0], abs=0.005)
    assert read[1] == pytest.approx([1, 1, 0.3, 0.1], abs=0.005)


def test_a_gap_in_a_line_is_a_gap():
    data = [line([1, 2, 3, 4, 5], [1, 2, None, 2, float("nan")], "a", "blue")]
    drawn = Drawn(draw(figure(data)))
    found = drawn.paths(lambda p: p.get("stroke") == "#2b5f9e")
    assert [len(points) for points in found] == [2]  # a single point is no line
    assert "nan" not in draw(figure(data))


def test_every_colour_has_one_for_the_dark():
    data = [band([1, 2], [1, 1], [2, 3], "teal", "a"), line([1, 2], [1, 2], "a", "teal", **DOTS)]
    text = draw(figure([*data, line([1, 2], [1, 2], "b", "ochre", "dash")]))
    used = set(re.findall(r' (fill|stroke)="(#\w+)"', text))
    rules = re.search(r"prefers-color-scheme: dark\)\{(.*)\}</style>", text)[1]
    worn = dict(re.findall(r'(\[\w+="#\w+"\])\{\w+:(#\w+)\}', rules))
    assert len(used) > 5
    for what, colour in used:
        assert worn[f'[{what}="{colour}"]'] in DARK.values()


def test_names_are_text_and_never_markup():
    hostile = '<script>x</script> & "a"'
    drawn = Drawn(draw(figure([line([1, 2], [1, 2], n, "red") for n in (hostile, "b")])))
    assert hostile in drawn.texts
    assert not list(drawn.root.iter(f"{SVG}script"))


def test_every_figure_of_a_comparison_is_a_file(tmp_path):
    compare = make_comparison(tmp_path / "compare", hostile=True)
    said = run_report([compare], svg=tmp_path / "plots")
    files = sorted((tmp_path / "plots").iterdir())
    assert said == f"{len(files)} plots in {tmp_path / 'plots'}"
    assert {"passk.svg", "paired-0.svg", "train-reward.svg", "moved.svg"} <= {f.name for f in files}
    for path in files:
        text = path.read_text()
        drawn = Drawn(text)
        assert "nan" not in text
        assert len(drawn.texts) > 4, path.name
        wide, tall = (float(drawn.root.get(k)) for k in ("width", "height"))
        for t in drawn.root.iter(f"{SVG}text"):
            if t.get("x"):
                assert 0 <= float(t.get("x")) <= wide, path.name
                assert 0 <= float(t.get("y")) <= tall, path.name
    assert not (compare / "report.html").exists()  # plots were asked for


def test_a_page_and_plots_can_be_had_at_once(tmp_path):
    run = make_run(tmp_path / "run")
    page, plot = tmp_path / "page.html", tmp_path / "plot.svg"
    assert run_report([run], page, plot) == f"{page}\n{plot}"
    assert page.stat().st_size > 1_000_000
    assert plot.read_text().startswith("<svg")


def results(folder):
    """Counts of two methods, as a comparison leaves them and as lines of one run each."""
    steps = {"0": [1, 1], "10": [2, 1], "20": [4, 0]}
    lines = [
        {"method": m, "seed": s, "n": 4, "right": steps | {"20": [4, late]}}
        for m, late in (("memory_no_rl", 2), ("grpo", 0))
        for s in (0, 1)
    ]
    lines.append({"method": "grpo", "seed": 1, "n": 4, "right": {"0": [0, 0]}})  # cut short
    (folder / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    methods = {
        name: {"steps": [10, 20], "correct": [["2 1", "2 1"], [f"4 {late}"] * 2]}
        for name, late in (("grpo", 0), ("memory_no_rl", 2))
    }
    found = {"k": 4, "base": {"correct": "1 1"}, "methods": methods}
    scores = {"pass_at_k": {"1": [0.5, 0.1, 0.9], "4": [1, 0.5, 1]}, "n": 4, "correct": ["2 2"]}
    compared = {"methods": dict.fromkeys(["base", *methods], scores), "frontier": found}
    (folder / "compared.json").write_text(json.dumps(compared))
    return folder / "runs.jsonl", folder / "compared.json"


def test_results_without_their_runs_are_drawn_alike(tmp_path):
    files = []
    for path in results(tmp_path):
        run_report([path], svg=tmp_path / f"{path.stem}.svg")
        files.append((tmp_path / f"{path.stem}.svg").read_bytes())
    assert files[0] == files[1]
    drawn = Drawn(files[0])
    assert {"GRPO", "memory without RL", "base"} <= set(drawn.texts)
    last = {(round(x, 2), round(y, 2)) for x, y in drawn.marks()}
    assert {(0.5, 0.5), (0.75, 1.0)} <= last  # (4 + 0) / 8 and one of two; (4 + 2) / 8 and both


def test_a_page_of_results_alone_stands_beside_them(tmp_path):
    _, compared = results(tmp_path)
    assert run_report([compared]) == str(tmp_path / "compared.html")
    page = (tmp_path / "compared.html").read_text()
    assert "memory without RL" in page
    assert "<dt>seeds</dt><dd>2</dd>" in page
    assert "<dt>model</dt>" not in page  # nobody knows


def test_results_that_kept_means_alone_are_drawn_too(tmp_path):
    curves = {"0": {"1": [0.2, 0, 1], "4": [0.9, 0, 1]}, "50": {"1": [0.4, 0, 1], "4": [0.6, 0, 1]}}
    compared = {"methods": {"grpo": {"seeds": 3}}, "validation": {"grpo": curves}}
    (tmp_path / "old.json").write_text(json.dumps(compared))
    run_report([tmp_path / "old.json"], svg=tmp_path / "old.svg")
    drawn = Drawn((tmp_path / "old.svg").read_text())
    ((x, y),) = drawn.marks()  # the base is a star
    assert (x, y) == (pytest.approx(0.4, abs=0.003), pytest.approx(0.6, abs=0.003))
    assert "a mark every 50 steps, to step 50" in drawn.texts


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"method": "a"}\n', "a.jsonl, line 1: no run's results .KeyError.'seed'"),
        ("a.jsonl", '{"method": "a", "seed": 0, "n": 2, "right": {"0": [3]}}', "not from 0 to n"),
        ("a.jsonl", '{"method": "a", "seed": 0, "n": 1e300, "right": {"0": [3]}}', "n = 1"),
        ("a.jsonl", "{", "a.jsonl, line 1"),
        ("a.jsonl", "", "holds no line"),
        ("a.json", "{}", "a.json: no results of sps compare .it has no `methods`"),
        ("a.json", "[", "give its results.json"),
        ("a.json", '{"methods": {}, "frontier": {"k": 2}}', "its `frontier` cannot be read"),
        ("a.json", '{"methods": {}}', "nothing to draw"),
    ],
)
def test_files_that_hold_no_results_are_the_users_error(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        run_report([tmp_path / name], svg=tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()


def test_a_figure_in_words_that_are_not_known_here_is_named(tmp_path):
    strange = figure([{"type": "heatmap", "x": [1], "y": [1]}])
    with pytest.raises(UserError, match="A title: cannot be drawn as SVG"):
        export_figures([Section("s", "", "", [strange])], tmp_path / "x.svg")


def test_a_place_that_cannot_be_written_is_the_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the plots"):
        run_report([make_run(tmp_path / "run")], svg=tmp_path / "file" / "x.svg")


def test_a_picture_of_another_kind_is_refused_and_not_made_a_folder(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"plots are written as SVG: name a file plot\.svg, or a"):
        run_report([run], svg=tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()
    assert "plots in" in run_report([run], svg=tmp_path / "plots.v2")
