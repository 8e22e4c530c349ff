"""What the doctor says, and when it and `sps train` refuse."""

import runpy
from pathlib import Path

import pytest
import torch

from sps.build import ensure_base
from sps.commands import doctor
from sps.commands.doctor import (
    Machine,
    examine,
    missing,
    refuse_too_large,
    shape_of,
    verdict,
)
from sps.commands.estimate import GIB, Shape, needs
from sps.config.load import load_recipe, parse_recipe
from sps.config.recipe import Rollouts
from sps.errors import UserError

ROOT = Path(__file__).parents[2]
PAPER = sorted((ROOT / "recipes" / "paper").glob("*_*.yaml"))
SEVEN = ROOT / "recipes" / "paper" / "qwen2.5-math-7b_10k_grpo.yaml"


def paper(name=SEVEN, **model):
    found = load_recipe(name)
    return found.model_copy(update={"model": found.model.model_copy(update=model)})


@pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
def test_the_papers_recipes_pass_on_32_gpus_and_sps_is_told_of_its_learning_rate(path):
    asked = load_recipe(path)
    said = "\n".join(examine(asked, Machine(32, 80, True)))
    assert "in all: fits" in said
    file = "fsdp2" if "7b" in path.stem else "ddp"
    assert f"accelerate launch --config_file launch/{file}.yaml --num_processes 32" in said
    assert ("irl.lr 5e-10 will not move the policy" in said) == path.stem.endswith("_sps")
    verdict(asked, Machine(32, 80, True))
    # 16 problems a step, 64 for GSPO, which draws for four steps at once.
    assert ("cannot be divided evenly" in said) == ("gspo" not in path.stem)


def test_numbers_said_are_those_of_the_estimate():
    asked = paper()
    found = needs(asked, shape_of("Qwen/Qwen2.5-Math-7B"))
    said = examine(asked, Machine(1, 139, True))
    assert f"  {found.total / GIB:7.1f} GiB  in all: does not fit" in said
    assert sum(line.endswith("fit") for line in said) == 1  # one GPU: nothing to shard
    assert not any("advised" in line for line in said)


def test_what_does_not_fit_is_an_error_with_numbers_and_keys():
    with pytest.raises(UserError, match=r"does not fit into 1 x 139 GiB: it needs \d+ GiB") as said:
        verdict(paper(), Machine(1, 139, True))
    eight = "rl.micro_tokens: 3272, rl.optimizer.bits: 8"
    assert f"It would fit with: {eight} | 2 GPUs, launch/fsdp2.yaml |" in str(said.value)
    assert str(said.value).endswith(" | model.lora: {}")
    with pytest.raises(UserError, match="larger GPUs"):
        verdict(paper(), Machine(8, 8, True))
    with pytest.raises(UserError, match=r"139 GiB \(assumed; state others with --gpus") as said:
        verdict(paper(), Machine(1, 139, False))
    eight = "rl.micro_tokens: 3272, rl.optimizer.bits: 8"
    assert f"It would fit with: {eight} | 2 GPUs, launch/fsdp2.yaml |" in str(said.value)


@pytest.mark.parametrize("name", ["base", "sps", "grpo", "dapo", "gspo"])
def test_a_recipe_that_train_refuses_for_want_of_a_model_is_not_approved(name):
    asked = load_recipe(ROOT / "recipes" / "paper" / f"{name}.yaml")
    assert "any machine" not in "\n".join(examine(asked, Machine(1, 139, True)))
    with pytest.raises(UserError, match=r"model\.path: the embedded policy knows Countdown alone"):
        verdict(asked, Machine(1, 139, True))
    with pytest.raises(UserError, match=r"model\.path: the embedded policy knows Countdown alone"):
        ensure_base(asked)
    own = parse_recipe({}, "the embedded policy")
    assert "the embedded policy: any machine will do" in examine(own, Machine(1, 139, True))
    verdict(own, Machine(1, 139, True))


def test_no_file_that_is_here_is_to_be_downloaded():
    for model in ({"path": "here/some.gguf"}, {"path": "here", "gguf": "some.gguf"}):
        said = "\n".join(examine(parse_recipe({"model": model}, "test"), Machine(1, 139, True)))
        assert "not read from a GGUF file" in said
        assert "download" not in said


