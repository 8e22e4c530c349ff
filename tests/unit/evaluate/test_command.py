"""`sps eval` without a model: endpoints, regrading, comparing, and every refusal."""

import json

import pytest

from sps.errors import UserError
from sps.evaluate import command
from sps.evaluate.command import EvalSettings, Machinery, compare_command, eval_command
from sps.rollout.texts import Written


class Fake:
    """Right whenever (question + sample) is even, or always."""

    def __init__(self, always=False):
        self.always, self.drawn = always, 0

    def write(self, asks, sampling):
        for ask in asks:
            for sample in ask.samples:
                self.drawn += 1
                right = self.always or (ask.index + sample) % 2 == 0
                text = f"\\boxed{{{ask.index if right else 999}}}"
                yield Written(ask.index, sample, text, 5, True, -1.0)

    def close(self):
        pass


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"id": f"q{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "aime_2024.jsonl").write_text(text)
    return str(folder)


def run(monkeypatch, out, data, fake=None, **more):
    fake = fake or Fake()
    monkeypatch.setattr(command, "make_texts", lambda settings, machinery: fake)
    settings = EvalSettings(**{"model": "m", "n": 4, "template": "plain", **more.pop("set", {})})
    machinery = Machinery(data_dir=data, workers=1)
    said = []
    found = eval_command(
        settings, more.pop("bench", "aime24"), out=out, machinery=machinery, say=said.append, **more
    )
    return found, fake, said


def test_eval_writes_results_and_a_second_time_draws_nothing(monkeypatch, tmp_path, data):
    found, fake, _ = run(monkeypatch, tmp_path / "e", data)
    assert fake.drawn == 24
    assert found["benchmarks"]["aime24"]["avg"][0] == pytest.approx(0.5)
    names = {p.name for p in (tmp_path / "e").iterdir()}
    expected = {"eval.json", "results.json", "table.md", "table.tex", "questions.md", "aime24"}
    assert names == expected
    assert [p.name for p in (tmp_path / "e" / "aime24").iterdir()] == ["samples.parquet"]
    again, fake, _ = run(monkeypatch, tmp_path / "e", data)
    assert fake.drawn == 0
    assert again == found


def test_a_larger_n_draws_only_what_is_missing(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    found, fake, _ = run(monkeypatch, tmp_path / "e", data, set={"n": 6})
    assert fake.drawn == 12  # 6 questions, samples 4 and 5
    assert found["benchmarks"]["aime24"]["n"] == 6


def test_regrade_counts_what_changed_and_draws_nothing(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    path = tmp_path / "data" / "aime_2024.jsonl"
    path.write_text(path.read_text().replace('"answer": "0"', '"answer": "999"'))
    found, fake, said = run(monkeypatch, tmp_path / "e", data, regrade_only=True)
    assert fake.drawn == 0
    assert (
        "aime24: 4 verdicts changed" in said
    )  # question 0: two right become wrong, two wrong right
    assert found["benchmarks"]["aime24"]["avg"][0] == pytest.approx(0.5)


def test_compare_is_paired_by_question(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "a", data)
    run(monkeypatch, tmp_path / "b", data, Fake(always=True))
    found = compare_command(tmp_path / "a", tmp_path / "b", say=lambda text: None)
    average = found["benchmarks"]["aime24"][0]
    assert (average["a"][0], average["b"][0]) == (0.5, 1.0)
    # Half a point on each of 6 questions: 0.5 sqrt(6) = 1.22 is far below t(5) = 2.57.
    assert average["delta"][0] == 0.5
    assert (average["verdict"], average["p"]) == ("tied", pytest.approx(0.275220, abs=1e-6))
    pass4 = found["benchmarks"]["aime24"][1]
    assert (pass4["measure"], pass4["verdict"]) == ("Pass@4", "tied")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bench": "aime_24"}, "did you mean 'aime24'"),
        ({"bench": ""}, "--bench: name at least one"),
        ({"bench": "math500"}, r"no math500\.jsonl"),
        ({"set": {"template": "qwen"}}, "--template qwen: choose one of qwen_boxed"),
        ({"set": {"n": 0}}, "whole numbers from 1"),
        ({"set": {"top_p": 0}}, "--top-p"),
        ({"regrade_only": True}, "holds no evaluation"),
    ],
)
def test_bad_input_is_refused_with_the_fix(monkeypatch, tmp_path, data, more, message):
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, **more)


def test_another_evaluation_in_the_folder_is_refused(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    with pytest.raises(UserError, match="another temperature, seed; choose another folder"):
        run(monkeypatch, tmp_path / "e", data, set={"temperature": 1.0, "seed": 3})
    path = tmp_path / "data" / "aime_2024.jsonl"
    path.write_text(path.read_text().replace("What is 0?", "What is nought?"))
    with pytest.raises(UserError, match="another questions of aime24"):
        run(monkeypatch, tmp_path / "e", data)


def test_compare_refuses_what_is_not_comparable(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "a", data)
    run(monkeypatch, tmp_path / "b", data, set={"limit": 3})
    with pytest.raises(UserError, match=r"different questions \(6 and 3"):
        compare_command(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UserError, match=r"there is no results\.json"):
        compare_command(tmp_path / "a", tmp_path / "none")


def test_regrading_and_endpoints_load_no_torch():
    import subprocess
    import sys

    code = "import sys, sps.evaluate.command, sps.rollout.openai; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
