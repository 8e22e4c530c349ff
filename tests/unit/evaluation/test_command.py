"""`sps eval` without a model: endpoints, regrading, comparing, and every refusal."""

import json

import pytest

from sps.commands import evaluate as command
from sps.commands.eval_options import EvalSettings, Machinery
from sps.commands.evaluate import run_eval
from sps.errors import RunFailed, UserError
from sps.evaluation.compare import compare
from sps.rollout.texts import Written
from sps.store.evals import EvalStore
from sps.verify import InlineVerifier


class Fake:
    """Right whenever (question + sample) is even, or always; or says one thing."""

    def __init__(self, always=False, finished=True, says=None):
        self.always, self.finished, self.says, self.drawn = always, finished, says, 0

    def write(self, asks, sampling):
        for ask in asks:
            for sample in ask.samples:
                self.drawn += 1
                right = self.always or (ask.index + sample) % 2 == 0
                text = self.says or f"\\boxed{{{ask.index if right else 999}}}"
                yield Written(ask.index, sample, text, 5, self.finished, -1.0)

    def close(self):
        pass


def stopped(*given):
    raise KeyboardInterrupt


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
    machinery = Machinery(data_dir=data, workers=1, cut=more.pop("cut", "zero"))
    said = []
    monkeypatch.setattr(command, "say", said.append)
    found = run_eval(settings, machinery, more.pop("bench", "aime24"), out, **more)
    return found, fake, said


def test_eval_writes_results_and_a_second_time_draws_nothing(monkeypatch, tmp_path, data):
    found, fake, _ = run(monkeypatch, tmp_path / "e", data)
    assert fake.drawn == 24
    assert found["benchmarks"]["aime24"]["avg"][0] == pytest.approx(0.5)
    names = {p.name for p in (tmp_path / "e").iterdir()} - {".lock"}
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


def test_regrade_refuses_to_count_samples_that_were_never_drawn(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    message = r"not all 16 samples of 6 questions of aime24: give --n 4, which every question has"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, regrade_only=True, set={"n": 16})
    assert run(monkeypatch, tmp_path / "e", data, regrade_only=True, set={"n": 2})[0]["n"] == 2
    store = EvalStore(tmp_path / "e" / "aime24")
    store.replace([r for r in store.read() if (r["problem_id"], r["sample"]) < ("aime24/q1", 2)])
    message = r"not all 4 .* of 5 questions .*: there are none of aime24/q2, .*q3, .*q4 and 1 more"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, regrade_only=True)
    assert run(monkeypatch, tmp_path / "e", data)[1].drawn == 24 - 6  # it goes on as before


def test_compare_is_paired_by_question(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "a", data)
    run(monkeypatch, tmp_path / "b", data, Fake(always=True))
    found = compare(tmp_path / "a", tmp_path / "b")
    average = found["benchmarks"]["aime24"][0]
    assert (average["a"][0], average["b"][0]) == (0.5, 1.0)
    # Half a point on each of 6 questions, 3/4 as a share of [-1, 1]; an unseen question at 0 with a
    # weight from Beta(3/4, 6) takes the mean below 1/2 with probability 0.0560.
    assert average["delta"][0] == 0.5
    assert (average["verdict"], average["p"]) == ("tied", pytest.approx(0.112, rel=0.03))
    pass4 = found["benchmarks"]["aime24"][1]
    assert (pass4["measure"], pass4["verdict"]) == ("Pass@4", "tied")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bench": "aime_24"}, "did you mean 'aime24'"),
        ({"bench": ""}, "give a model and --bench"),
        ({"set": {"model": ""}}, "give a model and --bench"),
        ({"bench": " ,"}, "--bench: name at least one"),
        ({"bench": "math500"}, r"no math500\.jsonl"),
        ({"set": {"template": "qwen"}}, "--template qwen: choose one of qwen_boxed"),
        ({"set": {"dtype": "float99"}}, "--dtype float99: choose one of auto, float32, bfloat16"),
        ({"cut": "Zero"}, "--cut Zero: choose one of zero, judge"),
        ({"set": {"n": 0}}, "whole numbers from 1"),
        ({"set": {"n": 10**8}}, "--n 100000000: at most 1,000,000 samples a question"),
        ({"set": {"top_p": 0}}, "--top-p"),
        ({"regrade_only": True}, "holds no evaluation"),
    ],
)
def test_bad_input_is_refused_with_the_fix(monkeypatch, tmp_path, data, more, message):
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, **more)