def test_the_countdown_demos_defaults_are_doubted_on_a_language_model():
    task = {"type": "math", "data": "some/data"}
    for path in ("Qwen/Qwen2.5-Math-1.5B", "some/unknown-model"):  # also where no shape is known
        asked = {"model": {"path": path}, "task": task, "rl": {"lr": 5e-7}}
        said = "\n".join(examine(parse_recipe(asked, "test"), Machine(1, 139, True)))
        assert "rollout.max_new_tokens is 20, the default" in said
        chosen = parse_recipe({**asked, "rollout": {"max_new_tokens": 8}}, "test")
        on_purpose = "\n".join(examine(chosen, Machine(1, 139, True)))
        assert "rollout.max_new_tokens is 8: longer answers are cut off" in on_purpose
        assert "3072" not in on_purpose
        assert "irl.lr" not in said
        asked["irl"] = {"lr": 3e-4}
        said = "\n".join(examine(parse_recipe(asked, "test"), Machine(1, 139, True)))
        assert "irl.lr 0.0003 is more than ten times rl.lr 5e-07" in said
    for recipe in PAPER:
        said = "\n".join(examine(load_recipe(recipe), Machine(32, 80, True)))
        assert "Countdown demo's" not in said


def test_hours_of_the_evaluations_are_told_beside_those_of_the_steps():
    # The paper's: a checkpoint every 100 of 700 steps, each tried on the test set, and the best.
    asked = load_recipe(SEVEN)
    sample = needs(asked, shape_of("Qwen/Qwen2.5-Math-7B")).rollouts / (16 * 8)
    said = "\n".join(examine(asked, Machine(1, 139, True)))
    hours = 8 * 100 * 128 * sample / 3600
    assert (
        "  and evaluation on the test set: 8 x 128 samples of up to 3072 tokens: "
        f"{hours:.1f} h more for every 100 questions"
    ) in said
    assert "evaluation on validation" not in said
    changed = ["task.limit=20", "evaluation.every=300", "evaluation.select=last"]
    said = "\n".join(examine(load_recipe(SEVEN, changed), Machine(1, 139, True)))
    assert "evaluation on validation: 4 x 64 questions x 32 samples of up to" in said
    assert "evaluation on the test set: 1 x 100 questions x 128 samples" in said  # 5 benchmarks
    # A mix of a fixed share is validated, too, and of one that chooses itself up to five are.
    for mix, times in (("0.3", 5), ("auto", 9)):
        recipe = load_recipe(SEVEN, [*changed, f"checkpoint.mix={mix}"])
        said = "\n".join(examine(recipe, Machine(1, 139, True)))
        assert f"evaluation on validation: {times} x 64 questions" in said


def test_the_advised_command_is_the_one_that_was_asked_for():
    said = examine(paper(), Machine(8, 139, True), asked="mine.yaml --set rl.lr=1e-6")
    assert "\n".join(said).count("-m sps train mine.yaml --set rl.lr=1e-6") == 1


def test_sharding_and_engine_are_chosen_by_name():
    eight = Machine(8, 139, True)
    assert [line for line in examine(paper(), eight) if line.endswith("engine:")] == [
        "replicated, native engine:", "fsdp2, native engine:",
    ]  # fmt: skip
    said = examine(paper(), eight, sharding="fsdp2", engine="vllm")
    assert "fsdp2, vLLM:" in said
    assert "replicated, native engine:" not in said
    adapters = load_recipe(SEVEN, ["model.lora={}"])
    assert "fsdp2, vLLM:" in examine(adapters, eight, sharding="fsdp2", engine="vllm")
    with pytest.raises(UserError, match=r"--engine: there is none called sglang; one of native"):
        doctor.run_doctor(SEVEN, [], eight, engine="sglang")


def with_vllm(**settings):
    """The paper's 7B with settings for vLLM."""
    asked = paper()
    rollout = {**asked.rollout.model_dump(), "engine": "vllm", "vllm": settings}
    return asked.model_copy(update={"rollout": Rollouts.model_validate(rollout)})


def share(said):
    found = [line for line in said if line.endswith("vLLM's share")]
    return float(found[0].split()[0]) if found else 0.0


