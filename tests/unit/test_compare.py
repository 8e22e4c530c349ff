"""Where the runs of a comparison go, and what may be compared."""

import os
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
import torch

from sps.compare import Extra, Job, _gpus, _take_card, run_extra, run_job
from sps.config import dump_recipe, parse_recipe
from sps.errors import UserError


def job(**model):
    return Job("x", parse_recipe({"model": model}, "test"), Path())


@pytest.mark.parametrize(
    ("model", "cards"),
    [({}, 0), ({"device": "cpu", "path": "a/b"}, 0), ({"path": "a/b"}, 3), ({"device": "cuda"}, 3)],
)
def test_models_go_to_gpus_and_the_embedded_policy_to_cores(monkeypatch, model, cards):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert _gpus([job(**model)]) == cards
    assert _gpus([job(), job(**model)]) == cards


@pytest.mark.parametrize(("visible", "want"), [(None, ["0", "1"]), ("4,6", ["4", "6"])])
def test_each_worker_sees_one_gpu_of_those_allowed(monkeypatch, visible, want):
    cards = Queue()
    got = []
    for number in (0, 1):
        cards.put(number)
    for _ in range(2):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        _take_card(cards)
        got.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert got == want


def finished(folder, tree, **kind):
    """The folder of a job that ended, and the job."""
    one = Job("x", parse_recipe(tree, "test"), folder, **kind)
    (folder / "evals").mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(dump_recipe(one.recipe))
    (folder / "result.json").write_text('{"x": {"n": 4}}')
    (folder / "evals" / "test-000200-1.json").write_text('{"n": 8}')
    return one


def test_a_result_of_another_recipe_is_refused(tmp_path):
    extra = Extra("x @200", step=200)
    one = finished(tmp_path / "x", {"rl": {"lr": 1e-4}}, extras=(extra,))
    assert run_job(one) == {"x": {"n": 4}}
    assert run_extra(one) == {"x @200": {"n": 8}}
    other = replace(one, recipe=parse_recipe({"rl": {"lr": 0.5}, "evaluation": {"n": 2}}, "test"))
    wanted = r"x: .*another recipe: evaluation.n was 128, is 2; rl.lr was 0.0001, is 0.5.*--out"
    for read in (run_job, run_extra):
        with pytest.raises(UserError, match=wanted):
            read(other)
        with pytest.raises(UserError, match=r"another recipe"):
            read(replace(other, train=False))


def test_the_base_is_the_same_for_every_recipe_that_measures_it_alike(tmp_path):
    base = finished(tmp_path / "base", {"name": "grpo"}, train=False)
    alike = {"name": "sps", "seed": 3, "rl": {"lr": 0.5}, "evaluation": {"every": 7}}
    assert run_job(replace(base, recipe=parse_recipe(alike, "test"))) == {"x": {"n": 4}}
    for tree, key in [
        ({"task": {"test": 9}}, "task.test"),
        ({"evaluation": {"n": 9}}, "evaluation.n"),
        ({"rollout": {"max_new_tokens": 9}}, "rollout.max_new_tokens"),
        ({"model": {"base": {"steps": 9}}}, "model.base.steps"),
    ]:
        with pytest.raises(UserError, match=f"another recipe: {key} was"):
            run_job(replace(base, recipe=parse_recipe(tree, "test")))
