"""SPS inside TRL: real GRPOTrainers on a small model."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_policy

from sps.algo.reach import reach
from sps.config.irl import IRL
from sps.errors import UserError
from sps.phases import irl
from sps.phases.irl import batches, forward_kl_step, make_irl_optimizer, select_groups
from sps.policy.load import Policy
from sps.policy.meter import Meter, Probe
from sps.policy.update import Budget

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own

ROOT = Path(__file__).parents[2]
SETTINGS = {"every": 2, "steps": 3, "keep": 2, "lr": 1e-3, "batch": 5}


def run(folder, how=None, reward=None, **settings):
    """A finished run with SPS in it: trainer, callback, and what was there before each phase."""
    from trl_runs import Before, make_trainer, odd

    from sps.integrations.trl import SPSCallback

    sps = SPSCallback(**{**SETTINGS, **(how or {})})
    before = Before(sps)
    watched = sps.watch(reward or odd)
    trainer = make_trainer(folder, watched, [before, sps], **{"max_steps": 4, **settings})
    trainer.train()
    return trainer, sps, before


def assert_same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    far = {name: float((one[name] - other[name]).abs().max()) for name in one}
    assert {name: gap for name, gap in far.items() if gap > tolerance} == {}


def phase_by_hand(policy, record, settings, number, temperature=1.0):
    """What `sps train` does with these rollouts at the end of a phase."""
    rng = np.random.default_rng([42, 7919, number])  # 42 is TRL's seed unless one is given
    kept, others, learnt = [], [], []
    for rollouts, reward_B, likelihood_B in record:
        how, groups = settings.selector, (reward_B.reshape(-1, 4), likelihood_B.reshape(-1, 4))
        chosen = (how.type, settings.keep, how.quantile, how.quantile_over)
        keep = select_groups(*groups, *chosen, rng)
        kept += [rollouts[i] for i in np.flatnonzero(keep)]
        others += [rollouts[i] for i in np.flatnonzero(~keep)]
    probe = Probe(*map(list, zip(*others, strict=True)), policy.pad_id, 16384)
    meter = Meter(policy.scorer, probe)
    optimizer = make_irl_optimizer(policy.model, settings, settings.lr)
    for batch in batches(len(kept), settings.batch, settings.steps, rng):
        prompts, completions = ([kept[i][part] for i in batch] for part in (0, 1))
        learnt.append([(kept[i][0].tolist(), kept[i][1].tolist()) for i in batch])
        how = {"reduce": settings.reduce, "temperature": temperature}
        forward_kl_step(policy, optimizer, prompts, completions, Budget(16384), **how)
    return learnt, meter.read()


REMEMBERED = {"memory": {"weight": 1.0, "quantile": 0.6, "per_problem": 2}}


def test_a_checkpoint_without_memory_is_said_and_a_broken_one_refused(tmp_path):
    run(tmp_path, REMEMBERED, save_strategy="steps", save_steps=2, max_steps=2)
    path = tmp_path / "checkpoint-2" / "sps_memory.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"sps_memory.parquet: SPSCallback's memory cannot be read"):
        resumed(tmp_path, 2)
    path.unlink()
    sps = resumed(tmp_path, 2)
    (text,) = [r["text"] for r in sps.history if r["kind"] == "warning"]
    assert "sps_memory.parquet is missing: memory begins anew at step 2" in text
    recalled = [r for r in sps.history if r["kind"] == "memory"]
    assert [r["step"] for r in recalled] == [1, 2, 3, 4]
    # The less likely 60 % of each prompt's, of which two: beside the IRL phases of both pairs.
    assert all(0 < r["recalled"] <= 2 * r["problems"] for r in recalled)
    assert [r["step"] for r in sps.history if r["kind"] == "meter"] == [2, 4]


def resumed(folder, step):
    """A new process's run, from a checkpoint on."""
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    sps = SPSCallback(**SETTINGS | REMEMBERED)
    trainer = make_trainer(folder, sps.watch(odd), [sps], max_steps=4)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    return sps