def test_vllm_takes_its_share_of_the_gpu():
    eight = Machine(8, 100, True)
    assert share(examine(with_vllm(memory=0.4), eight, "fsdp2")) == 40.0
    assert share(examine(with_vllm(mode="server"), eight, "fsdp2")) == 0
    awake = share(examine(with_vllm(memory=0.4), eight, "fsdp2"))
    assert 0 < share(examine(with_vllm(memory=0.4, sleep=True), eight, "fsdp2")) < awake
    # 14.2 GiB of weights, 2.8 of cache, 2 of its own: 0.19 of 100 GiB.
    assert "rollout.vllm.memory: 0.19 at the least" in "\n".join(
        examine(with_vllm(memory=0.1), eight, "fsdp2")
    )
    assert "at the least" not in "\n".join(examine(with_vllm(memory=0.2), eight, "fsdp2"))
    assert "fsdp2, vLLM over 4:" in examine(with_vllm(tensor_parallel=4), eight, "fsdp2")


def test_packages_a_recipe_needs_are_named_before_it_runs(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    asked = parse_recipe(
        {
            "track": "wandb",
            "model": {"path": "x/y", "lora": {}, "gguf": "a.gguf"},
            "task": {"type": "math", "data": "x/y"},
        },
        "test",
    )
    named = [line.split()[3].rstrip(",") for line in missing(asked, "vllm")]
    assert sorted(named) == ["datasets", "gguf", "peft", "vllm", "wandb"]
    assert all("pip install 'sps-rl[" in line for line in missing(asked))
    gym = parse_recipe({"task": {"type": "gym", "name": "x"}}, "test")
    assert missing(gym) == [
        "this recipe needs reasoning_gym, which is not installed: pip install 'sps-rl[gym]'"
    ]
    local = {"type": "math", "data": "q.jsonl", "benchmarks": ["aime24"], "data_dir": "here"}
    assert missing(parse_recipe({"task": local}, "test")) == []
    from_hub = {**local, "data_dir": None}
    assert len(missing(parse_recipe({"task": from_hub}, "test"))) == 1
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    assert missing(asked, "vllm") == []


def test_train_refuses_what_not_even_its_optimizer_fits(monkeypatch):
    for name in ("ACCELERATE_USE_FSDP", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # 7.62 billion weights x 16 bytes are 113.5 GiB.
    with pytest.raises(UserError, match=r"take 113 GiB, the GPU has 80") as said:
        refuse_too_large(paper(), 80 * GIB)
    for fix in (
        "model.path: Qwen/Qwen2.5-Math-7B",
        "launch/fsdp2.yaml",
        "model.lora",
        "--gpus",
        "rl.optimizer.bits: 8",
    ):
        assert fix in str(said.value)
    refuse_too_large(paper(), 114 * GIB)  # tight, and not for this check to say
    refuse_too_large(paper(device="cpu"), 1.0)
    refuse_too_large(parse_recipe({}, "the embedded policy"), 1.0)
    refuse_too_large(paper(path="some/unknown-model"), 1.0)
    adapters = load_recipe(SEVEN, ["model.lora={}"])
    refuse_too_large(adapters, 80 * GIB)
    with pytest.raises(UserError, match="take 16 GiB, the GPU has 12") as said:
        refuse_too_large(adapters, 12 * GIB)
    assert "or train adapters" not in str(said.value)


def test_sharded_ranks_hold_a_part_each(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refuse_too_large(paper(), 80 * GIB)
    with pytest.raises(UserError, match=r"divided over 8 GPUs take 14 GiB, the GPU has 10"):
        refuse_too_large(paper(), 10 * GIB)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")  # replicated: as on one GPU
    with pytest.raises(UserError, match="take 113 GiB"):
        refuse_too_large(paper(), 80 * GIB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_refused_and_an_h200_is_assumed():
    refuse_too_large(paper())
    assert doctor.this_machine() == Machine(1, 139.0, False)
    assert doctor.this_machine(8) == Machine(8, 139.0, False)
    assert doctor.this_machine(8, 80) == Machine(8, 80, True)


def test_shape_from_a_folder_or_none(tmp_path):
    shipped = next((ROOT / "src" / "sps" / "assets" / "bases").iterdir())
    found = shape_of(str(shipped))
    assert isinstance(found, Shape)
    assert (found.layers, found.hidden, found.heads, found.ff) == (3, 96, 4, 192)
    assert shape_of(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')  # no such feed-forward size
    assert shape_of(str(tmp_path)) is None


def test_the_table_in_the_documentation_is_the_one_that_is_printed():
    bench = runpy.run_path(str(ROOT / "bench" / "scaling.py"))
    made = "\n".join(bench["table"](load_recipe(bench["RECIPE"])))
    assert made in (ROOT / "docs" / "scaling.md").read_text()
