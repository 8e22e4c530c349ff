"""Recipes: closed, frozen, merged, overridden; every error names the key."""

from __future__ import annotations

import re
from pathlib import Path

import pydantic
import pytest

from sps.config.load import SYNONYMS, dump_recipe, load_recipe, parse_recipe
from sps.config.recipe import Recipe
from sps.errors import UserError

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


@pytest.fixture
def write(tmp_path):
    def _write(text: str, name: str = "recipe.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return _write


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("sed: 1", "sed", "'seed'"),
        ("rl: {stepz: 3}", "rl.stepz", "'steps'"),
        ("rl: {optimizer: {weightdecay: 0}}", "rl.optimizer.weightdecay", "'weight_decay'"),
        (
            "rl: {algorithm: {type: dapo, max_resample: 3}}",
            "rl.algorithm.max_resample",
            "'max_resample_times'",
        ),
        # eps_high belongs to DAPO and GSPO alone: GRPO's nearest key is its own.
        ("rl: {algorithm: {type: grpo, eps_hig: 3}}", "rl.algorithm.eps_hig", "'eps'"),
        ("irl: {selector: {quantil: 0.3}}", "irl.selector.quantil", "'quantile'"),
        ("task: {numbers: 4, heigh: 3}", "task.heigh", "'high'"),
        # What others call it.
        ("rl: {learning_rate: 1}", "rl.learning_rate", "'lr'"),
        ("irl: {learning_rate: 1}", "irl.learning_rate", "'lr'"),
        ("batch_size: 8", "batch_size", "'rollout.prompts'"),
        ("rl: {num_generations: 8}", "rl.num_generations", "'rollout.n'"),
        ("rollout: {max_tokens: 8}", "rollout.max_tokens", "'max_new_tokens'"),
        ("rl: {epochs: 8}", "rl.epochs", "'steps'"),
        ("rl: {beta: 0.1}", "rl.beta", "'rl.algorithm.beta'"),
        ("rl: {optimizer: {beta: 0.1}}", "rl.optimizer.beta", "'betas'"),
    ],
)
def test_unknown_key_names_file_key_and_nearest_right_one(write, text, key, hint):
    path = write(text)
    with pytest.raises(UserError) as error:
        load_recipe(path)
    assert str(error.value) == f"{path}: {key}: no such key; did you mean {hint}?"


def test_what_others_call_a_key_leads_to_one_that_is_there():
    every = parse_recipe({"task": {"type": "math", "data": "x.jsonl"}}, "test").model_dump()
    for key in SYNONYMS.values():
        node = every
        for part in key.split("."):
            node = node[part]  # or KeyError


