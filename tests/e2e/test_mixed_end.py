"""A run that ends with its weights mixed with the base's: checkpoint.mix."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killed, first_weights, recipe_of, run, same_weights, told, weights
from transformers import MixtralConfig, MixtralForCausalLM

from sps.build import open_run
from sps.commands.jobs import Extra, Job, run_extra
from sps.commands.mix import run_mix
from sps.commands.report import run_report
from sps.config.load import load_recipe
from sps.config.recipe import SHARES
from sps.diagnose.frontier import validation_paths
from sps.diagnose.read import read_run
from sps.diagnose.recorded import compared_runs
from sps.errors import UserError
from sps.evaluation import evaluate
from sps.evaluation.scores import load_scores
from sps.lifecycle import measure
from sps.policy.embedded import make_tokenizer
from sps.policy.load import load_policy
from sps.policy.resolve import resolve_model
from sps.reporting.blocks import percent
from sps.reporting.figures_frontier import frontier_blocks
from sps.reporting.study import load_study
from sps.reporting.words import summary
from sps.run.lock import release
from sps.tasks.countdown import Countdown

pytestmark = pytest.mark.usefixtures("one_cache")
SHARE = 0.3


def mixing(**changes):
    return recipe_of(checkpoint__mix=SHARE, evaluation__final=True, evaluation__every=3, **changes)


def model_weights(folder):
    return {n: p.detach() for n, p in load_policy(str(folder)).model.named_parameters()}


def test_a_run_ends_with_its_share_of_the_base_and_is_scored_so(tmp_path):
    recipe, out = mixing(), tmp_path / "run"
    this, scores = run(recipe, out)
    base, last = first_weights(recipe, tmp_path), weights(out)
    made = model_weights(out / "checkpoints" / "mixed")
    for name, weight in made.items():
        wanted = SHARE * base[name].double() + (1 - SHARE) * last[name].double()
        torch.testing.assert_close(weight.double(), wanted, rtol=1e-6, atol=1e-7)
        assert not torch.equal(base[name], last[name])
    assert same_weights(made, dict(this.policy.model.named_parameters()))  # and is what was scored
    plain, before = run(recipe.model_copy(update={"checkpoint": recipe_of().checkpoint}), out / "b")
    assert same_weights(weights(out), weights(out / "b"))  # training is as without
    assert scores.mean_logprob != before.mean_logprob
    records = told(out)
    assert [r["name"] for r in records if r["kind"] == "eval"][-2:] == ["mixed-000006", "test"]
    assert (records[-1]["kind"], records[-1]["mixed"]) == ("done", SHARE)
    assert not (out / "b" / "checkpoints" / "mixed").exists()
    assert plain.recipe.checkpoint.mix == 0


def test_what_stands_for_the_run_is_the_mix_but_a_mix_is_not_mixed(tmp_path):
    recipe, out = mixing(), tmp_path / "run"
    run(recipe, out)
    assert resolve_model(str(out)) == str(out / "checkpoints" / "mixed")
    start = open_run(recipe_of(), tmp_path / "new")
    start.policy.model.save_pretrained(tmp_path / "base")
    start.policy.tokenizer.save_pretrained(tmp_path / "base")
    made = run_mix(str(tmp_path / "base"), str(out), str(SHARE), tmp_path / "mixes")
    again, first = (load_file(f"{p}/model.safetensors") for p in (made, resolve_model(str(out))))
    assert all(torch.equal(again[name], first[name]) for name in first)


def test_its_card_says_so_and_the_checkpoint_it_came_from_has_no_test_scores(tmp_path):
    run(mixing(), tmp_path / "run")
    card = (tmp_path / "run" / "checkpoints" / "mixed" / "README.md").read_text()
    assert "step 6, mixed with its base" in card
    assert "0.3 of the base's and 0.7 of that checkpoint's" in card
    assert "| test |" in card
    mixed = load_scores(tmp_path / "run" / "evals" / "mixed-000006.json").pass_at_k(1)
    last = load_scores(tmp_path / "run" / "evals" / "validation-000006.json").pass_at_k(1)
    assert mixed != last
    row = next(line for line in card.splitlines() if line.startswith("| validation |"))
    assert "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in mixed)) in row  # the mix's own
    own = (tmp_path / "run" / "checkpoints" / "step-000006" / "README.md").read_text()
    assert "| test |" not in own
    assert "mixed" not in own.split("## How it was made")[0]


@pytest.mark.parametrize("name", ["mixed-000006", "test"])
def test_killed_at_its_end_it_ends_as_one_that_was_not(tmp_path, name):
    def kill(record):
        if record.get("name") == name:
            raise Killed

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(mixing(), whole)
    with pytest.raises(Killed):
        run(mixing(), cut, listeners=[kill])
    run(mixing(), cut, resume=True)
    assert told(cut) == told(whole)
    for of in ("mixed-000006", "test"):
        a, b = (json.loads((p / "evals" / f"{of}.json").read_text()) for p in (whole, cut))
        assert a == b
    assert same_weights(*(model_weights(p / "checkpoints" / "mixed") for p in (whole, cut)))


def test_without_a_final_evaluation_the_mix_is_made_all_the_same(tmp_path):
    recipe = recipe_of(checkpoint__mix=SHARE)
    assert run(recipe, tmp_path / "run")[1] is None
    assert (tmp_path / "run" / "checkpoints" / "mixed" / "model.safetensors").exists()
    assert not list((tmp_path / "run" / "evals").glob("*.json"))  # never validated, never tested


def test_adapters_are_mixed_by_making_them_smaller(tmp_path):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    recipe = mixing(model__lora={"rank": 4, "alpha": 8})
    out = tmp_path / "run"
    this, _ = run(recipe, out)
    mixed, last = (
        load_file(out / "checkpoints" / name / "adapter_model.safetensors")
        for name in ("mixed", "step-000006")
    )
    assert mixed.keys() == last.keys()
    for name, weight in last.items():
        share = 1 - SHARE if "lora_B" in name else 1.0
        torch.testing.assert_close(mixed[name], share * weight)
        assert torch.any(weight)
    own = dict(this.policy.model.named_parameters())
    names = [name for name in last if "lora_B" in name]
    scored = sorted(float(own[n].detach().norm()) for n in own if "lora_B" in n)
    assert scored == sorted(float(mixed[n].norm()) for n in names)


def moe(folder):
    """A tiny mixture of experts, whose files name weights otherwise than the model does."""
    tokenizer = make_tokenizer(Countdown().vocabulary())
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "intermediate_size": 16, "num_local_experts": 2}
    config = MixtralConfig(vocab_size=len(tokenizer), bos_token_id=None, **ids, **shape)
    MixtralForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_mixture_of_experts_is_mixed_too(tmp_path):
    start, out = moe(tmp_path / "base"), tmp_path / "run"
    recipe = recipe_of(checkpoint__mix=SHARE, model__path=str(start), rl__entropy=0.1, rl__lr=0.01)
    run(recipe, out)
    base, last = model_weights(start), weights(out)
    made = model_weights(out / "checkpoints" / "mixed")
    assert any("experts" in name for name in made)
    moved = [name for name in made if not torch.equal(base[name], last[name])]
    assert any("experts" in name for name in moved)
    for name, weight in made.items():
        wanted = SHARE * base[name].double() + (1 - SHARE) * last[name].double()
        torch.testing.assert_close(weight.double(), wanted, rtol=1e-6, atol=1e-7)


def test_a_base_that_is_gone_is_said_before_any_work_and_loses_nothing(tmp_path):
    start, out = tmp_path / "base", tmp_path / "run"
    first = open_run(recipe_of(), tmp_path / "new").policy
    first.model.save_pretrained(start)
    first.tokenizer.save_pretrained(start)
    recipe = mixing(model__path=str(start))
    run(recipe, out)
    before = model_weights(out / "checkpoints" / "mixed")
    records = told(out)
    start.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"checkpoint.mix: .*/base \(model.path\) is not there"):
        run(recipe, out, resume=True)
    assert told(out) == records
    assert same_weights(model_weights(resolve_model(str(out))), before)


def test_adapters_that_go_on_are_not_mixed(tmp_path):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    lora = {"rank": 4, "alpha": 8}
    run(recipe_of(model__lora=lora), tmp_path / "first")
    start = tmp_path / "first" / "checkpoints" / "step-000006"
    with pytest.raises(UserError, match=r"checkpoint.mix: .* holds LoRA adapters"):
        open_run(mixing(model__lora=lora, model__path=str(start)), tmp_path / "second")


def test_without_a_final_evaluation_no_test_problem_is_looked_at(tmp_path):
    run(recipe_of(checkpoint__mix=SHARE, evaluation__select="paper"), tmp_path / "run")
    assert not [r for r in told(tmp_path / "run") if r["kind"] == "eval"]
    assert (tmp_path / "run" / "checkpoints" / "mixed").exists()


def test_a_mix_of_another_step_than_the_last_is_no_point_of_the_path(tmp_path):
    recipe = mixing(evaluation__select="honest", rl__lr=0.03, checkpoint__every=3)
    run(recipe, tmp_path / "run")
    assert told(tmp_path / "run")[-1]["selected"] != 6
    paths = validation_paths({"mixing": [read_run(tmp_path / "run")]})
    assert paths.steps["mixing"] == [3, 6]


def test_an_early_stop_of_a_comparison_is_not_mixed(tmp_path):
    recipe, out = mixing(), tmp_path / "run"
    run(recipe, out)
    job = Job("x", load_recipe(out / "recipe.yaml"), out, (Extra("x @6", step=6),))
    early = run_extra(job)["x @6"]["greedy_logprob"]
    plain = recipe.model_copy(update={"checkpoint": recipe_of().checkpoint})
    assert early == run(plain, tmp_path / "plain")[1].greedy_logprob
    assert early != load_scores(out / "evals" / "test.json").greedy_logprob


def test_the_path_of_the_frontier_ends_with_the_mix(tmp_path):
    run(mixing(), tmp_path / "run")
    paths = validation_paths({"mixing": [read_run(tmp_path / "run")]})
    assert paths.steps["mixing"] == [3, 6, "mixed"]
    scores = load_scores(tmp_path / "run" / "evals" / "mixed-000006.json")
    assert paths.correct["mixing"][-1, 0].tolist() == scores.correct_Q.tolist()
    record = json.loads(json.dumps(paths.record(paths.compare())))
    again = validation_paths(compared_runs(tmp_path, {"frontier": record}))
    assert again.steps == paths.steps
    assert (again.correct["mixing"] == paths.correct["mixing"]).all()
    run_report([tmp_path / "run"], svg=tmp_path / "frontier.svg")
    assert "to step 6, then mixed with the base" in (tmp_path / "frontier.svg").read_text()


def test_the_report_says_what_share_of_the_base_a_run_ended_with(tmp_path):
    out = tmp_path / "run"
    run(mixing(), out)
    study = load_study([out])
    (name,) = (s.name for s in study.subjects)
    figure, _ = frontier_blocks(study)
    assert f"The last mark of {name} (0.3) is its weights mixed with the base's" in figure.note
    table = summary(study)[1]
    assert table.columns[1:] == ["step 0", "step 6", "mixed, 0.3 of the base"]
    scores = load_scores(out / "evals" / "mixed-000006.json")
    assert table.rows[0][3] == percent(scores.pass_at_k(1))
    (out / "metrics.jsonl").write_text("")  # nobody knows the share
    assert summary(load_study([out]))[1].columns[1:] == ["step 0", "step 6"]
    run(recipe_of(evaluation__final=True, evaluation__every=3), tmp_path / "plain")
    assert summary(load_study([tmp_path / "plain"]))[1].columns[1:] == ["step 0", "step 6"]


def keeping(**changes):
    return recipe_of(
        **{
            "checkpoint__mix": "auto",
            "evaluation__final": True,
            "evaluation__every": 3,
            "rl__lr": 0.03,
        }
        | changes
    )


def passes(folder, name):
    """Problems that were solved at least once."""
    return int((load_scores(folder / "evals" / f"{name}.json").correct_Q > 0).sum())


def judged(monkeypatch, solved):
    """Evaluations as they are, but of the four problems so many count as solved, by name."""
    real = evaluate.evaluate

    def counted(policy, engine, job):
        scores, name = real(policy, engine, job), job.store.folder.name
        count = solved.get(name.removesuffix("-000006") if "share" in name else name)
        if count is None:
            return scores
        solved_Q = (np.arange(len(scores.ids)) < count).astype(int)
        return replace(scores, correct_Q=solved_Q, solutions_Q=None)

    monkeypatch.setattr(measure, "evaluate", counted)


@pytest.mark.parametrize(
    ("after", "share", "tried"),
    [
        ({"validation-000006": 3}, 0.0, []),
        ({"validation-000006": 2, "share-0.1": 2, "share-0.3": 3}, 0.3, [0.1, 0.3]),
        (dict.fromkeys(["validation-000006", *(f"share-{s}" for s in SHARES)], 1), 0.9, SHARES),
    ],
    ids=["none is needed", "the first that is enough", "none is enough"],
)
def test_the_least_share_that_keeps_the_bases_pass_at_k_is_taken(
    tmp_path, monkeypatch, after, share, tried
):
    judged(monkeypatch, {"validation-000000": 3} | after)
    recipe, out = keeping(), tmp_path / "run"
    this, _ = run(recipe, out)
    records = told(out)
    names = [r["name"] for r in records if r["kind"] == "eval"]
    wanted = [f"share-{s:g}-000006" for s in tried] + ["mixed-000006", "test"]
    assert names[names.index("validation-000006") + 1 :] == wanted
    last = names[names.index("mixed-000006") - 1]
    read = [json.loads((out / "evals" / f"{n}.json").read_text()) for n in ("mixed-000006", last)]
    assert read[0] == read[1]
    assert (records[-1]["kind"], records[-1]["mixed"]) == ("done", share)
    said = [
        r["text"] for r in records if r["kind"] == "warning" and "no share keeps it" in r["text"]
    ]
    assert [*map(bool, said)] == [True] * (share == SHARES[-1])
    assert all("Pass@4 on the validation problems is 25.0% and the base's 75.0%" in t for t in said)
    folder = out / "checkpoints" / "mixed"
    assert folder.exists() == (share > 0)
    assert not list((out / "checkpoints").glob("mixed.*"))
    base, trained = first_weights(recipe, tmp_path), weights(out)
    for name, weight in this.policy.model.named_parameters():  # what was tested
        own = share * base[name].double() + (1 - share) * trained[name].double()
        torch.testing.assert_close(weight.detach().double(), own, rtol=1e-6, atol=1e-7)
    saved = model_weights(resolve_model(str(out)))
    assert same_weights(saved, dict(this.policy.model.named_parameters()))
    card = (out / "checkpoints" / ("mixed" if share else "step-000006") / "README.md").read_text()
    assert "| test |" in card
    said = {
        0.0: "",
        0.3: "0.3 of the base's (the least share that kept the base's Pass@4 on the validation",
        0.9: "0.9 of the base's (the largest share that is tried; none kept the base's Pass@4 on "
        "the validation problems, 75.0%: it is 25.0%) and 0.1 of that checkpoint's",
    }
    assert said[share] in card


def test_a_base_that_solves_nothing_has_nothing_to_be_kept(tmp_path, monkeypatch):
    judged(monkeypatch, {"validation-000000": 0, "validation-000006": 0})
    run(keeping(), tmp_path / "run")
    assert told(tmp_path / "run")[-1]["mixed"] == 0
    said = [r["text"] for r in told(tmp_path / "run") if r["kind"] == "warning"]
    assert sum("the base solves none of the validation problems" in text for text in said) == 1


def test_adapters_are_made_as_small_as_keeps_pass_at_k(tmp_path, monkeypatch):
    pytest.importorskip("peft", reason="the extra sps-rl[lora] is not installed")
    judged(
        monkeypatch,
        {"validation-000000": 3, "validation-000006": 2, "share-0.1": 2, "share-0.3": 3},
    )
    run(keeping(model__lora={"rank": 4, "alpha": 8}), tmp_path / "run")
    mixed, last = (
        load_file(tmp_path / "run" / "checkpoints" / name / "adapter_model.safetensors")
        for name in ("mixed", "step-000006")
    )
    for name, weight in last.items():
        torch.testing.assert_close(mixed[name], (0.7 if "lora_B" in name else 1.0) * weight)


@pytest.mark.parametrize("name", ["share-0.1-000006", "share-0.3-000006", "mixed-000006"])
def test_killed_while_shares_are_tried_it_ends_as_one_that_was_not(tmp_path, monkeypatch, name):
    solved = {"validation-000000": 3, "validation-000006": 2, "share-0.1": 2, "share-0.3": 3}
    judged(monkeypatch, solved)

    def kill(record):
        if record.get("name") == name:
            raise Killed

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(keeping(), whole)
    with pytest.raises(Killed):
        run(keeping(), cut, listeners=[kill])
    if name != "mixed-000006":  # nothing has been chosen yet
        assert resolve_model(str(cut)) == str(cut / "checkpoints" / "step-000006")
    open_run(keeping(), cut, resume=True).close()
    assert not list((cut / "checkpoints").glob("mixed.*"))
    release(cut)
    run(keeping(), cut, resume=True)
    assert told(cut) == told(whole)
    assert same_weights(*(model_weights(p / "checkpoints" / "mixed") for p in (whole, cut)))
    assert not list((cut / "checkpoints").glob("mixed.*"))


def test_a_run_that_ends_again_without_a_mix_has_none(tmp_path, monkeypatch):
    recipe, out = keeping(checkpoint__every=6), tmp_path / "run"
    judged(monkeypatch, {"validation-000000": 3, "validation-000006": 2, "share-0.1": 3})
    run(recipe, out)
    assert (out / "checkpoints" / "mixed").exists()
    judged(monkeypatch, {"validation-000006": 3})
    shutil.rmtree(out / "checkpoints" / "step-000006")  # so that it trains again
    run(recipe, out, resume=True)
    assert told(out)[-1]["mixed"] == 0
    assert not (out / "checkpoints" / "mixed").exists()


def test_without_a_mix_the_selected_step_is_what_is_tested(tmp_path, monkeypatch):
    judged(monkeypatch, {"validation-000000": 3, "validation-000003": 4, "validation-000006": 3})
    recipe = keeping(evaluation__select="honest", checkpoint__every=3)
    this, _ = run(recipe, tmp_path / "run")
    assert (told(tmp_path / "run")[-1]["selected"], told(tmp_path / "run")[-1]["mixed"]) == (3, 0)
    own = dict(this.policy.model.named_parameters())
    assert same_weights({n: w.detach() for n, w in own.items()}, weights(tmp_path / "run", 3))


def test_a_selected_step_that_was_not_validated_is_so_first_and_is_no_point_of_the_path(tmp_path):
    recipe, out = keeping(evaluation__every=4, evaluation__select="paper"), tmp_path / "run"
    recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"lr": 0.2})})
    run(recipe, out)
    records = told(out)
    assert records[-1]["selected"] == 2  # the first: at this rate it gets worse
    names = [r["name"] for r in records if r["kind"] == "eval"]
    assert "share-0-000002" in names
    assert "validation-000002" not in names
    kept = passes(out, "mixed-000002") >= passes(out, "validation-000000")
    assert kept or records[-1]["mixed"] == SHARES[-1]
    run(recipe, out, resume=True)
    assert told(out) == records


@pytest.mark.parametrize("lost", ["evals/validation-000000.json", "metrics.jsonl"])
def test_a_base_whose_scores_were_lost_is_measured_again(tmp_path, lost):
    recipe, out = keeping(rl__lr=1e-3), tmp_path / "run"
    run(recipe, out)
    before = json.loads((out / "evals" / "validation-000000.json").read_text())
    ended = told(out)[-1]
    (out / lost).unlink()
    (out / "metrics.jsonl").touch()
    run(recipe, out, resume=True)
    assert json.loads((out / "evals" / "validation-000000.json").read_text()) == before
    assert told(out)[-1] == ended
    assert not list((out / "checkpoints").glob("mixed.*"))
    card = (Path(resolve_model(str(out))) / "README.md").read_text()
    greedy = next(line for line in card.splitlines() if "greedy answer" in line)
    assert "(0) |" in greedy
    assert greedy.endswith("(6) |")


def test_a_path_whose_runs_needed_no_mix_has_none(tmp_path, monkeypatch):
    judged(monkeypatch, {"validation-000000": 2, "validation-000006": 2})
    run(keeping(), tmp_path / "a")
    judged(monkeypatch, {"validation-000000": 2, "validation-000006": 1, "share-0.1": 2})
    run(keeping(seed=2), tmp_path / "b")
    a, b = (read_run(tmp_path / name) for name in "ab")
    assert validation_paths({"x": [a]}).steps["x"] == [3, 6]
    assert validation_paths({"x": [b]}).steps["x"] == [3, 6, "mixed"]
    assert validation_paths({"x": [a, b]}).steps["x"] == [3, 6, "mixed"]
    page = Path(run_report([tmp_path / "b"])).read_text()
    assert "share in them was chosen on these questions" in page


@pytest.mark.parametrize("before", [0.0, SHARE])
def test_a_run_does_not_go_on_with_another_end(tmp_path, before):
    run(keeping(checkpoint__mix=before), tmp_path / "run")
    records = told(tmp_path / "run")
    said = rf"cannot resume, the recipe changed: checkpoint\.mix was {before}, is 'auto'"
    with pytest.raises(UserError, match=said):
        run(keeping(), tmp_path / "run", resume=True)
    assert told(tmp_path / "run") == records


@pytest.mark.parametrize("changes", [{"evaluation__every": 0}, {"evaluation__validation_n": 1}])
def test_a_share_cannot_be_chosen_without_pass_at_k_of_the_base(changes):
    with pytest.raises(UserError, match=r"checkpoint\.mix: auto keeps the base's Pass@k.*mix: 0.3"):
        keeping(**changes)


@pytest.mark.parametrize("share", ["most", 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_says_what_it_may_be(share):
    said = r"checkpoint\.mix: give a share of the base from 0 to below 1, such as 0\.3, or auto \("
    with pytest.raises(UserError, match=said):
        recipe_of(checkpoint__mix=share)