@pytest.mark.parametrize("how", [{"steps": 0}, {"lr": 0.0}], ids=["no steps", "no rate"])
def test_without_irl_the_weights_are_those_of_plain_trl(tmp_path, how):
    """With rate 0 all of the machinery runs; dropout would show a random number too many."""
    from trl_runs import make_trainer, odd

    same = {"max_steps": 4, "dropout": 0.1, "eval_strategy": "steps", "eval_steps": 1}
    plain = make_trainer(tmp_path / "plain", odd, **same)
    plain.train()
    trainer, sps, _ = run(tmp_path / "sps", how, **same)
    assert_same(trainer.model.state_dict(), plain.model.state_dict())
    kinds = [record["kind"] for record in sps.history]
    assert kinds == ([] if "steps" in how else ["irl", "irl", "irl", "irl", "meter", "warning"] * 2)
    assert trainer.model.training == plain.model.training


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {}),
        ({"selector": {"type": "positive", "likelihood": "sum"}}, {"temperature": 0.7}),
        ({"reduce": "sequence"}, {"gradient_checkpointing": True, "dropout": 0.1}),
        ({}, {"bf16": True}),
        ({}, {"steps_per_generation": 2}),
    ],
    ids=["plain", "selector", "checkpointing", "bf16", "two steps a batch"],
)
def test_a_phase_is_the_one_of_sps(tmp_path, how, settings):
    trainer, sps, before = run(tmp_path, how, **settings)
    weights, record = before.phases[1]
    policy = make_policy()
    policy.model.load_state_dict(weights)
    policy.model.compute_dtype = torch.bfloat16 if settings.get("bf16") else torch.float32
    rows = [(batch.rollouts, batch.reward_B, batch.likelihood_B) for batch in record]
    temperature = settings.get("temperature", 1.0)
    _, moved = phase_by_hand(policy, rows, IRL(**SETTINGS | how), 2, temperature)
    assert_same(trainer.model.state_dict(), policy.model.state_dict())
    assert sum(len(batch.rollouts) for batch in record) == 32
    assert [r["step"] for r in sps.history if r["kind"] == "meter"] == [2, 4]
    assert moved.items() <= sps.history[-1].items()
    assert moved["relative_update"] > 1e-3
    assert sps.record == []
    assert trainer.model.training
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_layers_compute_activations_twice_where_trl_has_them_do_so():
    from sps.integrations.trl.model import calm

    policy, calls = make_policy(), []
    model = policy.model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    settings, rollout = IRL(**SETTINGS), ([np.array([1, 2])], [np.array([3, 4])])
    with calm(model, recompute=True):
        optimizer = make_irl_optimizer(model, settings, settings.lr)
        forward_kl_step(policy, optimizer, *rollout, Budget(16384))
    assert len(calls) == 2
    assert all(module.training for module in model.modules())