def test_a_gold_answer_that_is_no_option_is_refused(monkeypatch, tmp_path, data):
    rows = [{"problem": "Which?\n\nA) x\nB) y", "answer": answer} for answer in ("y", "C")]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "data" / "arc_challenge.jsonl").write_text(text)
    with pytest.raises(UserError, match="--data-dir: benchmark arc_c: row 2: the answer 'C'"):
        run(monkeypatch, tmp_path / "e", data, bench="arc_c")


def test_another_evaluation_in_the_folder_is_refused(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    message = r"another temperature \(0\.7, now 1\.0\), seed \(0, now 3\); choose another folder"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, set={"temperature": 1.0, "seed": 3})
    path = tmp_path / "data" / "aime_2024.jsonl"
    path.write_text(path.read_text().replace("What is 0?", "What is nought?"))
    with pytest.raises(UserError, match="another set of questions of aime24"):
        run(monkeypatch, tmp_path / "e", data)


def test_another_gguf_file_of_the_folder_is_another_model(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data, set={"gguf": "good-Q8.gguf"})
    message = r"another gguf \(good-Q8\.gguf, now bad-Q2\.gguf\); choose another folder with --out"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path / "e", data, set={"gguf": "bad-Q2.gguf"})


def test_a_judge_that_only_fails_ends_it_and_what_was_drawn_is_judged_by_the_next(
    monkeypatch, tmp_path, data
):
    """6 questions of 16 samples, all of which a broken judge crashes at."""

    class Broken(InlineVerifier):
        def __init__(self, task):
            super().__init__(lambda problem, text, finished: 1 / 0)

    fake = Fake()
    many = {"set": {"n": 16}, "fake": fake}
    monkeypatch.setattr(command, "open_verifier", Broken)
    for more in ({}, {}, {"regrade_only": True}):
        with pytest.raises(RunFailed, match="failed at all of the first 96 answers") as said:
            run(monkeypatch, tmp_path / "e", data, **many, **more)
        assert "first at one to 'aime24/q0': crashed: ZeroDivisionError" in str(said.value)
        assert "Mend the judge, which returns False" in str(said.value)
        assert "What was drawn is kept, and not drawn again: the same command" in str(said.value)
    assert fake.drawn == 96
    assert not (tmp_path / "e" / "results.json").exists()
    monkeypatch.undo()
    found, _, _ = run(monkeypatch, tmp_path / "e", data, **many, regrade_only=True)
    assert fake.drawn == 96
    assert found["benchmarks"]["aime24"]["avg"][0] == pytest.approx(0.5)


def test_a_run_that_has_gone_on_is_another_model(monkeypatch, tmp_path, data):
    def reaches(step):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    reaches(100)
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n")
    given = {"model": str(tmp_path / "run")}
    found, _, _ = run(monkeypatch, tmp_path / "e", data, set=given)
    assert found["model"].endswith("run/checkpoints/step-000100")
    assert run(monkeypatch, tmp_path / "e", data, set=given)[1].drawn == 0
    reaches(300)
    with pytest.raises(UserError, match=r"another model \(.*step-000100, now .*step-000300\)"):
        run(monkeypatch, tmp_path / "e", data, set=given)
    # By its own name it is still the one in the folder; a served name is never a folder.
    assert run(monkeypatch, tmp_path / "e", data, set={"model": found["model"]})[1].drawn == 0
    served = {**given, "endpoint": "http://localhost:1/v1"}
    assert run(monkeypatch, tmp_path / "s", data, set=served)[0]["model"] == given["model"]


