"""The page as text: whole, offline, safe, and honest about what is missing."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_folders import DAMAGE, SCRIPT, make_comparison, make_run

from sps.diagnose.read import RunFolder
from sps.errors import UserError
from sps.reporting import page
from sps.reporting.explorer import explorer_data
from sps.reporting.markup import safe_json
from sps.reporting.page import fill, write_report
from sps.reporting.study import Subject, load_study, pairs_against_first


def _written(folders, tmp_path) -> str:
    path = write_report(folders, tmp_path / "out" / "report.html")
    return path.read_text(encoding="utf-8")


def _json(html: str, id: str):
    text = re.search(rf'<script type="application/json" id="{id}">(.*?)</script>', html, re.S)[1]
    return json.loads(text)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    return _written([make_run(folder / "run", name=SCRIPT, hostile=True)], folder)


def test_page_has_every_section_of_a_run(tmp_path):
    html = _written([make_run(tmp_path / "run")], tmp_path)
    for section in (
        "results",
        "training",
        "squeeze",
        "questions",
        "cost",
        "trajectories",
    ):
        assert f'<section id="{section}">' in html
    figures = _json(html, "figures")
    wanted = {"passk", "train-reward", "train-entropy", "train-logprob", "train-grad_norm", "meter"}
    wanted |= {
        "verdicts-0",
        "greedy",
        "distinct",
        "pcmd",
        "likelihood-0",
        "buckets",
        "steps-1",
        "steps-8",
    }
    assert wanted <= set(figures)
    moved = {t["name"]: t["y"] for t in figures["moved"]["data"]}
    assert moved == {"made RL": [1.0, 1.0], "made IRL": [-0.5, -0.5]}  # points, as the meter has it


def test_axes_say_what_they_show(tmp_path):
    figures = _json(_written([make_run(tmp_path / "run")], tmp_path), "figures")
    titles = {
        "train-reward": "mean reward",
        "train-entropy": "nats",
        "train-logprob": "nats a token",
        "train-grad_norm": "L2 norm",
        "verdicts-0": "share of rollouts",
        "distinct": "solutions a question",
    }
    found = {id: figures[id]["layout"]["yaxis"]["title"]["text"] for id in titles}
    assert found == titles


def test_page_loads_nothing(hostile_page):
    head = hostile_page[: hostile_page.index("</head>")]
    assert "default-src 'none'" in head
    assert not re.search(
        r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", hostile_page
    )


def test_policy_names_exactly_the_scripts_of_the_page(hostile_page):
    scripts = re.findall(r"<script>(.*?)</script>", hostile_page, re.S)
    digests = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", hostile_page)) == digests
    assert len(scripts) == 4


def test_hostile_text_is_only_ever_escaped(hostile_page):
    assert SCRIPT not in hostile_page
    assert "<img src=x" not in hostile_page
    assert "&lt;script&gt;window.pwned=1" in hostile_page  # the title and the warning show it


def test_safe_json_cannot_end_its_element():
    text = safe_json({"a": "</script><!--", "b": "\u2028&", "c": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--", "b": "\u2028&", "c": None}


def test_fields_are_not_read_as_templates():
    assert fill("{{a}} {{b}}", {"a": "{{b}}", "b": r"\1"}) == r"{{b}} \1"


@pytest.mark.parametrize("damage", [d for d in DAMAGE if d != "no folder at all"])
def test_report_of_a_damaged_run_says_what_is_missing(tmp_path, damage):
    folder = make_run(tmp_path / "run")
    DAMAGE[damage](folder)
    html = _written([folder], tmp_path)
    assert '<details class="alert missing"' in html
    assert '<section id="settings">' in html


def test_report_of_no_folder_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        load_study([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="at least one"):
        load_study([])


def test_comparison_has_its_numbers_and_the_names_people_write(tmp_path):
    html = _written([make_comparison(tmp_path / "compare")], tmp_path)
    curves = {t["name"]: t for t in _json(html, "figures")["passk"]["data"] if "name" in t}
    assert set(curves) == {"base", "GRPO", "SPS", "GRPO@3"}
    results = json.loads((tmp_path / "compare" / "results.json").read_text())
    assert curves["GRPO@3"]["y"][-1] == results["methods"]["grpo@3"]["pass_at_k"]["16"][0]
    assert 'id="table-paired-table"' in html
    assert "SPS against GRPO: Pass@16 is" in html
    assert not re.search(r"\bgrpo\b", html[: html.index('<section id="training">')])


def test_comparison_of_single_seeds_says_what_its_intervals_leave_out(tmp_path):
    words = "the intervals cover questions, not repeats of training"
    assert words in _written([make_comparison(tmp_path / "one", seeds=1)], tmp_path)
    assert words not in _written([make_comparison(tmp_path / "two", seeds=2)], tmp_path)


def test_runs_of_an_earlier_larger_call_are_no_part_of_the_report(tmp_path):
    folder = make_comparison(tmp_path / "compare", seeds=2)
    path = folder / "results.json"
    results = json.loads(path.read_text())
    mine = [f"{p.parent.name}/{p.name}" for p in folder.glob("*/seed-0")]
    assert len(load_study([folder]).subjects[1].runs) == 2
    path.write_text(json.dumps(results | {"folders": mine}))
    for subject in load_study([folder]).subjects:
        assert {run.folder.name for run in subject.runs} <= {"seed-0"}
        assert len(subject.counts) <= 1


def test_comparison_with_broken_results_still_reports_its_runs(tmp_path):
    folder = make_comparison(tmp_path / "compare")
    (folder / "results.json").write_text("{")
    study = load_study([folder])
    assert [s.name for s in study.subjects] == ["GRPO", "SPS"]
    assert "results.json cannot be read" in study.missing[0][1]
    assert "results.json cannot be read" in _written([folder], tmp_path)


def test_runs_side_by_side_are_paired_by_question(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    scores = json.loads((second / "evals" / "test.json").read_text())
    scores["per_question"] = dict.fromkeys(scores["per_question"], scores["n"])
    del scores["solutions"]  # as older versions wrote it
    (second / "evals" / "test.json").write_text(json.dumps(scores))
    study = load_study([first, second])
    assert [s.name for s in study.subjects] == ["made", "made (b)"]
    one = next(p for p in study.paired if p["k"] == 1)
    counts = np.array(list(study.subjects[0].counts[0][0].values()))
    assert one["delta"][0] == pytest.approx(1 - counts.mean() / 16)
    assert one["verdict"] == "better"


def test_rows_of_other_files_are_no_pairs_though_their_numbers_are_the_same(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    for i, run in enumerate((first, second)):
        (run / "data.sha256").write_text(f"{i}\n")
    assert load_study([first, second]).paired  # its ids are the file's own
    for run in (first, second):
        path = run / "evals" / "test.json"
        scores = json.loads(path.read_text())
        rows = {f"rows-{i:06d}": c for i, c in enumerate(scores["per_question"].values())}
        del scores["solutions"]
        path.write_text(json.dumps(scores | {"per_question": rows}))
    study = load_study([first, second])
    assert not study.paired
    assert any("its data are others than those of" in text for _, text in study.missing)
    recipe = second / "recipe.yaml"
    before = recipe.read_text()
    tree = yaml.safe_load(before)
    recipe.write_text(yaml.safe_dump(tree | {"task": {**tree["task"], "train": 3}}))
    assert load_study([first, second]).paired  # of the same rows some more, or fewer, train
    recipe.write_text(yaml.safe_dump(tree | {"task": {**tree["task"], "train": 3, "data": "b"}}))
    assert not load_study([first, second]).paired
    recipe.write_text(before)
    (second / "data.sha256").write_text("0\n")
    assert load_study([first, second]).paired


def test_runs_in_unequal_numbers_are_compared_over_their_seeds():
    def runs(*right):
        return [({f"q{i}": c for i in range(50)}, 4) for c in right]

    a, b = Subject("a", [], counts=runs(0, 0)), Subject("b", [], counts=runs(4, 0, 0))
    one = pairs_against_first([a, b])[0]
    assert one["delta"][0] == pytest.approx(1 / 3)
    assert one["verdict"] == "tied"  # one run of three is no method
    assert (
        pairs_against_first([a, Subject("b", [], counts=runs(2, 2, 2))])[0]["verdict"] == "better"
    )


def test_explorer_draws_whole_groups_up_to_its_limit(tmp_path):
    study = load_study([make_run(tmp_path / "run", steps=10, prompts=3, n=4)])
    data = explorer_data(study, most=50)
    assert (data["shown"], data["total"]) == (48, 120)  # 12 whole groups of 4
    step = np.frombuffer(base64.b64decode(data["column"]["step"]["base64"]), "<u4")
    question = np.frombuffer(base64.b64decode(data["column"]["question"]["base64"]), "<u4")
    _, sizes = np.unique(step * 100 + question, return_counts=True)
    assert set(sizes) == {4}


def test_explorer_shows_fewer_trajectories_where_they_are_long(tmp_path):
    study = load_study([make_run(tmp_path / "run", steps=10, prompts=3, n=4)])
    data = explorer_data(study, tokens=100)
    lengths = np.frombuffer(base64.b64decode(data["column"]["length"]["base64"]), "<u4")
    assert 4 <= data["shown"] < 120
    assert data["shown"] % 4 == 0
    assert lengths.sum() <= 100
    assert explorer_data(study, tokens=1)["shown"] == 4  # one group always


def test_explorer_keeps_probabilities_to_a_twentieth_of_a_nat(tmp_path):
    study = load_study([make_run(tmp_path / "run", steps=2, prompts=1, n=2)])
    data = explorer_data(study)
    table = study.subjects[0].runs[0].rollouts(["step", "group", "sample", "logprobs"])
    rows = sorted(table.to_pylist(), key=lambda r: (r["step"], r["group"], r["sample"]))
    stored = np.frombuffer(base64.b64decode(data["column"]["logq"]["base64"]), "u1")
    exact = np.concatenate([r["logprobs"] for r in rows])
    assert np.abs(stored / 20 + exact).max() <= 0.025 + 1e-6


def test_tokens_are_shown_as_text_and_without_a_tokenizer_as_numbers(tmp_path):
    folder = make_run(tmp_path / "run")
    assert " 5" in explorer_data(load_study([folder]))["words"]
    DAMAGE["checkpoints gone"](folder)
    assert all(w.startswith(" #") for w in explorer_data(load_study([folder]))["words"])


@pytest.mark.parametrize(
    ("memory", "steps", "told"),
    [
        (0.0, 0, "GRPO"),
        (1.0, 0, "GRPO with memory"),
        (0.0, 4, "GRPO with SPS"),
        (0.5, 4, "GRPO with memory and SPS"),
    ],
)
def test_a_run_is_called_by_all_that_it_learns_by(memory, steps, told):
    tree = {
        "rl": {"algorithm": {"type": "grpo"}},
        "irl": {"memory": {"weight": memory}, "steps": steps},
    }
    run = RunFolder(Path("there"), "run", tree, [], [])
    assert page._learns_by(run) == told


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (tmp_path / "pages").mkdir()
    with pytest.raises(UserError, match=r"pages: it is a folder; name a file, such as .*pages/rep"):
        write_report([run], tmp_path / "pages")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"cannot write the report \(No space left"):
        write_report([run], tmp_path / "pages" / "x.html")
    assert sorted(p.name for p in tmp_path.rglob("*.draft")) == []
    assert list((tmp_path / "pages").iterdir()) == []
