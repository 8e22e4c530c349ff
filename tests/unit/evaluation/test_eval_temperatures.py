"""`sps eval --temperatures`: a model at several temperatures, paired by question."""

import json

import pytest

from sps.commands import evaluate as command
from sps.commands.eval_options import EvalSettings, Machinery
from sps.commands.evaluate import run_eval
from sps.errors import UserError
from sps.evaluation.scores import count_scores
from sps.evaluation.temperatures import temperature_record, temperature_table
from sps.rollout.texts import Written

QUESTIONS = 40


class Sharper:
    """At T = 1 one sample of four is right, at 0.5 two; at 0.1 all are, of every other question."""

    made = 0

    def __init__(self):
        self.drawn = []

    def write(self, asks, sampling):
        self.drawn.append(sampling.temperature)
        for ask in asks:
            for sample in ask.samples:
                right = {1.0: sample == 0, 0.5: sample < 2, 0.1: ask.index % 2 == 0}
                text = f"\\boxed{{{ask.index if right[sampling.temperature] else 999}}}"
                yield Written(ask.index, sample, text, 5, True, -1.0)

    def close(self):
        self.drawn.append("closed")


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    rows = [{"id": f"q{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(QUESTIONS)]
    (tmp_path / "aime_2024.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(temperatures, engine=None, temperature=1.0, regrade=False, n=4):
        engine = engine or Sharper()

        def make(settings, machinery):
            engine.made += 1
            return engine

        monkeypatch.setattr(command, "make_texts", make)
        settings = EvalSettings("m", n=n, template="plain", temperature=temperature)
        machinery = Machinery(str(tmp_path), workers=1, temperatures=temperatures)
        return run_eval(settings, machinery, "aime24", tmp_path / "out", regrade), engine

    return run


def score_of(correct, n=4):
    ids = [f"q{i}" for i in range(len(correct))]
    rows = [
        {
            "problem_id": name,
            "verdict": "correct" if sample < count else "wrong",
            "length": 1,
            "sum_logprob": -1.0,
            "detail": "",
        }
        for name, count in zip(ids, correct, strict=True)
        for sample in range(n)
    ]
    return count_scores(ids, n, rows, None)


def test_each_is_an_evaluation_and_the_model_is_made_once(evaluate, tmp_path):
    found, engine = evaluate("0.5,0.1")
    assert engine.drawn == [1.0, 0.5, 0.1, "closed"]
    assert engine.made == 1
    assert found["temperature"] == 1
    assert [row["temperature"] for row in found["temperatures"]["aime24"]] == [1, 0.5, 0.1]
    for folder, right in (("", 0.25), ("temperature-0.5", 0.5), ("temperature-0.1", 0.5)):
        told = json.loads((tmp_path / "out" / folder / "results.json").read_text())
        assert told["benchmarks"]["aime24"]["avg"][0] == pytest.approx(right)
    again, engine = evaluate("0.1,0.5")
    rows = again["temperatures"]["aime24"]
    assert [row["temperature"] for row in rows] == [1, 0.1, 0.5]
    assert {**again, "temperatures": 0} == {**found, "temperatures": 0}
    assert (engine.drawn, engine.made) == ([], 0)


def test_a_row_a_temperature_less_the_first_by_hand(evaluate, tmp_path):
    evaluate("0.5,0.1")
    lines = (tmp_path / "out" / "temperatures.md").read_text().splitlines()
    rows = {line.split(" |")[0].strip("| "): line for line in lines if line.startswith("| T =")}
    assert [*rows] == ["T = 1", "T = 0.5", "T = 0.1"]

    def means(heat):
        return [cell.split("[")[0].strip() for cell in rows[heat].split("|")[2:-1]]

    assert means("T = 1") == ["25.0", "100.0", "", "", "none"]
    assert means("T = 0.5") == ["50.0", "100.0", "+25.0", "+0.0", "none"]
    assert means("T = 0.1") == ["50.0", "50.0", "+25.0", "-50.0", "none"]
    assert "| aime24, 40 questions | Pass@1 | Pass@4 | Pass@1 - T = 1 | Pass@4 - T = 1 |" in (
        "\n".join(lines)
    )
    (advice,) = [line for line in lines if line.startswith("aime24:")]
    assert advice.startswith("aime24: T = 0.5 has a Pass@1 of 50.0, +25.0 [+")
    assert advice.endswith(", and no training. A trained model is worth what it adds to this.")
    assert " over T = 1, with Pass@4 tied (+0.0 [-" in advice


@pytest.mark.parametrize(
    ("others", "said"),
    [
        # More of Pass@1, and all lost of every other question's Pass@4.
        ({0.5: [4, 0] * 20}, "none of these has measurably more Pass@1 than T = 1 without measura"),
        ({0.5: [1, 1] * 20}, "none of these has measurably more Pass@1 than T = 1 without measura"),
        ({0.5: [2, 2] * 20, 0.3: [3, 3] * 20, 0.1: [4, 0] * 20}, "T = 0.3 has a Pass@1 of 75.0, "),
    ],
)
def test_what_training_has_to_beat(others, said):
    scores = {heat: {"x": score_of(correct)} for heat, correct in others.items()}
    found = temperature_record({1.0: {"x": score_of([1, 1] * 20)}, **scores})
    text = temperature_table("m", found)
    assert f"\nx: {said}" in text


def test_a_higher_mean_that_is_tied_does_not_hide_what_is_better():
    counts = {1.0: [8] * 60, 0.7: [9] * 60, 0.4: [16] * 31 + [2] * 29}
    record = temperature_record({h: {"x": score_of(c, 16)} for h, c in counts.items()})
    verdicts = [row["less"]["1"]["verdict"] for row in record["x"][1:]]
    assert verdicts == ["better", "tied"]
    assert "\nx: T = 0.7 has a Pass@1 of 56.2, +6.2 [+" in temperature_table("m", record)


def test_one_sample_a_question_has_one_difference():
    def one(right):
        rows = [
            {"problem_id": "q", "verdict": v, "length": 1, "sum_logprob": -1.0, "detail": ""}
            for v in (["correct"] if right else ["wrong"])
        ]
        return {"x": count_scores(["q"], 1, rows, None)}

    text = temperature_table("m", temperature_record({1.0: one(False), 0.5: one(True)}))
    head = "| x, 1 questions | Pass@1 | Pass@1 - T = 1 | not judged |"
    assert f"{head}\n| --- | ---: | ---: | ---: |\n| T = 1 | 0.0" in text
    assert "\nx: none of these has measurably more Pass@1 than T = 1.\n" in text


def test_a_table_that_holds_no_more_is_gone(evaluate, tmp_path):
    evaluate("0.5")
    evaluate("")  # the same once more
    assert (tmp_path / "out" / "temperatures.md").exists()
    evaluate("", n=3)
    assert not [*(tmp_path / "out").glob("temperatures.*")]


def test_samples_that_do_not_count_are_said(evaluate, monkeypatch):
    said = []
    monkeypatch.setattr(command, "say", said.append)
    evaluate("")
    found, _ = evaluate("", n=3)
    assert sum(found["benchmarks"]["aime24"]["kinds"].values()) == 3 * QUESTIONS
    assert "aime24: 3 of the 4 stored samples count; --n 4 counts all" in said


def test_the_folders_are_free_after_an_error(evaluate, tmp_path):
    class Broken(Sharper):
        def write(self, asks, sampling):
            raise UserError("it broke")

    with pytest.raises(UserError, match="it broke"):
        evaluate("0.5", Broken())
    for folder in ("out", "out/temperature-0.5"):
        assert (tmp_path / folder / ".lock").read_text() == ""  # it names a holder


def test_all_are_judged_again(evaluate, tmp_path):
    evaluate("0.5")
    (tmp_path / "out" / "temperatures.md").unlink()
    _, engine = evaluate("0.5", regrade=True)
    assert engine.drawn == []
    assert (tmp_path / "out" / "temperatures.md").exists()
    with pytest.raises(UserError, match=r"--regrade: .*temperature-0\.1 holds no evaluation"):
        evaluate("0.5,0.1", regrade=True)


def test_another_evaluation_in_a_folder_below_is_refused_before_any_draws(evaluate, tmp_path):
    evaluate("0.5")
    for name in ("out/eval.json", "out/aime24/samples.parquet", "out/results.json"):
        (tmp_path / name).unlink()
    below = tmp_path / "out" / "temperature-0.5" / "eval.json"
    below.write_text(below.read_text().replace('"seed": 0', '"seed": 7'))
    engine = Sharper()
    with pytest.raises(UserError, match=r"temperature-0\.5: .* another seed \(7, now 0\)"):
        evaluate("0.5", engine)
    assert engine.drawn == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.7,x", r"--temperatures: 'x' is not a number"),
        ("0", r"--temperatures: 0 is not above 0; .*; greedy answers are --temperature 0"),
        ("nan", r"--temperatures: nan is not above 0"),
        ("0.7,0.7000000001", r"--temperatures: 0\.7 is there twice"),
        ("0.7,1.0", r"--temperatures: 1 is --temperature already, .*, or give another"),
    ],
)
def test_what_cannot_be_read_is_told_before_anything_is_made(evaluate, tmp_path, text, said):
    with pytest.raises(UserError, match=said):
        evaluate(text)
    assert not (tmp_path / "out").exists()