def test_an_evaluation_goes_on_in_the_dtype_it_began_with(monkeypatch, tmp_path, data):
    path = tmp_path / "e" / "eval.json"
    run(monkeypatch, tmp_path / "e", data)
    assert json.loads(path.read_text())["dtype"] == "float32"  # what auto is on a CPU
    path.write_text(path.read_text().replace("float32", "bfloat16"))  # what it is on a GPU
    found, fake, _ = run(monkeypatch, tmp_path / "e", data, set={"n": 6})
    assert (found["dtype"], fake.drawn) == ("bfloat16", 12)
    with pytest.raises(UserError, match=r"another dtype \(bfloat16, now float32\)"):
        run(monkeypatch, tmp_path / "e", data, set={"dtype": "float32"})


def test_an_endpoint_has_no_dtype(monkeypatch, tmp_path, data):
    served = {"endpoint": "http://localhost:1/v1"}
    run(monkeypatch, tmp_path / "e", data, set={**served, "dtype": "float32"})
    assert json.loads((tmp_path / "e" / "eval.json").read_text())["dtype"] == "auto"
    assert run(monkeypatch, tmp_path / "e", data, set=served)[1].drawn == 0


def test_verdicts_are_made_again_whatever_became_of_the_model(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    gone = {"model": "elsewhere", "gguf": "x.gguf"}
    found, _, _ = run(monkeypatch, tmp_path / "e", data, set=gone, regrade_only=True)
    assert (found["model"], found["gguf"]) == ("m", None)  # which wrote the answers
    assert run(monkeypatch, tmp_path / "e", data)[1].drawn == 0


def test_another_cut_is_a_matter_of_regrading(monkeypatch, tmp_path, data):
    out, whole = tmp_path / "e", tmp_path / "data" / "aime_2024.jsonl"
    (tmp_path / "data" / "aime_2025.jsonl").write_text(whole.read_text())
    run(monkeypatch, out, data, Fake(finished=False), bench="aime24,aime25")
    message = r"aime24 is judged with --cut zero; .* --cut judge by adding --regrade"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, out, data, cut="judge")
    found, _, said = run(monkeypatch, out, data, cut="judge", regrade_only=True)
    assert "aime24: 24 verdicts changed" in said
    assert (found["cut"], found["benchmarks"]["aime24"]["avg"][0]) == ("judge", 0.5)
    # From now on it goes on as that; the other benchmark is as it was.
    assert run(monkeypatch, out, data, cut="judge", set={"n": 6})[1].drawn == 12
    with pytest.raises(UserError, match="aime24 is judged with --cut judge"):
        run(monkeypatch, out, data)
    assert run(monkeypatch, out, data, bench="aime25")[0]["benchmarks"]["aime25"]["avg"][0] == 0


