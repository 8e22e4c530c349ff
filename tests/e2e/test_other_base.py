"""A run whose base was replaced by other weights under the same path is not gone on with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace as replaced
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from small_runs import recipe_of, run, told
from transformers import LlamaConfig, LlamaForCausalLM

from sps.build import open_run
from sps.commands.eval_options import make_options
from sps.commands.evaluate import run_eval
from sps.commands.jobs import Extra, Job, run_extra, run_job
from sps.errors import UserError
from sps.lifecycle.resume import keep_base
from sps.policy.embedded import SHIPPED
from sps.policy.weights import weights_digest

OTHER = r"base \(model\.path\) holds other weights now than when this run began"


@pytest.fixture
def base(tmp_path) -> Path:
    shipped = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
    return Path(shutil.copytree(shipped, tmp_path / "base"))


def replace(base: Path) -> None:
    file = base / "model.safetensors"
    weights = {name: 1.01 * weight for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})


def short(base: Path, **changes):
    return recipe_of(model__path=str(base), rl__steps=2, irl__steps=0, **changes)


def test_a_run_keeps_a_digest_of_its_base_and_is_not_resumed_from_another(base, tmp_path):
    out, kept = tmp_path / "run", shutil.copytree(base, tmp_path / "kept")
    run(short(base), out)
    assert (out / "base.sha256").read_text() == f"{weights_digest(str(base))}\n"
    records = told(out)
    replace(base)
    with pytest.raises(UserError, match=OTHER) as said:
        open_run(short(base), out, resume=True)
    assert f"{out}: {base}" in str(said.value)
    assert "Put them back as they were, or begin a new run in another folder with --out" in str(
        said.value
    )
    assert told(out) == records
    shutil.copytree(kept, base, dirs_exist_ok=True)
    run(short(base), out, resume=True)
    replace(base)
    (out / "base.sha256").unlink()  # of an older version, which does not say
    open_run(short(base), out, resume=True).close()
    assert not (out / "base.sha256").exists()  # nor is it known now


def test_what_an_attempt_left_that_did_not_begin_is_of_no_matter(base, tmp_path):
    written = tmp_path / "base.sha256"
    written.write_text("of another recipe\n")
    keep_base(short(base).model, tmp_path)
    assert written.read_text() == f"{weights_digest(str(base))}\n"
    keep_base(recipe_of().model, tmp_path)  # of the embedded policy nothing is kept
    assert not written.exists()


def test_a_base_that_is_only_here_once_it_is_loaded_is_known_too(base, tmp_path, monkeypatch):
    """As that of a hub id, which is downloaded then."""
    found = iter(["", "0123456789abcdef"])
    monkeypatch.setattr("sps.lifecycle.resume.weights_digest", lambda *model: next(found))
    open_run(short(base), tmp_path / "run").close()
    assert (tmp_path / "run" / "base.sha256").read_text() == "0123456789abcdef\n"


def test_a_run_does_not_end_with_a_mix_of_another_base(base, tmp_path):
    def late(record):
        if record["kind"] == "rl" and record["step"] == 2:
            replace(base)

    with pytest.raises(UserError, match=OTHER):
        run(short(base, checkpoint__mix=0.3), tmp_path / "run", listeners=[late])
    assert (tmp_path / "run" / "checkpoints" / "step-000002").exists()
    assert not (tmp_path / "run" / "checkpoints" / "mixed").exists()


def test_a_comparison_does_not_count_what_began_from_another_base(base, tmp_path):
    recipe = short(base, evaluation__final=True)
    jobs = [
        Job("x", recipe, tmp_path / "x", extras=(Extra("x mix", mix=0.3),)),
        Job("base", recipe, tmp_path / "b", train=False),
    ]
    first = [run_job(job) for job in jobs]
    assert [run_job(job) for job in jobs] == first
    replace(base)
    for read, job in ((run_job, jobs[0]), (run_extra, jobs[0]), (run_job, jobs[1])):
        with pytest.raises(UserError, match=OTHER):
            read(job)
    assert not list((tmp_path / "x" / "evals").glob("mix-*"))


def test_an_evaluation_does_not_go_on_with_other_weights_of_the_same_name(base, tmp_path):
    def evaluate(n):
        given = {"n": n, "limit": 2, "max_new_tokens": 4, "template": "plain", "workers": 1}
        return run_eval(*make_options(str(base), given), "countdown", tmp_path / "eval")

    evaluate(1)
    about = tmp_path / "eval" / "eval.json"
    held = json.loads(about.read_text())
    assert held["weights"] == weights_digest(str(base))
    evaluate(2)
    base.rename(tmp_path / "away")  # what is drawn already needs no weights
    evaluate(2)
    assert json.loads(about.read_text())["weights"] == held["weights"]
    (tmp_path / "away").rename(base)
    replace(base)
    with pytest.raises(UserError, match=r"another set of weights under the name .*base; .*--out"):
        evaluate(3)
    about.write_text(json.dumps({k: v for k, v in held.items() if k != "weights"}))
    evaluate(3)  # of an older version, which does not say
    assert json.loads(about.read_text())["weights"] == weights_digest(str(base))


def test_an_evaluation_keeps_the_digest_of_what_is_only_here_once_it_is_loaded(
    base, tmp_path, monkeypatch
):
    found = iter(["", "0123456789abcdef"])
    monkeypatch.setattr("sps.commands.evaluate.weights_digest", lambda *model: next(found))
    given = {"n": 1, "limit": 1, "max_new_tokens": 2, "template": "plain", "workers": 1}
    run_eval(*make_options(str(base), given), "countdown", tmp_path / "eval")
    held = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert held["weights"] == "0123456789abcdef"


def test_from_another_folder_the_error_names_the_one_that_a_run_was_started_in(
    base, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipe, out = short(Path("base"), checkpoint__mix=0.3, evaluation__final=True), tmp_path / "run"
    job = Job("x", recipe, out)
    scores = run_job(job)
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    where = rf"model\.path: base is not in {tmp_path}/away but in {tmp_path}, where this run was"
    with pytest.raises(UserError, match=where):
        open_run(recipe, out, resume=True)
    assert run_job(job) == scores  # it has ended, and is only read
    with pytest.raises(UserError, match=where):
        run_extra(replaced(job, extras=(Extra("x mix", mix=0.5),), train=False))
    (out / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(UserError, match=where):
        run_job(job)
    (tmp_path / "result.json").rename(out / "result.json")
    shutil.copytree(base, "base")  # all that it names is here, too
    open_run(recipe, out, resume=True).close()
    assert (out / "started_in").read_text() == str(tmp_path / "away")
    monkeypatch.chdir(tmp_path)
    assert run_job(job) == scores


def test_from_another_folder_a_run_goes_on_that_needs_its_base_no_more(base, tmp_path, monkeypatch):
    """All weights are in its checkpoint; before there is one it has no others."""
    monkeypatch.chdir(tmp_path)
    recipe, out = short(Path("base"), evaluation__final=True), tmp_path / "run"
    job = Job("x", recipe, out)
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    with pytest.raises(UserError, match="there is no folder base"):
        run_job(job)
    monkeypatch.chdir(tmp_path)
    scores = run_job(job)
    monkeypatch.chdir(tmp_path / "away")
    assert run_extra(replaced(job, extras=(Extra("x", step=2),), train=False))["x"]["n"] == 4
    open_run(recipe, out, resume=True).close()
    (out / "result.json").unlink()
    assert run_job(job)["x"]["pass_at_k"] == scores["x"]["pass_at_k"]
    assert (out / "started_in").read_text() == str(tmp_path)  # where the base is
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(UserError, match=r"model\.path: base is not in .*/away but in"):
        open_run(recipe, out, resume=True)


def test_a_card_that_is_written_in_another_folder_makes_no_hub_id_of_the_base(
    base, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    base.rename(tmp_path / "mine" / "base")
    recipe, out = short(Path("mine/base"), evaluation__final=True), tmp_path / "run"
    run(recipe, out)
    card = out / "checkpoints" / "step-000002" / "README.md"
    before = card.read_text()
    assert "a local model, base" in before
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    for _ in range(2):
        run(recipe, out, resume=True)
        assert card.read_text() == before


def test_adapters_are_not_resumed_on_another_base(base, tmp_path):
    """Which is said before they are put on it: it may have another shape."""
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    recipe = short(base, model__lora={"rank": 4, "alpha": 8})
    run(recipe, tmp_path / "run")
    config = LlamaConfig.from_pretrained(base, num_hidden_layers=1)
    LlamaForCausalLM(config).save_pretrained(base)
    with pytest.raises(UserError, match=OTHER):
        open_run(recipe, tmp_path / "run", resume=True)