def test_unknown_key_far_from_any_lists_the_known_ones(write):
    said = r"checkpoint.zzz: no such key; known keys: every, keep, mix$"
    with pytest.raises(UserError, match=said):
        load_recipe(write("checkpoint: {zzz: 1}"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rl: {steps: 0}", r"rl.steps: .*greater than or equal to 1 \(got 0\)"),
        ("rollout: {n: 100000000}", r"rollout.n: .*or equal to 1000000 \(got 100000000\)"),
        ("evaluation: {n: 2000000}", r"evaluation.n: .*or equal to 1000000 \(got 2000000\)"),
        ("evaluation: {validation_n: 2000000}", r"evaluation.validation_n: .*equal to 1000000"),
        ("evaluation: {temperatures: 0.7}", r"temperatures: give it a list, such as \[0.7\]"),
        ("rl: {lr: fast}", r"rl.lr: .*number.*\(got 'fast'\)"),
        ("rl: {algorithm: {type: ppo}}", r"rl.algorithm: no type 'ppo'; choose 'grpo', 'dr_grpo'"),
        ("irl: {keep: 9}", r"irl.keep \(9\) is above rollout.n \(8\)"),
        ("task: {low: 5, high: 3}", r"task: low \(5\) is above high \(3\)"),
        (
            "model: {dtype: float16}",
            r"model.dtype: .*'auto', 'float32' or 'bfloat16' \(got 'float16'\)",
        ),
        ("irl: {optimizer: {warmup_steps: 5}}", r"irl: optimizer.warmup_steps: .*no warm-up"),
        ("seed: -1", r"seed: .*greater than or equal to 0 \(got -1\)"),
        ("rl: {optimizer: {betas: [0.9, 1.0]}}", r"rl.optimizer.betas.1: .*less than 1"),
        ("irl: {optimizer: {betas: [1.0, 0.9]}}", r"irl.optimizer.betas.0: .*less than 1"),
        ("evaluation: {select: honest, every: 0}", r"evaluation: select: honest .*every: 0 never"),
        ("evaluation: {temperatures: [0.4], every: 0}", r"temperatures are of .*every: 0 never"),
        ("evaluation: {temperatures: [1]}", r"temperatures has 1, it is `temperature`, .* other"),
        ("evaluation: {temperatures: [1.0000001]}", r"temperatures has 1, it is `temperature`"),
        ("evaluation: {temperatures: [0.4, 0.4]}", r"temperatures has 0.4, twice; give each"),
        ("evaluation: {temperatures: [0.4, 0.40000001]}", r"temperatures has 0.4, twice"),
        ("evaluation: {temperatures: [0]}", r"evaluation.temperatures.0: .*greater than 0"),
        ("evaluation: {temperatures: [.inf]}", r"evaluation.temperatures.0: .*finite"),
        ("rollout: {temperature: 0}", r"rollout.temperature: .*greater than 0"),
        ("seed: \0", r"is not valid YAML: unacceptable character [^\n]*$"),
        (
            "irl: {steps: no}",
            r"irl: steps: it is no switch: give a value, not true, false, yes, no",
        ),
        ("rl: {lr: true}", r"rl: lr: it is no switch"),
        ("[1, 2]", r"a recipe is a mapping of keys to values, and it is a list"),
        ("", r"a recipe is a mapping of keys to values, and it is empty"),
        ("rl: {steps: 3", r"is not valid YAML"),
        ("seed: 1\nseed: 2", r"line 2 is not valid YAML: .*'seed' is given twice"),
        ("rl:\n  lr: 1\n  lr: 2", r"line 3 is not valid YAML: .*'lr' is given twice"),
        ("{a: 1}: 2", r"is not valid YAML"),
        ("extends: nowhere.yaml", r"recipe.yaml: extends: \S+nowhere.yaml: no such recipe"),
        ("rl: {algorithm: gspo}", r"yaml: rl.algorithm: write rl: {algorithm: {type: gspo}}$"),
        ("irl: {selector: uniform}", r"irl.selector: write irl: {selector: {type: uniform}}$"),
        ("task: math", r"yaml: task: write task: {type: math}$"),
        ("rl:", r"yaml: rl: the key has no value; leave it out, or give it a mapping of its keys$"),
        ("rl: {steps: }", r"yaml: rl.steps: the key has no value; leave it out, or give it one$"),
        ("meter: 3", r"meter: give it a mapping of its keys, not 3; known keys: problems, samp"),
    ],
)
def test_bad_recipe_is_a_user_error_that_says_what_is_wrong(write, text, wanted):
    with pytest.raises(UserError, match=f"(?s){wanted}"):
        load_recipe(write(text))


def test_every_fault_is_reported_at_once(write):
    with pytest.raises(UserError) as error:
        load_recipe(write("rl: {steps: 0, lr: -1}\nsed: 2"))
    for key in ("rl.steps", "rl.lr", "sed"):
        assert key in str(error.value)


def test_missing_recipe_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"absent.yaml: no such recipe"):
        load_recipe(tmp_path / "absent.yaml")


def test_recipe_is_frozen():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Recipe().rl.steps = 5


def test_extends_merges_and_the_top_wins(write):
    write("seed: 3\nrl: {steps: 7, lr: 1e-3}\nirl: {keep: 2}", "base.yaml")
    got = load_recipe(write("extends: base.yaml\nrl: {lr: 2e-3}"))
    assert (got.seed, got.rl.steps, got.rl.lr, got.irl.keep) == (3, 7, 2e-3, 2)


