"""docs/from_trl.md: its run is moved and trained, and its tables are TRL's defaults and ours."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import oracle
import pytest
from conftest import make_policy
from test_cli import sps

from sps.commands import init
from sps.config.load import load_recipe, parse_recipe
from sps.config.rl import RL
from sps.run.track import read_records
from sps.types import Problem

PAGE = (Path(__file__).parents[2] / "docs" / "from_trl.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+\.(?:py|yaml))\n(.*?)^```$", PAGE, re.M | re.S))
ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| `([\w.]+)` \| (\S+)(?: \((\w+)\))? \|", re.M)
ROWS = [row.groups() for row in ROW.finditer(PAGE)]


def arguments():
    """What before.py gives GRPOConfig."""
    for node in ast.walk(ast.parse(FILES["before.py"])):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GRPOConfig":
            return {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    raise AssertionError("no GRPOConfig")


def test_the_moved_run_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(init._POLICY, "steps", 5)
    assert sps("init", "start") == 0
    rows = [{"prompt": f"The capital of {c}:", "capital": c} for c in ("Peru", "Cuba", "Togo")]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("my_task.py").write_text(FILES["my_task.py"])
    Path("recipe.yaml").write_text(FILES["recipe.yaml"].replace("MODEL", "start/model"))
    small = ["rl.steps=1", "rollout.prompts=1", "rollout.max_new_tokens=4", "evaluation.every=0"]
    small += ["evaluation.n=2", "task.workers=1", "meter.problems=1"]
    assert sps("train", "recipe.yaml", *(w for item in small for w in ("--set", item))) == 0
    kinds = [r["kind"] for r in read_records(Path("runs/moved/metrics.jsonl"))]
    assert kinds[-1] == "done"


def test_the_moved_run_is_the_one_it_was(tmp_path):
    given, file = arguments(), tmp_path / "recipe.yaml"
    file.write_text(FILES["recipe.yaml"])
    recipe = load_recipe(file)
    drawn = given["per_device_train_batch_size"] * given["gradient_accumulation_steps"]
    assert recipe.rollout.prompts * recipe.rollout.n == drawn
    assert recipe.rollout.n == given["num_generations"]
    assert recipe.rollout.max_new_tokens == given["max_completion_length"]
    assert (recipe.rl.steps, recipe.rl.lr) == (given["max_steps"], given["learning_rate"])
    algorithm = recipe.rl.algorithm
    assert (algorithm.beta, algorithm.eps, algorithm.eps_high) == (given["beta"], 0.2, 0.2)
    assert f"runs/{recipe.name}" == given["output_dir"]


def test_its_judge_is_the_reward_function():
    theirs, ours = {}, {}
    (reward,) = (n for n in ast.parse(FILES["before.py"]).body if isinstance(n, ast.FunctionDef))
    exec(compile(ast.Module([reward], []), "before.py", "exec"), theirs)
    exec(FILES["my_task.py"], ours)
    problem = Problem("1", "The capital of Peru:", "", {"capital": "Lima"})
    for text in ("Lima", " It is Lima.", "Cusco", ""):
        assert theirs["right"]([text], ["Lima"]) == [ours["judge"](problem, text)]
    assert ours["prompt"](problem) == "The capital of Peru:"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_argument_is_there_with_its_default_and_ours(row):
    theirs, default, key, ours, kind = row
    recipe = parse_recipe({"rl": {"algorithm": {"type": kind or "grpo"}}}, "page").model_dump()
    for part in key.split("."):
        recipe = recipe[part]
    assert {"None": "null", "True": "true", "False": "false"}.get(str(recipe), str(recipe)) == ours
    config = pytest.importorskip("trl").GRPOConfig
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    assert str(fields[theirs]) == default


def test_every_other_argument_is_one_of_trls():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ", PAGE, re.M)
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} - {"GRPOConfig"}
    assert len(ROWS) > 30
    assert named > {row[0] for row in ROWS}
    said = set(re.findall(r"`(\w+)=", PAGE)) - {"every", "steps", "memory"}
    config = pytest.importorskip("trl").GRPOConfig
    fields = {field.name for field in dataclasses.fields(config)}
    assert (named | said | set(arguments())) - fields == set()


def test_weights_and_betas_of_adam_are_the_same_as_trls():
    config = pytest.importorskip("trl").GRPOConfig
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    assert RL().optimizer.betas == (fields["adam_beta1"], fields["adam_beta2"])
    assert fields["lr_scheduler_type"] == "linear"
    assert fields["vllm_importance_sampling_mode"] == "sequence_mask"
    assert fields["vllm_importance_sampling_clip_max"] == 3.0
    assert fields["loss_type"] == "dapo"
    assert fields["use_bias_correction_kl"]


# What TRL is given, and the algorithm that the page says it is here. tests/oracle.py is that by
# hand, and tests/unit/phases hold the product to it; test_trl_parity.py compares losses alone.
SAME = {
    "default": ({}, {"type": "dapo", "eps_high": 0.2, "max_resample_times": 0}),
    "grpo_kl": (
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
        {"type": "grpo", "beta": 0.3},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, {"type": "cispo"}),
}


@pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own
@pytest.mark.parametrize("name", sorted(SAME))
def test_a_step_of_trl_is_the_step_that_the_page_names(name, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    from trl.trainer import grpo_trainer
    from trl_runs import make_trainer, odd

    # TRL's reference policy, which it reads from where the model came from.
    monkeypatch.setattr(
        grpo_trainer, "create_model_from_path", lambda *_, **__: make_policy().model
    )

    given, algorithm = SAME[name]
    how = {"learning_rate": 2e-2, "lr_scheduler_type": "constant", "adam_epsilon": 1e-2}
    # Two micro-batches a step.
    how |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    trainer = make_trainer(tmp_path, odd, **how, **given)
    policy = make_policy()
    start = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    trainer.train()
    learner = oracle.Learner(policy.model, eps=1e-2)
    reference = oracle.Learner(policy.model)
    drawn = [rows for training, rows in trainer.seen if training]
    assert [len(rows) for rows in drawn] == [16, 16]
    for rows in drawn:
        made = [oracle.Row([*p], [*ids], float(sum(ids) % 2), [0.0] * len(ids)) for p, ids in rows]
        groups = [made[at : at + 4] for at in range(0, 16, 4)]
        step = {"lr": 2e-2, "most": 1.0, "limit": 8, "temperature": 1.0, "reference": reference}
        oracle.rl_step(learner, groups, oracle.settings_of(algorithm), **step)
    oracle.assert_same_weights(trainer.model, learner, start, tolerance=1e-3)
