"""What is asked of an evaluation reaches the part that does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sps import cli
from sps.commands import evaluate as command
from sps.commands.eval_options import EvalSettings, Machinery, refuse_impossible
from sps.commands.evaluate import make_part, make_texts
from sps.errors import UserError
from sps.evaluation.claim import held, keep, slug
from sps.ranks import ALONE
from sps.rollout.openai import OpenAIEngine


@pytest.fixture
def sps(monkeypatch):
    """`sps eval` with the arguments given, up to the function that it calls: what that is given."""
    calls = []
    monkeypatch.setattr(command, "run_eval", lambda *given: calls.append(given))
    monkeypatch.setattr(command, "run_eval_compare", lambda *given: calls.append(given))

    def run(line):
        monkeypatch.setattr("sys.argv", ["sps", "eval", *line.split()])
        cli.main()
        return calls.pop()

    return run


def test_what_is_not_said_has_its_default(sps):
    assert sps("m --bench aime24") == (EvalSettings("m"), Machinery(), "aime24", None, False)


def test_every_option_reaches_its_setting(sps):
    numbers = "--n 3 --top-k 5 --max-new-tokens 7 --seed 9 --limit 2 --temperature 0.5 --top-p 0.9"
    words = "--endpoint e --template plain --instruction i --dtype float32 --gguf g"
    machine = "--data-dir d --device cpu --max-rows 8 --workers 2 --time-limit 1.5 --cut judge"
    more = "--right 0.5 --unsafe t --concurrency 4 --retries 1 --api-key-env K --trust-remote-code"
    settings, machinery, *rest = sps(
        f"m --bench a,b --out o --regrade {numbers} {words} {machine} {more} --temperatures 0.7"
    )
    assert settings == EvalSettings("m", "e", 3, 0.5, 0.9, 5, 7, 9, "plain", "i", 2, "float32", "g")
    assert machinery == Machinery("d", "cpu", 8, 2, 1.5, "judge", 0.5, "t", 4, 1, "K", True, "0.7")
    assert rest == ["a,b", Path("o"), True]


def test_two_evaluations_are_compared_in_the_order_given(sps):
    assert sps("--compare a b") == (Path("a"), Path("b"))


def test_settings_are_how_is_drawn():
    sampling = EvalSettings("m", None, 3, 0.5, 0.9, 5, 7, 9).sampling()
    got = (sampling.n, sampling.temperature, sampling.top_p, sampling.top_k)
    assert (*got, sampling.max_new_tokens, sampling.seed) == (3, 0.5, 0.9, 5, 7, 9)


@pytest.mark.parametrize(
    "bad",
    [{"n": 0}, {"max_new_tokens": 0}, {"limit": 0}, {"temperature": -0.1}, {"top_p": 0.0},
     {"top_p": 1.1}],
)  # fmt: skip
def test_numbers_outside_their_bounds_are_refused(bad):
    with pytest.raises(UserError):
        refuse_impossible(EvalSettings("m", **bad), Machinery(), ALONE)


def test_numbers_at_their_bounds_are_not():
    least = {"n": 1, "max_new_tokens": 1, "limit": 1, "temperature": 0.0, "top_p": 1.0}
    refuse_impossible(EvalSettings("m", **least), Machinery(), ALONE)
    refuse_impossible(EvalSettings("m", top_p=0.01, endpoint="e"), Machinery(), ALONE)


def test_countdown_is_the_first_problems_of_its_test_set():
    part = make_part("countdown", EvalSettings("m", limit=3), Machinery())
    every = make_part("countdown", EvalSettings("m"), Machinery())
    assert part.name == "countdown"
    assert [p.id for p in part.problems] == [p.id for p in every.problems[:3]]
    assert len(every.problems) > 3
    verdict = part.verifier().submit(part.problems[0], "", True).result()
    assert verdict.kind != "correct"


def test_multiple_choice_asks_for_a_letter_and_judges_with_the_cut(tmp_path):
    rows = [{"problem": "Which?\n\nA) x\nB) y", "answer": "y"}] * 2
    (tmp_path / "arc_challenge.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    data = {"data_dir": str(tmp_path)}
    for cut, kind in (("zero", "truncated"), ("judge", "correct")):
        part = make_part("arc_c", EvalSettings("m", limit=1), Machinery(**data, cut=cut))
        (problem,) = part.problems
        assert (
            part.verifier().submit(problem, "The answer is \\boxed{B}", False).result().kind == kind
        )
    plain = make_part("arc_c", EvalSettings("m", template="plain"), Machinery(**data))
    told = make_part(
        "arc_c", EvalSettings("m", template="plain", instruction="Say!"), Machinery(**data)
    )
    assert "letter" in str(plain.task.prompt(problem))
    assert "Say!" in str(told.task.prompt(problem))


def test_a_gym_task_has_a_hundred_problems_or_as_many_as_asked(monkeypatch):
    pytest.importorskip("reasoning_gym", reason="the extra sps-rl[gym] is not installed")
    monkeypatch.setattr("sps.verify.pool.VerifierPool", lambda **given: given)
    name = "gym:basic_arithmetic"
    part = make_part(name, EvalSettings("m", template="plain"), Machinery(workers=3, cut="judge"))
    assert (part.name, len(part.problems), part.task.template) == (name, 100, "plain")
    few = make_part(name, EvalSettings("m", limit=2), Machinery())
    assert [p.question for p in few.problems] == [p.question for p in part.problems[:2]]
    pool = part.verifier()
    assert pool.pop("judge") == "sps.tasks.gym.task:make_judge"
    want = {"task": "basic_arithmetic", "settings": {}, "cut": "judge", "unsafe": False}
    assert pool.pop("options") == want
    assert pool == {"workers": 3, "time_limit": 6.0, "fresh": False, "locked": True}


def test_an_endpoint_gets_what_was_said_of_it(monkeypatch):
    monkeypatch.setenv("KEY", "secret")
    settings = EvalSettings("m", endpoint="http://localhost:1/v1")
    engine = make_texts(settings, Machinery(concurrency=3, retries=2, api_key_env="KEY"))
    assert isinstance(engine, OpenAIEngine)
    got = (engine.endpoint, engine.model, engine.api_key, engine.concurrency, engine.retries)
    assert got == ("http://localhost:1/v1", "m", "secret", 3, 2)
    assert make_texts(settings, Machinery(api_key_env="NO_SUCH_KEY")).api_key == ""


def test_a_model_is_loaded_as_asked_and_drawn_from_in_rows(monkeypatch, policy):
    loaded = []
    monkeypatch.setattr(
        "sps.policy.load.load_policy", lambda *given: loaded.append(given) or policy
    )
    settings = EvalSettings("m", dtype="float32", gguf="g")
    texts = make_texts(settings, Machinery(device="cpu"))
    assert loaded == [("m", "g", "float32", "cpu", False)]
    assert (texts.policy, texts.engine.max_rows) == (policy, 64)
    assert (texts.engine.model, texts.engine.pad_id) == (policy.model, policy.pad_id)
    assert texts.engine.eos.tolist() == sorted(policy.eos_ids)
    assert torch.get_num_threads() == 1  # a small model
    assert make_texts(settings, Machinery(device="cpu", max_rows=5)).engine.max_rows == 5


def test_what_is_claimed_is_held_in_a_folder_that_need_not_be_there(tmp_path):
    said = {"model": "m", "dtype": "float32", "questions": {}, "cut": {}, "n": 1}
    keep(tmp_path / "a" / "b", said)
    keep(tmp_path / "a" / "b", said | {"n": 2})
    (tmp_path / "a" / "b" / "aime24").mkdir()
    (tmp_path / "a" / "b" / "aime24" / "samples.parquet").touch()
    assert held(tmp_path / "a" / "b") == said | {"n": 2}
    assert held(tmp_path / "c") == {}


def test_a_name_becomes_a_folder():
    assert slug("/a/b c:d_e-f.g/") == "a-b-c-d_e-f.g"
    assert slug("./x.") == "x"


def test_a_regrade_lacks_nothing_or_says_what(tmp_path):
    part = make_part("countdown", EvalSettings("m", limit=2), Machinery())
    store = command.EvalStore(tmp_path / "countdown")
    judged = {"text": "", "length": 1, "finished": True, "sum_logprob": 0.0, "verdict": "wrong"}
    for problem in part.problems:
        for sample in range(3 if problem is part.problems[0] else 2):
            key = {"problem_id": problem.id, "sample": sample, "detail": "", "answer": ""}
            store.append(judged | key)
    store.flush()
    command._check_complete(tmp_path, part, 2)
    with pytest.raises(UserError, match=r"not all 3 samples of 1 questions .* give --n 2,"):
        command._check_complete(tmp_path, part, 3)