def test_extends_drops_the_old_types_keys_when_the_type_changes(write):
    write("rl: {algorithm: {type: dapo, max_resample_times: 5, eps: 0.1}, steps: 9}", "base.yaml")
    got = load_recipe(write("extends: base.yaml\nrl: {algorithm: {type: gspo}}"))
    assert got.rl.algorithm.type == "gspo"
    assert got.rl.algorithm.eps == 3e-4  # GSPO's own default, not DAPO's 0.1
    assert got.rl.steps == 9


def test_extends_keeps_keys_of_the_same_type(write):
    write("rl: {algorithm: {type: dapo, max_resample_times: 5}}", "base.yaml")
    got = load_recipe(write("extends: base.yaml\nrl: {algorithm: {type: dapo, eps: 0.1}}"))
    assert (got.rl.algorithm.max_resample_times, got.rl.algorithm.eps) == (5, 0.1)


def test_extends_chains_relative_to_each_file(write, tmp_path):
    (tmp_path / "deep").mkdir()
    write("seed: 1\nname: a", "a.yaml")
    write("extends: ../a.yaml\nname: b", "deep/b.yaml")
    got = load_recipe(write("extends: deep/b.yaml\nthreads: 2"))
    assert (got.seed, got.name, got.threads) == (1, "b", 2)