def test_gradients_of_others_are_left_alone(tmp_path):
    from transformers import TrainerCallback
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    class Left(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            model.model.norm.weight.grad = torch.full((32,), 7.0)

    trained = []
    for callbacks in ([], [Left()]):
        sps = SPSCallback(**SETTINGS | {"every": 1})
        trainer = make_trainer(tmp_path, sps.watch(odd), [*callbacks, sps], max_steps=1)
        trainer.train()
        trained.append(trainer.model)
    assert trained[1].model.norm.weight.grad.tolist() == [7.0] * 32
    assert_same(trained[0].state_dict(), trained[1].state_dict())


def test_adapters_alone_are_trained(tmp_path):
    from peft import LoraConfig

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer, _, before = run(tmp_path, peft=lora)
    weights, record = before.phases[1]
    after = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    moved = [name for name in after if not torch.equal(after[name], weights[name])]
    assert len(moved) == 8  # A and B of two projections in two layers
    assert all("lora_" in name for name in moved)
    trainer.model.load_state_dict(weights)
    policy = Policy(trainer.model.eval().get_base_model(), trainer.processing_class, "test")
    rows = [(batch.rollouts, batch.reward_B, batch.likelihood_B) for batch in record]
    phase_by_hand(policy, rows, IRL(**SETTINGS), 2)
    assert_same(trainer.model.state_dict(), after)


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_the_record_is_what_trl_learns_from(tmp_path, chat):
    template = {"chat_template_kwargs": {"tail": ": :"}} if chat else {}
    trainer, _, before = run(tmp_path, chat=chat, eval_strategy="steps", eval_steps=1, **template)
    learnt = [rows for training, rows in trainer.seen if training]
    record = [batch for _, of_phase in before.phases for batch in of_phase]
    assert [
        [tuple(tuple(part.tolist()) for part in rollout) for rollout in batch.rollouts]
        for batch in record
    ] == learnt
    assert len(record) == 4
    assert len({len(prompt) for prompt, _ in learnt[0]}) > 1
    policy = make_policy()
    for weights, batch in zip(before.steps, record, strict=True):
        policy.model.load_state_dict(weights)
        by_hand = [_mean_logprob(policy.model, *rollout) for rollout in batch.rollouts]
        np.testing.assert_allclose(batch.likelihood_B, by_hand, rtol=1e-5)


@torch.no_grad()
def _mean_logprob(model, prompt, completion):
    ids = torch.tensor([[*prompt, *completion]])
    logp = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(logp.gather(1, ids[0, len(prompt) :, None]).mean())


def test_the_rate_that_is_left_out_follows_trls_schedule(tmp_path):
    """Linear from 1e-3 to 0 in 5 steps, phases of 2, 2 and 1 of them."""
    how = {"lr": None, "optimizer_state": "kept"}
    _, sps, _ = run(tmp_path, how, max_steps=5, lr_scheduler_type="linear")
    means, steps = [0.9e-3, 0.5e-3, 0.2e-3], [2, 2, 1]
    wanted = [0.35 / reach(1.0, 3, *pair) for pair in zip(means, steps, strict=True)]
    assert [r["lr"] for r in sps.history if "lr" in r] == pytest.approx(wanted)


def test_selection_may_use_the_policy_after_rl(tmp_path):
    """The weights have moved since, so the least likely of a group need not be the same."""
    chosen = []
    real = irl.select_groups
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(irl, "select_groups", lambda *a: chosen.append(a) or real(*a))
        _, _, before = run(tmp_path, {"selector": {"under": "policy"}}, max_steps=2)
    (weights, record), policy = before.phases[0], make_policy()
    policy.model.load_state_dict(weights)
    for batch, (_, likelihood_PG, *_) in zip(record, chosen, strict=True):
        by_hand = [_mean_logprob(policy.model, *rollout) for rollout in batch.rollouts]
        np.testing.assert_allclose(likelihood_PG.flatten(), by_hand, rtol=1e-5)
        assert np.abs(batch.likelihood_B - by_hand).max() > 1e-3


def test_several_rewards_are_summed_as_trl_sums_them(tmp_path):
    from trl_runs import odd

    async def short(completion_ids, **_):
        return [None if len(ids) > 5 else 1.0 for ids in completion_ids]

    trainer, sps, before = run(tmp_path, reward=[odd, short], reward_weights=[1.0, -0.5])
    for batch in before.phases[0][1]:
        ids = [completion for _, completion in batch.rollouts]
        wanted = [sum(c) % 2 - 0.5 * (len(c) <= 5) for c in ids]
        assert batch.reward_B.tolist() == wanted
    logs = [line for line in trainer.state.log_history if "reward" in line]
    assert all({"rewards/odd/mean", "rewards/short/mean"} <= line.keys() for line in logs)
    last = [r for r in sps.history if r["step"] == 2]
    assert logs[2]["irl/kept"] == last[0]["kept"]
    assert logs[2]["irl/loss"] == pytest.approx(last[-2]["loss"])
    assert "irl/loss" not in logs[1]


def test_a_resumed_run_starts_its_phase_anew(tmp_path):
    run(tmp_path, save_strategy="steps", save_steps=3)
    first = (tmp_path / "sps.jsonl").read_text().splitlines()
    from trl_runs import Before, make_trainer, odd

    from sps.integrations.trl import SPSCallback

    sps = SPSCallback(**SETTINGS)
    before = Before(sps)
    trainer = make_trainer(tmp_path, sps.watch(odd), [before, sps], max_steps=4)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert len(before.phases[0][1]) == 1  # step 3's rollouts were lost, step 4's are there
    again = (tmp_path / "sps.jsonl").read_text().splitlines()
    assert again[:5] == first[:5]  # phase 1: a line on the selection, three steps, the meter
    assert [json.loads(line)["step"] for line in again] == [2] * 5 + [4] * 5
    assert sps.history == [json.loads(line) for line in again]


def test_the_last_phase_may_be_short(tmp_path):
    _, sps, _ = run(tmp_path, max_steps=3)
    assert [(r["step"], r["phase"]) for r in sps.history if r["kind"] == "meter"] == [
        (2, 1),
        (3, 2),
    ]


def test_the_meter_has_no_kl_where_every_rollout_was_kept(tmp_path):
    _, sps, _ = run(tmp_path, {"keep": 4}, max_steps=2)
    assert sps.history[0]["kept"] == 32
    assert sps.history[-1].keys() >= {"relative_update", "weights_changed"}
    assert "kl" not in sps.history[-1]


def test_two_ranks_take_one_step_on_the_rollouts_of_both(two_ranks):
    first, second = two_ranks
    assert_same(first["after"], second["after"])
    assert_same(first["before"], second["before"])
    assert first["learnt"] == second["learnt"]
    assert sorted([first["rows"], second["rows"]]) == [4, 6]  # of 2 steps on 5 rollouts
    record = [
        (a[0] + b[0], *(np.concatenate(pair) for pair in zip(a[1:], b[1:], strict=True)))
        for a, b in zip(first["record"], second["record"], strict=True)
    ]
    policy = make_policy()
    policy.model.load_state_dict(first["before"])
    settings = IRL(every=2, steps=2, keep=2, lr=1e-3, batch=5)
    assert phase_by_hand(policy, record, settings, 1)[0] == first["learnt"]
    assert_same(first["after"], policy.model.state_dict(), tolerance=1e-5)
    assert [r["kind"] for r in first["history"]] == ["irl", "irl", "irl", "meter"]
    assert second["history"] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 2, "kep": 2}, "SPSCallback: irl.kep: no such key; did you mean 'keep'?"),
        ({"every": 2, "steps": -1}, "SPSCallback: irl.steps: "),
        ({"every": 2, "micro_tokens": 0}, "SPSCallback: rl.micro_tokens: "),
        ({}, "every=50"),
        ({"memory": 1.0}, "every=50 (or steps=0 with memory alone)"),
        ({"every": 2, "memory": -1.0}, "SPSCallback: irl.memory.weight: "),
        ({"every": 2, "memory": {"wait": 1}}, "irl.memory.wait: no such key"),
        (
            {"every": 2, "memory": {"weight": 1.0, "source": "base"}},
            "memory.source: inside TRL it can only be 'run'",
        ),
        ({"every": 2, "memory": {"when": "phase"}}, "memory.when: inside TRL"),
        ({"every": 2, "mode": str.lower}, "SPSCallback: mode says which rollouts"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    from sps.integrations.trl import SPSCallback

    with pytest.raises(UserError) as error:
        SPSCallback(**settings)
    assert message in str(error.value)


def test_groups_may_be_larger_than_those_of_a_recipe():
    from sps.integrations.trl import SPSCallback

    assert SPSCallback(every=2, keep=12).settings.keep == 12  # a recipe has groups of 8


@pytest.mark.parametrize(
    ("how", "settings", "message"),
    [
        ({"keep": 5}, {}, "keep (5) is above num_generations (4)"),
        ({"every": 3}, {"steps_per_generation": 2}, "every 2 optimizer steps"),
        ({}, {"fp16": True, "bf16": None}, "bf16=True"),
        ({}, {"reward": ["odd"], "reward_weights": [1.0]}, "not str"),
        ({}, {"reward": torch.nn.Linear(1, 1)}, "not Linear"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(tmp_path, how, settings, message):
    with pytest.raises(UserError) as error:
        run(tmp_path, how, **settings)
    assert message in str(error.value)


def test_a_reward_that_is_not_watched_is_noticed(tmp_path):
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    sps = SPSCallback(**SETTINGS)
    trainer = make_trainer(tmp_path, odd, [sps])
    with pytest.raises(UserError, match=r"reward_funcs=sps.watch\(reward\)"):
        trainer.train()
    sps.watch(odd)
    with pytest.raises(UserError, match=r"reward_funcs=sps.watch\(reward\)"):
        trainer.train()
    with pytest.raises(UserError, match="twice"):
        sps.watch(odd)


def test_a_callback_that_no_trainer_has_is_noticed(tmp_path, caplog):
    from trl_runs import make_trainer, odd

    from sps.integrations.trl import SPSCallback

    for given in (False, True):
        caplog.clear()
        sps = SPSCallback(**SETTINGS)
        trainer = make_trainer(tmp_path, sps.watch(odd), [sps] * given, max_steps=2)
        trainer.train()
        told = [r.getMessage() for r in caplog.records if "callbacks=[sps]" in r.getMessage()]
        assert len(told) == (not given)
        assert bool(sps.history) == given


def test_prompts_that_trl_encodes_in_another_way_are_noticed(tmp_path):
    from trl_runs import Seen

    with pytest.MonkeyPatch.context() as patch:
        real = Seen._tokenize_prompts

        def longer(self, prompts):
            ids, *rest = real(self, prompts)
            return [[*row, 1] for row in ids], *rest

        patch.setattr(Seen, "_tokenize_prompts", longer)
        with pytest.raises(UserError, match=r"of [0-9]+ tokens that TRL drew"):
            run(tmp_path)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_sharded_weights_are_refused(tmp_path, monkeypatch, kind):
    from accelerate.utils import DistributedType

    from sps.integrations.trl import model as ours

    fake = SimpleNamespace(distributed_type=DistributedType(kind), num_processes=2)
    monkeypatch.setattr(ours, "AcceleratorState", lambda: fake)
    with pytest.raises(UserError, match=r"launch/fsdp2\.yaml"):
        run(tmp_path)


def test_a_missing_trl_is_named(monkeypatch):
    from sps.integrations import trl as ours

    spec = importlib.util.spec_from_file_location("again", ours.__file__)
    module = importlib.util.module_from_spec(spec)
    sys.modules["again"] = module
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"sps-rl\[trl\]"):
        spec.loader.exec_module(module)
    del sys.modules["again"]


@pytest.mark.parametrize("name", ["README.md", "docs/recipes.md"])
def test_the_documented_lines_make_a_trainer(tmp_path, name):
    from trl_runs import make_trainer, odd

    (lines,) = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.M | re.S)
    given = make_trainer(tmp_path, odd)
    known = {"GRPOTrainer": partial(type(given), processing_class=given.processing_class)}
    known |= {"model": given.model, "args": given.args, "data": given.train_dataset, "reward": odd}
    exec(lines, known)
    known["trainer"].train()
    assert [r["kind"] for r in known["sps"].history] == ["irl"] * 5 + ["meter"]


def test_the_example_runs(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", str(ROOT / "examples" / "trl_sps.py")),
            *("--steps", "2", "--every", "2", "--out", str(tmp_path)),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    records = [json.loads(line) for line in (tmp_path / "sps.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records] == ["irl"] * 5 + ["meter"]
    assert f"{records[-1]['relative_update']:.1e}" in done.stdout
    assert (tmp_path / "model" / "config.json").exists()
