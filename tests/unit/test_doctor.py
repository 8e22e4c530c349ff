"""Estimates against what was measured, and against sums done by hand."""

from pathlib import Path

import pytest

from sps.config import load_recipe, parse_recipe
from sps.doctor import GIB, SHAPES, Shape, examine, needs

ROOT = Path(__file__).parents[2]
SMOLLM2, QWEN = (Shape(*SHAPES[name]) for name in list(SHAPES)[::-3])


def recipe(new, micro, **model):
    return parse_recipe(
        {
            "model": {"path": "x/y", "dtype": "bfloat16", **model},
            "task": {"type": "math", "data": "x/y"},
            "rollout": {"prompts": 16, "n": 8, "max_new_tokens": new},
            "rl": {"micro_tokens": micro},
        },
        "test",
    )


def test_weights_of_known_models_by_their_published_counts():
    # Published: 134.5 M; 1.54 B; 7.6 B.
    assert SMOLLM2.weights == pytest.approx(134.5e6, rel=0.002)
    assert QWEN.weights == pytest.approx(1.54e9, rel=0.005)
    assert Shape(*SHAPES["Qwen/Qwen2.5-Math-7B"]).weights == pytest.approx(7.6e9, rel=0.005)


def test_cache_of_a_token_by_hand():
    # 30 layers x 3 heads x 64 wide x keys and values x 2 bytes
    assert SMOLLM2.cache_bytes == 30 * 3 * 64 * 2 * 2 == 23040


def test_a_step_is_what_was_measured_on_an_h200():
    # docs/results.md: 0.370 s of rollouts, 0.122 s of update, 31.1 GiB; prompt 100, 256 new.
    found = needs(recipe(256, 49152), SMOLLM2, prompt=100)
    assert found.rollouts == pytest.approx(0.370, rel=0.2)
    assert found.update == pytest.approx(0.122, rel=0.2)
    assert found.total / GIB == pytest.approx(31.1, rel=0.2)
    # The larger shape: 1.33 s of rollouts, 2.32 s of update; prompt 200, 512 new.
    found = needs(recipe(512, 16384), QWEN, prompt=200)
    assert found.rollouts == pytest.approx(1.33, rel=0.25)
    assert found.update == pytest.approx(2.32, rel=0.25)


def test_activation_checkpointing_and_lora_save_what_they_should():
    plain = needs(recipe(512, 16384), QWEN).parts
    again = needs(recipe(512, 16384, checkpointing=True), QWEN).parts
    assert again["activations"] < 0.2 * plain["activations"]
    lora = needs(recipe(512, 16384, lora={}), QWEN).parts
    assert "gradients" not in lora
    assert "optimizer" not in lora


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "paper").glob("*_*.yaml")), ids=str)
def test_the_papers_recipes_pass_and_sps_is_told_of_its_learning_rate(path):
    said = "\n".join(examine(load_recipe(path)))
    assert "GiB  in all" in said
    assert ("irl.lr 5e-10 will not move the policy" in said) == path.stem.endswith("_sps")