def test_circular_extends_is_refused(write):
    write("extends: recipe.yaml", "other.yaml")
    with pytest.raises(UserError, match="goes in a circle"):
        load_recipe(write("extends: other.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "task: {path: my_task.py}",
            "task.path: no such key; type python has it, countdown has not: set task.type",
        ),
        ("task: {type: python, path: a.py, numbers: 4}", "type countdown has it, python has not"),
        ("task: {data: rows.jsonl}", "type choice, math, python has it, countdown has not"),
        ("rl: {algorithm: {eps_high: 0.3}}", "type dapo, gspo has it, grpo has not: set rl.algo"),
        ("rl: {algorithm: {type: raft, eps: 1}}", "bbg, clip_cov, dapo and 10 more has it, raft"),
    ],
)
def test_a_key_of_another_type_names_the_type(write, text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        load_recipe(write(text))


def test_a_folder_in_place_of_a_recipe_says_what_to_write(tmp_path):
    with pytest.raises(UserError, match=r"it is a folder$"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match=r"it is a folder; it holds \S+recipe\.yaml$"):
        load_recipe(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UserError) as error:
        load_recipe(tmp_path)
    assert f"sps train {tmp_path}/recipe.yaml --out {tmp_path} --resume" in str(error.value)


def test_one_override_alone_is_a_list_too(write):
    with pytest.raises(UserError, match=r"give a list of them, .*: \['rl\.steps=1'\]$"):
        load_recipe(write("name: x"), "rl.steps=1")


def test_a_model_may_be_below_the_home_folder(write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    recipe = load_recipe(write("model: {path: ~/models/a}"))
    assert recipe.model.path == "/home/somebody/models/a"
    assert load_recipe(write("model: {path: a/b}")).model.path == "a/b"


@pytest.mark.parametrize(
    ("item", "read", "value"),
    [
        ("rl.lr=1e-6", lambda r: r.rl.lr, 1e-6),
        ("rl.lr=5e-10", lambda r: r.rl.lr, 5e-10),
        ("rl.lr=2.5E-4", lambda r: r.rl.lr, 2.5e-4),
        ("rl.lr=1", lambda r: r.rl.lr, 1.0),
        ("model.path=/some/1e-6", lambda r: r.model.path, "/some/1e-6"),
        ("model.path=null", lambda r: r.model.path, None),
        ("evaluation.final=false", lambda r: r.evaluation.final, False),
        ("rl.algorithm={type: gspo, eps: 1e-3}", lambda r: r.rl.algorithm.eps, 1e-3),
        ("rl.optimizer.betas=[0.5, 0.6]", lambda r: r.rl.optimizer.betas, (0.5, 0.6)),
        ("name=a=b", lambda r: r.name, "a=b"),
    ],
)
def test_set_reads_values_as_yaml(write, item, read, value):
    assert read(load_recipe(write("seed: 0"), [item])) == value


def test_number_without_point_is_a_float_in_the_file_too(write):
    assert load_recipe(write("rl: {lr: 1e-6}")).rl.lr == 1e-6


def test_set_of_a_type_drops_the_old_types_keys(write):
    path = write("rl: {algorithm: {type: dapo, max_resample_times: 5}}")
    got = load_recipe(path, ["rl.algorithm.type=grpo", "rl.algorithm.beta=0.5"])
    assert (got.rl.algorithm.type, got.rl.algorithm.beta) == ("grpo", 0.5)


def test_set_of_the_same_type_drops_nothing(write):
    path = write("task: {train: 50}\nirl: {selector: {quantile: 0.3}}")
    got = load_recipe(path, ["task.type=countdown", "irl.selector.type=l2te"])
    assert (got.task.train, got.irl.selector.quantile) == (50, 0.3)


@pytest.mark.parametrize("item", ["rl.lr", "=3", "seed.deep=3", "rl.lr=[1"])
def test_set_that_makes_no_sense_is_a_user_error(write, item):
    with pytest.raises(UserError, match="--set"):
        load_recipe(write("seed: 0"), [item])


def test_set_of_an_unknown_key_names_the_nearest(write):
    with pytest.raises(UserError, match=r"rl.stesp: no such key; did you mean 'steps'\?"):
        load_recipe(write("seed: 0"), ["rl.stesp=3"])


@pytest.mark.parametrize("item", ["rl.steps=0", "rl={steps: 0}", "rl.algorithm.beta=-1"])
def test_set_of_a_bad_value_is_blamed_on_the_option_alone(write, item):
    with pytest.raises(UserError) as error:
        load_recipe(write("irl: {lr: -1}"), ["rl.steps=5", item])
    blamed, file = str(error.value).split("; ")
    assert blamed.startswith(f"--set {item}: rl.")
    assert file.endswith("recipe.yaml: irl.lr: Input should be greater than or equal to 0 (got -1)")


@pytest.mark.parametrize("item", ["rl.algorithm.type=foo", "irl.optimizer.warmup_steps=3"])
def test_set_is_blamed_for_what_it_does_to_the_mapping_it_is_in(write, item):
    with pytest.raises(UserError, match=f"^--set {item}: "):
        load_recipe(write("seed: 0"), [item])
    path = write("rl: {algorithm: {type: bar}}")
    with pytest.raises(UserError, match=f"^{path}: rl.algorithm: no type 'bar'"):
        load_recipe(path, ["rl.algorithm.beta=0.1"])


def test_set_below_a_key_without_a_value_gives_it_one(write):
    assert load_recipe(write("rl:"), ["rl.steps=5"]).rl.steps == 5


def test_an_algorithm_without_a_type_is_grpo(write):
    got = load_recipe(write("seed: 0"), ["rl.algorithm.beta=0.1"])
    assert (got.rl.algorithm.type, got.rl.algorithm.beta) == ("grpo", 0.1)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_survives_dump_and_load(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.yaml") == recipe


ALGORITHMS = """grpo dr_grpo dapo gspo pass_at_k w_reinforce maxrl differential_smoothing ucpo bbg
rs_grpo unlikeliness cispo kl_cov clip_cov raft"""


@pytest.mark.parametrize("kind", ALGORITHMS.split())
def test_every_algorithm_survives_dump_and_load(kind, write):
    recipe = parse_recipe({"rl": {"algorithm": {"type": kind}, "lr": 5e-10}}, "here")
    assert load_recipe(write(dump_recipe(recipe))) == recipe


def test_pass_at_k_needs_groups_larger_than_k(write):
    text = "rollout: {{n: 4}}\nirl: {{keep: 2}}\nrl: {{algorithm: {{type: pass_at_k, k: {}}}}}"
    load_recipe(write(text.format(3)))
    with pytest.raises(UserError, match=r"rl.algorithm.k \(4\) is not below rollout.n \(4\)"):
        load_recipe(write(text.format(4)))


@pytest.mark.parametrize("cut", ["top_p: 0.9", "top_k: 20"])
def test_vllm_with_truncated_sampling_is_refused_where_it_is_trained_on(write, cut):
    path = write(f"rollout: {{engine: vllm, {cut}}}")
    with pytest.raises(UserError, match="rollout: with engine: vllm keep top_p: 1 and top_k: 0"):
        load_recipe(path)
    load_recipe(write(f"rollout: {{engine: vllm}}\nevaluation: {{{cut}}}"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("rollout: {engine: sglang}", "rollout.engine"),
        ("rollout: {vllm: {mode: remote}}", "rollout.vllm.mode"),
        ("rollout: {vllm: {memory: 0}}", "rollout.vllm.memory"),
        ("rollout: {vllm: {slep: true}}", "rollout.vllm.slep: no such key; did you mean 'sleep'"),
        ("rollout: {correct: 0}", "rollout.correct"),
    ],
)
def test_faults_of_the_vllm_engine_name_their_key(write, text, key):
    with pytest.raises(UserError, match=key):
        load_recipe(write(text))


def test_a_reach_that_a_learning_rate_would_overrule_is_refused(write):
    with pytest.raises(UserError, match=r"irl: reach does nothing where lr is set; set lr: null"):
        load_recipe(write("irl: {lr: 3e-4}"), ["irl.reach=0.2"])
    got = load_recipe(write("irl: {lr: 3e-4}"), ["irl.reach=0.2", "irl.lr=null"]).irl
    assert (got.lr, got.reach) == (None, 0.2)
    whole = load_recipe(write("irl: {lr: 3e-4}")).model_dump(mode="json")  # as a run folder has it
    assert parse_recipe(whole, "run").irl.lr == 3e-4


def test_a_recipe_may_name_every_selector_and_no_other():
    from typing import get_args

    from sps.algo.irl import SELECTORS
    from sps.config.irl import SelectorName

    assert list(get_args(SelectorName)) == list(SELECTORS)


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("when: phase, weight: 1", "irl.memory: weight is of memory beside RL steps"),
        ("when: both", "irl.memory: when: both needs a weight"),
        ("weight: 1, solved: 0.5", "irl.memory: solved is a rate under the base"),
        ("weight: 1, divergence: js", "irl.memory: divergence: js is from one policy, the base"),
        (
            "weight: 1, when: both, source: base, divergence: js",
            "irl.memory: IRL phases take a forward KL",
        ),
        ("weight: 1, source: base, age: 3", "irl.memory: age would forget all"),
        ("source: base", "irl.memory: source: base draws what nothing learns from"),
        ("weight: 1, source: base, solved: 1.5", "irl.memory.solved"),
    ],
)
def test_memory_that_makes_no_sense_is_refused_by_name(write, memory, said):
    with pytest.raises(UserError) as error:
        load_recipe(write(f"irl: {{memory: {{{memory}}}}}"))
    assert said in str(error.value)


def test_phases_on_memory_need_steps_and_leave_the_selector_nothing(write):
    path = write("irl: {memory: {when: phase}}")
    assert load_recipe(path).irl.memory.on
    with pytest.raises(UserError, match=r"irl: memory.when: phase needs IRL phases; set steps: 4"):
        load_recipe(path, ["irl.steps=0"])
    for change in ("irl.keep=2", "irl.selector.type=uniform"):
        with pytest.raises(UserError, match=r"irl: selector and keep do nothing with memory.when"):
            load_recipe(path, [change])
    load_recipe(path, ["rl.algorithm.type=none"])


def test_off_is_a_value_where_a_key_has_one(tmp_path):
    """YAML reads it as false."""
    path = tmp_path / "r.yaml"
    path.write_text("task: {type: math, data: a.jsonl, overlap: off}\n")
    assert load_recipe(path).task.overlap == "off"
    assert load_recipe(path, ["task.overlap=off"]).task.overlap == "off"
    path.write_text("task: {type: math, data: a.jsonl, overlap: on}\n")
    with pytest.raises(UserError, match="overlap: it is no switch"):
        load_recipe(path)


def test_groups_of_two_need_no_key_of_irl_phases_that_are_off():
    assert parse_recipe({"rollout": {"n": 2}, "irl": {"steps": 0}}, "here").rollout.n == 2
