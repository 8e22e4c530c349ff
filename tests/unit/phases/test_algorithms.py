"""Every row of the table of algorithms: a recipe, a citation, and two steps that learn."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from sps.algo.table import ALGORITHMS
from sps.build import open_run
from sps.config import rl as keys
from sps.config.load import load_recipe, parse_recipe
from sps.errors import UserError
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase

ROOT = Path(__file__).parents[3]
CLASSES = get_args(get_args(keys.AnyAlgorithm)[0])
RECIPES = {
    recipe.rl.algorithm.type: recipe
    for path in sorted((ROOT / "recipes").rglob("*.yaml"))
    if (recipe := load_recipe(path))
}
# A second of training; enough of its samples are right.
BASE = {"steps": 300, "batch": 32, "lr": 1e-2, "hidden": 32, "layers": 1, "heads": 2, "ff": 64}


pytestmark = pytest.mark.usefixtures("one_cache")


def test_every_algorithm_of_a_recipe_is_a_row_with_a_recipe():
    assert {c.model_fields["type"].default for c in CLASSES} == set(ALGORITHMS)
    assert set(ALGORITHMS) - set(RECIPES) == set()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_an_algorithm_names_its_paper(kind):
    assert re.search(r"\(arXiv \d{4}\.\d{5}\)", kind.__doc__)


def small(algorithm: dict, memory: dict):
    tree = {
        "seed": 1,
        "model": {"base": {**BASE, "solved": 0.8}, "device": "cpu"},
        "task": {"numbers": 2, "high": 6, "max_value": 36, "train": 24, "validation": 4, "test": 4},
        "rollout": {"prompts": 4, "n": 6, "max_new_tokens": 8},
        "rl": {"algorithm": algorithm, "steps": 2, "lr": 1e-3},
        "irl": {"steps": 0, "memory": memory},
        "evaluation": {"n": 4, "validation_n": 4, "every": 0, "final": False},
        "meter": {"problems": 2, "samples": 2},
    }
    return parse_recipe(tree, "test")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_two_steps_of_every_algorithm_learn(name, tmp_path):
    recipe = RECIPES[name]
    own = recipe.rl.algorithm.model_dump(), recipe.irl.memory.model_dump()
    run = open_run(small(*own), tmp_path)
    before = [p.detach().clone() for p in run.policy.model.parameters()]
    told = [metrics for _, metrics, _ in rl_phase(run, Phase(1, 1, 1, 2))]
    after = list(run.policy.model.parameters())
    assert all(torch.isfinite(p).all() for p in after)
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(math.isfinite(m[key]) for m in told for key in ("loss", "grad_norm"))
    assert any(m["grad_norm"] > 0 for m in told)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            "{type: kl_cov, steps_per_generation: 1}",
            r"rl\.algorithm.*set steps_per_generation to 2",
        ),
        ("{type: clip_cov, low: 5, high: 1}", r"rl\.algorithm.*low \(5\.0\) is not below high"),
        ("{type: clip_cov, share: 0}", r"rl\.algorithm\.share"),
        ("{type: pass_at_k, k: 8}", r"k \(8\) is not below rollout\.n \(8\).*set rollout\.n above"),
        ("{type: unlikeliness, penalty: 1}", r"rl\.algorithm\.penalty"),
        ("{type: ucpo, mix: 1.5}", r"rl\.algorithm\.mix"),
        ("{type: cispo, eps: 0.2}", r"rl\.algorithm\.eps: no such key"),
        ("{type: cispo, max_ratio: 0.5}", r"rl\.algorithm\.max_ratio"),
        ("{type: rs_grpo, risk: 0}", r"rl\.algorithm\.risk"),
        ("{type: rs_grpo, risk: 1000}", r"rl\.algorithm\.risk"),  # e^1000 is infinite
        ("{type: none}", r"rl\.algorithm\.type: none learns nothing.*irl\.memory\.weight"),
        ("{type: raft, eps: 0.2}", r"rl\.algorithm\.eps: no such key"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tmp_path, algorithm, message):
    path = tmp_path / "r.yaml"
    path.write_text(f"rl: {{algorithm: {algorithm}}}\nirl: {{steps: 0}}")
    with pytest.raises(UserError, match=message) as said:
        load_recipe(path)
    assert "\n" not in str(said.value)