def test_a_regrade_with_another_cut_that_is_stopped_has_to_be_finished(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "e", data)
    with monkeypatch.context() as patch:
        patch.setattr(command, "regrade", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(patch, tmp_path / "e", data, cut="judge", regrade_only=True)
    for cut in ("zero", "judge"):
        with pytest.raises(UserError, match=f"being judged again .* --cut {cut} by adding --regr"):
            run(monkeypatch, tmp_path / "e", data, cut=cut)
    run(monkeypatch, tmp_path / "e", data, cut="zero", regrade_only=True)
    assert run(monkeypatch, tmp_path / "e", data)[1].drawn == 0


def test_other_gold_answers_are_a_matter_of_regrading(monkeypatch, tmp_path, data):
    out, path = tmp_path / "e", tmp_path / "data" / "aime_2024.jsonl"
    (tmp_path / "data" / "aime_2025.jsonl").write_text(path.read_text())
    run(monkeypatch, out, data, bench="aime24,aime25")
    path.write_text(path.read_text().replace('"answer": "0"', '"answer": "999"'))
    refused = r"aime24 has verdicts by other gold answers than it has now; .* by adding --regrade"
    for n in (4, 6):  # neither the old verdicts, nor a Pass@6 of old and new ones
        with pytest.raises(UserError, match=refused):
            run(monkeypatch, out, data, set={"n": n})
    assert run(monkeypatch, out, data, bench="aime25")[1].drawn == 0  # as it was
    with monkeypatch.context() as patch:
        patch.setattr(command, "regrade", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(patch, out, data, regrade_only=True)
    with pytest.raises(UserError, match="aime24 was being judged again when that was stopped"):
        run(monkeypatch, out, data)
    assert "aime24: 4 verdicts changed" in run(monkeypatch, out, data, regrade_only=True)[2]
    assert run(monkeypatch, out, data, set={"n": 6})[1].drawn == 12


def test_an_evaluation_that_was_stopped_is_judged_again_and_goes_on(monkeypatch, tmp_path, data):
    out, path = tmp_path / "e", tmp_path / "data" / "aime_2024.jsonl"
    run(monkeypatch, out, data)
    store = EvalStore(out / "aime24")
    store.replace([r for r in store.read() if r["problem_id"] == "aime24/q0"])
    path.write_text(path.read_text().replace('"answer": "0"', '"answer": "999"'))
    with pytest.raises(UserError, match=r"gold answers than it has now; .* by adding --regrade"):
        run(monkeypatch, out, data)
    old = [r["verdict"] for r in store.read()]
    with pytest.raises(UserError, match=r"is judged, but .* of 5 questions .*: there are none of"):
        run(monkeypatch, out, data, regrade_only=True)
    assert [r["verdict"] for r in store.read()] == old[::-1] != old
    assert run(monkeypatch, out, data)[1].drawn == 20


@pytest.mark.parametrize(
    ("kind", "row", "right"),
    [
        ("math", {"question": "2 + 2?", "answer": "4"}, "\\boxed{4}"),
        ("choice", {"question": "2 + 2?", "answer": 1, "choices": ["3", "4"]}, "\\boxed{B}"),
    ],
)
def test_questions_of_ones_own_need_no_judge(monkeypatch, tmp_path, data, kind, row, right):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n" + json.dumps(row | {"question": "3 + 1?"}))
    bench = f"{kind}:{rows}"
    found, fake, _ = run(monkeypatch, tmp_path / "e", data, Fake(says=right), bench=bench)
    assert fake.drawn == 8
    assert found["benchmarks"][bench]["avg"][0] == 1
    assert run(monkeypatch, tmp_path / "e", data, bench=bench)[1].drawn == 0
    rows.write_text(json.dumps(row | {"question": "5 - 1?"}))  # other questions
    with pytest.raises(UserError, match="question"):
        run(monkeypatch, tmp_path / "e", data, bench=bench)


def test_a_choice_without_options_names_the_bench(monkeypatch, tmp_path, data):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "2 + 2?", "answer": "B"}))
    with pytest.raises(UserError, match=r"^--bench choice:.*rows\.jsonl: row 1: .* has no options"):
        run(monkeypatch, tmp_path / "e", data, bench=f"choice:{rows}")


def test_an_answer_that_nothing_matches_is_told_before_any_is_drawn(
    monkeypatch, tmp_path, data, caplog
):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "3 + 5?", "answer": "The answer is 8."}))
    run(monkeypatch, tmp_path / "e", data, bench=f"math:{rows}")
    assert f"--bench math:{rows}: 1 of 1 different answers cannot be matched" in caplog.text


OWN = """
def problems(split):
    return [{"id": "q0", "question": "1 + 1?", "answer": "2", "unit": "kg"}]

def judge(problem, text):
    return text == "2"
"""


