"""Estimates against what was measured, against real models, and against sums done by hand."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sps.commands.estimate import (
    GIB,
    SHAPES,
    Plan,
    Shape,
    floor,
    lighter,
    needs,
    plan_of,
    remedies,
)
from sps.config.load import load_recipe, parse_recipe
from sps.rollout.table import ENGINES, EngineType

ROOT = Path(__file__).parents[2]
SMOLLM2 = Shape(*SHAPES["HuggingFaceTB/SmolLM2-135M-Instruct"])
QWEN = Shape(*SHAPES["Qwen/Qwen2.5-Math-1.5B"])
SEVEN = Shape(*SHAPES["Qwen/Qwen2.5-Math-7B"])
LARGE = Shape(*SHAPES["Qwen/Qwen2.5-32B"])
REFERENCE = "reference policy, linear layers in bf16"


def recipe(new=512, micro=16384, algorithm=None, irl=0, rollout=None, **model):
    return parse_recipe(
        {
            "model": {"path": "x/y", "dtype": "bfloat16", **model},
            "task": {"type": "math", "data": "x/y"},
            "rollout": {"prompts": 16, "n": 8, "max_new_tokens": new, **(rollout or {})},
            "rl": {"micro_tokens": micro, "algorithm": algorithm or {"type": "grpo"}},
            "irl": {"steps": irl},
        },
        "test",
    )


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_those_of_a_real_model_of_that_shape(name):
    shape = Shape(*SHAPES[name])
    config = AutoConfig.for_model(
        "llama" if "SmolLM2" in name else "qwen2",
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.shared,
        head_dim=shape.width,
        intermediate_size=shape.ff,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # Biases and the last norm are left out of the estimate.
    assert shape.weights == pytest.approx(model.num_parameters(), rel=1e-4)


def test_weights_of_known_models_by_their_published_counts():
    # Published: 134.5 M; 1.54 B; 7.6 B; 32.5 to 32.8 B.
    assert SMOLLM2.weights == pytest.approx(134.5e6, rel=0.002)
    assert QWEN.weights == pytest.approx(1.54e9, rel=0.005)
    assert SEVEN.weights == pytest.approx(7.6e9, rel=0.005)
    assert LARGE.weights == pytest.approx(32.8e9, rel=0.01)


def test_adapters_are_those_that_peft_makes():
    peft = pytest.importorskip("peft")
    config = AutoConfig.for_model(
        "qwen2", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=100, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    made = sum(p.numel() for n, p in adapted.named_parameters() if "lora_" in n)
    assert Shape(2, 32, 4, 2, 8, 48, 100, True).adapters(4) == made


def test_cache_of_a_token_by_hand():
    # 30 layers x 3 heads x 64 wide x keys and values x 2 bytes
    assert SMOLLM2.cache_bytes == 30 * 3 * 64 * 2 * 2 == 23040


def test_a_step_is_what_was_measured_on_an_h200():
    # docs/results_speed.md: 0.370 s of rollouts, 0.122 s of update, 31.1 GiB; prompt 100, 256 new.
    found = needs(recipe(256, 49152), SMOLLM2, prompt=100)
    assert found.rollouts == pytest.approx(0.370, rel=0.1)
    assert found.update == pytest.approx(0.122, rel=0.1)
    assert found.total / GIB == pytest.approx(31.1, rel=0.1)
    assert found.traffic == 0
    # Not compiled: 0.264 s of update, 47.9 GiB.
    found = needs(recipe(256, 49152, compile=False), SMOLLM2, prompt=100)
    assert found.update == pytest.approx(0.264, rel=0.1)
    assert found.total / GIB == pytest.approx(47.9, rel=0.1)
    # The larger shape: 1.32 s of rollouts, 1.65 s of update, 66.4 GiB; 2.30 s, 84.5 not compiled.
    found = needs(recipe(512, 16384), QWEN, prompt=200)
    assert found.rollouts == pytest.approx(1.32, rel=0.15)
    assert found.update == pytest.approx(1.65, rel=0.1)
    assert found.total / GIB == pytest.approx(66.4, rel=0.1)
    found = needs(recipe(512, 16384, compile=False), QWEN, prompt=200)
    assert found.update == pytest.approx(2.30, rel=0.1)
    assert found.total / GIB == pytest.approx(84.5, rel=0.1)


@pytest.mark.parametrize(("checkpointing", "measured"), [(False, 37.8), (True, 5.3)])
def test_memory_of_a_pass_is_what_was_measured_on_an_h200(checkpointing, measured):
    # docs/results_speed.md: a loss and its gradients above weights and gradients, 16 x 1024 tokens.
    parts = needs(recipe(1000, checkpointing=checkpointing), QWEN, prompt=24).parts
    assert (parts["activations"] + parts["output layer"]) / GIB == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(("prompts", "measured"), [(16, 15_370), (64, 20_530)])
def test_vllm_draws_as_fast_as_was_measured_on_an_h200(prompts, measured):
    # docs/results_speed.md: tokens/s at prompt 100, 256 new, 8 samples each; without its start.
    asked = recipe(256, rollout={"prompts": prompts})
    found = needs(asked, SMOLLM2, prompt=100, plan=Plan(engine="vllm"))
    assert prompts * 8 * 256 / found.rollouts == pytest.approx(measured, rel=0.05)


def test_activation_checkpointing_and_lora_save_what_they_should():
    plain = needs(recipe(), QWEN).parts
    again = needs(recipe(checkpointing=True), QWEN).parts
    assert again["activations"] < 0.2 * plain["activations"]
    lora = needs(recipe(lora={}), QWEN).parts
    # 18 million adapters of rank 16 beside 1.5 billion weights.
    assert lora["optimizer"] == 8 * QWEN.adapters(16) < 0.02 * plain["optimizer"]


def test_what_lasts_by_hand():
    # 7.62 billion weights: 4 bytes each, gradients 4, two moments of 4 each. On the host the
    # meter's copy, 4, and while an IRL phase has moments of its own those of RL, 8.
    asked = recipe(irl=4, algorithm={"type": "grpo", "beta": 0.01})
    lasting = ["weights, float32", "gradients", "optimizer"]
    whole = needs(asked, SEVEN)
    assert [whole.parts[name] / SEVEN.weights for name in lasting] == [4, 4, 8]
    assert whole.host == 12 * SEVEN.weights
    shared = needs(asked, SEVEN, plan=Plan(8, sharded=True))
    assert [shared.parts[name] / SEVEN.weights for name in lasting] == [0.5, 0.5, 1]
    assert shared.host == 1.5 * SEVEN.weights
    assert floor(asked, SEVEN) == 16 * SEVEN.weights
    assert floor(asked, SEVEN, 8) == 2 * SEVEN.weights
    plain = needs(recipe(), SEVEN)
    assert REFERENCE not in plain.parts
    assert plain.host == 4 * SEVEN.weights
    ends = recipe().checkpoint.model_copy(update={"mix": 0.3})
    mixing = needs(recipe().model_copy(update={"checkpoint": ends}), SEVEN)
    assert mixing.host == 8 * SEVEN.weights  # the base and the weights that are mixed with it


def test_a_reference_is_in_bf16_but_for_its_embedding_and_norms():
    asked = recipe(algorithm={"type": "grpo", "beta": 0.01})
    embedding, norms = 152064 * 3584, 28 * 2 * 3584
    rest = SEVEN.weights - embedding - norms
    assert needs(asked, SEVEN).parts[REFERENCE] == 2 * rest + 4 * (embedding + norms)
    # Tied, the embedding is the output layer, and there is no other.
    tied = QWEN.weights - 151936 * 1536 - 28 * 2 * 1536
    assert needs(asked, QWEN).parts[REFERENCE] == 4 * QWEN.weights - 2 * tied


def test_moments_of_8_bits_are_a_quarter():
    eight = {"optimizer": {"bits": 8}}
    asked = parse_recipe({"rl": eight, "irl": {"steps": 4, **eight}}, "test")
    # A byte each, and 4 for every 256 of them.
    assert needs(asked, SEVEN).parts["optimizer"] == 2 * (1 + 4 / 256) * SEVEN.weights
    assert needs(asked, SEVEN).host == (4 + 2 * (1 + 4 / 256)) * SEVEN.weights
    assert floor(asked, SEVEN) == (4 + 4 + 2 * (1 + 4 / 256)) * SEVEN.weights
    half = parse_recipe({"rl": eight, "irl": {"steps": 4}}, "test")  # in an IRL phase: 32 bits
    assert needs(half, SEVEN).parts["optimizer"] == 8 * SEVEN.weights
    assert floor(half, SEVEN) == 16 * SEVEN.weights


def test_adapters_leave_the_model_frozen_and_share_it_with_their_reference():
    found = needs(recipe(lora={}, algorithm={"type": "grpo", "beta": 0.01}), SEVEN)
    frozen = 2 * SEVEN.linear + 4 * (SEVEN.weights - SEVEN.linear)
    assert found.parts["frozen weights, linear layers in bf16"] == frozen
    assert found.parts["weights, float32"] == 4 * SEVEN.adapters(16)
    assert found.parts[REFERENCE] == 2 * SEVEN.adapters(16)
    assert found.host == 4 * SEVEN.adapters(16)


def test_all_weights_of_7_billion_fit_one_h200_and_1_5_billion_fit_40_gib():
    eight = {"optimizer": {"bits": 8}}
    asked = {
        "model": {"path": "x/y", "checkpointing": True},
        "task": {"type": "math", "data": "x/y"},
        "rollout": {"prompts": 16, "n": 8, "max_new_tokens": 3072, "max_rows": 64},
        "rl": {"algorithm": {"type": "grpo", "beta": 0.001}, **eight},
        "irl": {"steps": 4, **eight},
    }
    assert needs(parse_recipe(asked, "test"), SEVEN).fits(139 * GIB)
    assert needs(parse_recipe(asked, "test"), QWEN).fits(40 * GIB)
    asked["rl"]["optimizer"] = asked["irl"]["optimizer"] = {}
    assert not needs(parse_recipe(asked, "test"), SEVEN).fits(139 * GIB)


def test_the_engine_by_hand():
    native = needs(recipe(), SEVEN, plan=Plan(8)).parts
    assert native["the engine's bf16 copy"] == 2 * SEVEN.weights
    # 16 problems over 8 GPUs: 2 x 8 rows of 200 + 512 tokens; 28 layers x 4 heads x 128 x 2 x 2.
    assert native["cache of the rollouts"] == 16 * 712 * 28 * 4 * 128 * 2 * 2
    sharded = needs(recipe(), SEVEN, plan=Plan(8, sharded=True)).parts
    assert sharded["the engine's bf16 copy"] == 2 * SEVEN.weights
    vllm = needs(recipe(), SEVEN, plan=Plan(8, True, "vllm", 4)).parts
    assert vllm["vLLM's weights"] == SEVEN.weights / 2  # bf16 over 4
    assert vllm["cache of the rollouts"] == native["cache of the rollouts"]
    few = needs(recipe(rollout={"max_rows": 4}), SEVEN, plan=Plan(8)).parts
    assert few["cache of the rollouts"] * 4 == native["cache of the rollouts"]


def test_work_is_divided_and_whole_problems_stay_together():
    one, eight = (needs(recipe(), QWEN, plan=Plan(n)) for n in (1, 8))
    assert eight.update == pytest.approx(one.update / 8)
    assert eight.rollouts < one.rollouts
    # 16 problems: 16 GPUs draw one each, and more than 16 draw no faster.
    sixteen, many = (needs(recipe(), QWEN, plan=Plan(n)) for n in (16, 64))
    assert many.rollouts == sixteen.rollouts
    assert many.update == pytest.approx(sixteen.update / 4)
    rounds = recipe(algorithm={"type": "gspo", "steps_per_generation": 4})
    assert needs(rounds, QWEN, plan=Plan(64)).parts["cache of the rollouts"] == pytest.approx(
        sixteen.parts["cache of the rollouts"]
    )


def test_traffic_by_hand():
    # Gradients summed over 8 GPUs: 2 x 7/8 x 4 bytes a weight at 450 GB/s; over 16 at 50 GB/s.
    assert needs(recipe(), SEVEN, plan=Plan(8)).traffic == pytest.approx(
        2 * 7 / 8 * 4 * SEVEN.weights / 450e9
    )
    assert needs(recipe(), SEVEN, plan=Plan(16)).traffic == pytest.approx(
        2 * 15 / 16 * 4 * SEVEN.weights / 50e9
    )
    # Sharded over 8: 16 rows of 712 tokens fit one pass of 16384: weights there and back in bf16,
    # gradients in float32, and the engine's copy from float32 weights: 2 + 2 + 4 + 4 bytes.
    assert needs(recipe(), SEVEN, plan=Plan(8, sharded=True)).traffic == pytest.approx(
        7 / 8 * 12 * SEVEN.weights / 450e9
    )
    # One row a pass is 16 passes.
    assert needs(recipe(micro=712), SEVEN, plan=Plan(8, sharded=True)).traffic == pytest.approx(
        7 / 8 * (16 * 8 + 4) * SEVEN.weights / 450e9
    )


def test_more_gpus_never_need_more_memory():
    for sharded in (False, True):
        totals = [needs(recipe(), LARGE, plan=Plan(n, sharded)).total for n in (2, 4, 8, 16, 32)]
        assert totals == sorted(totals, reverse=True)


def test_lighter_settings_are_the_fewest_that_make_it_fit():
    asked = recipe(1848, 16384)  # rows of 2048
    whole = needs(asked, QWEN).total
    assert lighter(asked, QWEN, Plan(), whole / 0.9) == ""
    again = needs(recipe(1848, 16384, checkpointing=True), QWEN).total
    assert lighter(asked, QWEN, Plan(), again / 0.94) == "model.checkpointing: true"
    found = lighter(asked, QWEN, Plan(), again / 0.96)  # a little less than that needs
    assert found == "model.checkpointing: true, rl.micro_tokens: 2048"
    # Moments of 8 bits, which round, are the last to be tried: 23 GiB become 14.
    found = lighter(asked, QWEN, Plan(), 32 * GIB)
    assert found == "model.checkpointing: true, rl.optimizer.bits: 8"
    assert lighter(asked, QWEN, Plan(), 20 * GIB) is None
    # Sharded ones are divided as they are.
    assert "bits" not in (lighter(asked, QWEN, Plan(2, True), 23 * GIB) or "bits")


def test_remedies_name_what_makes_it_fit():
    asked = recipe(3072, checkpointing=True)
    # One GPU of 80 GiB holds 1.5 billion weights, not 7: those take 16 bytes each, 113 GiB.
    assert needs(asked, QWEN).fits(80 * GIB)
    found = list(remedies(asked, SEVEN, Plan(), 80 * GIB))
    assert found == [
        "4 GPUs, launch/fsdp2.yaml",
        "model.lora: {}",
    ]
    assert needs(asked, SEVEN, plan=Plan(4, True)).fits(80 * GIB)
    for plan in (Plan(2, True), Plan(2, True, "vllm", 2)):
        assert lighter(asked, SEVEN, plan, 80 * GIB) is None
    adapters = recipe(3072, 3272, checkpointing=True, lora={})
    assert needs(adapters, SEVEN).fits(80 * GIB)
    large = list(remedies(asked, LARGE, Plan(32, True), 80 * GIB))
    assert large[0].startswith(
        "launch/fsdp2.yaml, rollout.engine: vllm, rollout.vllm.tensor_parallel: 8"
    )
    assert list(remedies(asked, LARGE, Plan(8, True), 8 * GIB)) == []


def test_a_plan_is_the_recipes():
    asked = recipe(rollout={"vllm": {"tensor_parallel": 4}})
    assert plan_of(asked, 8, False) == Plan(8)
    assert plan_of(asked, 8, True, "vllm") == Plan(8, True, "vllm", 4)
    assert plan_of(asked, 2, True, "vllm").tensor_parallel == 2


def test_an_engine_of_the_table_is_counted_by_its_row(monkeypatch):
    monkeypatch.setitem(ENGINES, "other", EngineType("a:b"))
    assert Plan(engine="other").name == "replicated, other"
    assert "the engine's bf16 copy" in needs(recipe(), SEVEN, plan=Plan(engine="other")).parts
    monkeypatch.setitem(ENGINES, "other", EngineType("a:b", label="Other", apart=True))
    assert Plan(engine="other", tensor_parallel=2).name == "replicated, Other over 2"
    assert "the engine's bf16 copy" not in needs(recipe(), SEVEN, plan=Plan(engine="other")).parts


def fits_32(path):
    asked = load_recipe(path)
    shape = Shape(*SHAPES[asked.model.path])
    return [needs(asked, shape, plan=Plan(32, sharded)).fits(80 * GIB) for sharded in (0, 1)]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "recipes" / "paper").glob("*_*.yaml")), ids=lambda p: p.stem
)
def test_the_papers_recipes_fit_32_gpus_of_80_gib(path):
    replicated, sharded = fits_32(path)
    assert sharded
    assert replicated == ("7b" not in path.stem)