def test_another_judge_is_a_matter_of_regrading(monkeypatch, tmp_path, data):
    out, path = tmp_path / "e", tmp_path / "mine.py"
    bench = f"python:{path}"
    path.write_text(OWN)
    found, _, _ = run(monkeypatch, out, data, bench=bench)
    assert found["benchmarks"][bench]["avg"][0] == 0
    path.write_text(OWN.replace('text == "2"', '"boxed" in text'))
    refused = r"mine\.py has verdicts of another judge \(mine\.py \w{16}, now mine\.py \w{16}\); "
    with pytest.raises(UserError, match=refused + r".* by adding --regrade"):
        run(monkeypatch, out, data, bench=bench)
    found, _, said = run(monkeypatch, out, data, bench=bench, regrade_only=True)
    assert f"{bench}: 4 verdicts changed" in said
    assert run(monkeypatch, out, data, bench=bench)[0] == found


def test_what_a_judge_of_ones_own_reads_of_a_row_is_a_gold_answer(monkeypatch, tmp_path, data):
    path, rows = tmp_path / "mine.py", tmp_path / "rows.jsonl"
    path.write_text(OWN.replace("def problems", "def others"))
    row = {"id": "q0", "question": "1 + 1?", "answer": "2", "unit": "kg"}
    rows.write_text(json.dumps(row))
    bench = f"python:{path}:{rows}"
    run(monkeypatch, tmp_path / "e", data, bench=bench)
    assert run(monkeypatch, tmp_path / "e", data, bench=bench)[1].drawn == 0
    rows.write_text(json.dumps(row | {"unit": "g"}))
    with pytest.raises(UserError, match="has verdicts by other gold answers"):
        run(monkeypatch, tmp_path / "e", data, bench=bench)


def test_an_evaluation_of_a_version_that_kept_no_digest_goes_on(monkeypatch, tmp_path, data):
    about = tmp_path / "e" / "eval.json"
    for regrade_only in (False, True):
        run(monkeypatch, tmp_path / "e", data)
        whole = json.loads(about.read_text())
        about.write_text(json.dumps({k: v for k, v in whole.items() if k not in OF_JUDGE}))
        run(monkeypatch, tmp_path / "e", data, regrade_only=regrade_only)
        assert json.loads(about.read_text()) == whole  # and is guarded from then on
    assert run(monkeypatch, tmp_path / "e", data, set={"n": 6})[1].drawn == 12


OF_JUDGE = ("answers", "judge", "right")


def test_a_run_keeps_its_own_files(monkeypatch, tmp_path, data):
    made = tmp_path / "run"
    made.mkdir()
    (made / "metrics.jsonl").write_text("")
    for out in (made, made / "evals", made / "evals" / "more", made / "checkpoints"):
        with pytest.raises(UserError, match=r"the run .* keeps its own files there"):
            run(monkeypatch, out, data)
    assert run(monkeypatch, made / "eval", data)[1].drawn == 24


def test_compare_refuses_what_is_not_comparable(monkeypatch, tmp_path, data):
    run(monkeypatch, tmp_path / "a", data)
    run(monkeypatch, tmp_path / "b", data, set={"limit": 3})
    with pytest.raises(UserError, match=r"different questions \(6 and 3"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UserError, match=r"there is no results\.json"):
        compare(tmp_path / "a", tmp_path / "none")
    path = tmp_path / "data" / "aime_2024.jsonl"  # other texts under the same ids
    path.write_text(path.read_text().replace("What is", "How much is"))
    run(monkeypatch, tmp_path / "c", data)
    for other in (tmp_path / "c", tmp_path / "c" / "results.json"):
        with pytest.raises(UserError, match="questions of aime24 are not those of the other"):
            compare(tmp_path / "a", other)


def test_regrading_and_endpoints_load_no_torch():
    import subprocess
    import sys

    code = "import sys, sps.commands.evaluate, sps.rollout.openai; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
