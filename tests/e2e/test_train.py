"""Whole runs at the smallest scale at which something is learnt."""

from __future__ import annotations

import json
import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sps import loop
from sps.algo.reach import reach
from sps.build import open_run
from sps.commands.jobs import Job, run_job, saved_steps
from sps.config.load import load_recipe, parse_recipe
from sps.errors import RunFailed, UserError
from sps.evaluate.scores import count_scores
from sps.lifecycle.measure import measure
from sps.loop import train
from sps.phases import irl, rl
from sps.phases.memory import measured
from sps.phases.schedule import Phase
from sps.policy.checkpoint import latest_checkpoint, saved_checkpoints
from sps.policy.load import load_policy
from sps.rollout.cuda.retry import draw_all
from sps.rollout.native.engine import NativeEngine
from sps.run.folder import checkpoint_path
from sps.run.track import read_records
from sps.store.evals import EvalStore
from sps.store.rollouts import RolloutStore
from sps.types import Verdict
from sps.verify import InlineVerifier
from sps.verify.pool import VerifierPool

# Two seconds of training; about 40 % of its samples are right.
BASE = {
    "steps": 400,
    "batch": 32,
    "lr": 1e-2,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "ff": 64,
    "solved": 0.8,
}


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """One embedded policy for all runs, made once and away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def recipe_of(**changes):
    """Two numbers, one sign: right answers are frequent enough that groups disagree."""
    tree = {
        "name": "test",
        "seed": 1,
        "model": {"base": BASE, "device": "cpu"},
        "task": {"numbers": 2, "high": 6, "max_value": 36, "train": 24, "validation": 4, "test": 4},
        "rollout": {"prompts": 4, "n": 4, "max_new_tokens": 8},
        "rl": {"algorithm": {"type": "grpo"}, "steps": 6, "lr": 1e-3},
        "irl": {"steps": 2, "every": 3, "lr": 1e-3, "batch": 16, "keep": 2},
        "evaluation": {"n": 4, "validation_n": 4, "every": 0, "final": False},
        "checkpoint": {"every": 2},
        "meter": {"problems": 2, "samples": 2},
    }
    for place, value in changes.items():
        node = tree
        *path, last = place.split("__")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return parse_recipe(tree, "test")


def run(recipe, folder, resume=False, listeners=None):
    this = open_run(recipe, folder, resume, listeners)
    scores = train(this)
    return this, scores


def weights(folder, step=6):
    model = load_policy(str(checkpoint_path(folder, step))).model
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def first_weights(recipe, tmp_path):
    this = open_run(recipe, tmp_path / "first")
    return {name: p.detach().clone() for name, p in this.policy.model.named_parameters()}


def same_weights(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stored(folder):
    """Every rollout, in one order, with its likelihood, reward and mark."""
    rows = RolloutStore(folder / "rollouts").read().to_pylist()
    return sorted(rows, key=lambda r: (r["step"], r["group"], r["sample"]))


def told(folder):
    """The record of a run without what depends on the clock."""
    return [
        {k: v for k, v in r.items() if k != "time" and not k.startswith("seconds/")}
        for r in read_records(folder / "metrics.jsonl")
    ]


ALGORITHMS = {
    "grpo": {"type": "grpo"},
    "grpo_kl": {"type": "grpo", "beta": 0.05},
    "dr_grpo": {"type": "dr_grpo"},
    "dapo": {"type": "dapo", "soft_cache_length": 3},
    "gspo": {"type": "gspo", "steps_per_generation": 2},
    "pass_at_k": {"type": "pass_at_k", "k": 2},
    "w_reinforce": {"type": "w_reinforce"},
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns_something_finite_and_stores_it(name, tmp_path):
    recipe = recipe_of(rl__algorithm=ALGORITHMS[name])
    this, _ = run(recipe, tmp_path / "run")
    records = told(tmp_path / "run")
    steps = [r for r in records if r["kind"] == "rl"]
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(r["loss"]) for r in steps)
    assert any(r["grad_norm"] > 0 for r in steps)
    assert all(torch.isfinite(p).all() for p in this.policy.model.parameters())
    assert not same_weights(weights(tmp_path / "run"), first_weights(recipe, tmp_path))
    rows = stored(tmp_path / "run")
    # 6 steps of 4 groups of 4; DAPO draws more groups, and stores those too.
    assert len(rows) == (4 * sum(r["groups"] for r in steps) if name == "dapo" else 96)
    assert {r["verdict"] for r in rows} >= {"correct", "wrong"}
    # Two IRL phases, each with one record of what was kept and one a step, and a meter after each.
    assert [r["step"] for r in records if r["kind"] == "irl"] == [3, 3, 3, 6, 6, 6]
    meters = [(r["of"], r["step"]) for r in records if r["kind"] == "meter"]
    assert meters == [("rl", 3), ("irl", 3), ("rl", 6), ("irl", 6)]
    moved = [r["to_greedy"] for r in records if r["kind"] == "meter"]
    assert all(0 < abs(x) < 1 for x in moved)
    if name == "grpo_kl":
        # At the first step the policy is the reference, later it is not.
        assert steps[0]["kl_ref"] == pytest.approx(0, abs=1e-9)
        assert steps[-1]["kl_ref"] > 1e-6
    if name == "gspo":
        # The second step of a generation is off its sampling policy, the first is not.
        assert steps[0]["ratio"] == 1
        assert steps[1]["ratio"] != 1
    if name == "dapo":
        # Answers of 6 tokens of at most 8, punished from 6 on: the longest cost 1.
        assert {r["reward"] for r in rows if r["length"] == 8} <= {-1.0}
        punished = {r["length"]: r["reward"] for r in rows if r["verdict"] == "correct"}
        for length, reward in punished.items():
            assert reward == pytest.approx(1 - max(0, length - 5) / 3, abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_reward_rises(name, tmp_path):
    """192 samples a step: a mean has an error of 0.035, so that 0.2 are more than five of them."""
    rollout = {"prompts": 24, "n": 8, "max_new_tokens": 8}
    recipe = recipe_of(
        rl__algorithm=ALGORITHMS[name], rl__steps=16, rl__lr=5e-3, irl__steps=0, rollout=rollout
    )
    run(recipe, tmp_path / "run")
    reward = [r["reward"] for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert np.mean(reward[-4:]) > reward[0] + 0.2


def test_stored_logprobs_are_those_of_the_sampling_policy(tmp_path):
    recipe = recipe_of(irl__steps=0)
    run(recipe, tmp_path / "run")
    this = open_run(recipe, tmp_path / "first")
    model = this.policy.model
    rows = [r for r in stored(tmp_path / "run") if r["step"] == 1]
    assert len(rows) == 16
    for r in rows:
        ids = torch.tensor(r["prompt_ids"] + r["ids"])
        logp = model(input_ids=ids[None]).logits[0].log_softmax(-1).detach()
        at = torch.arange(len(r["prompt_ids"]) - 1, len(ids) - 1)
        want = logp[at, ids[at + 1]]
        assert r["logprobs"] == pytest.approx(want.tolist(), abs=1e-4)
        assert r["sum_logprob"] == pytest.approx(float(want.sum()), abs=1e-3)


def test_the_same_run_twice_gives_the_same_weights_and_records(tmp_path):
    for name in ("a", "b"):
        run(recipe_of(), tmp_path / name)
    assert same_weights(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert stored(tmp_path / "a") == stored(tmp_path / "b")
    assert told(tmp_path / "a") == told(tmp_path / "b")
    run(recipe_of(seed=2), tmp_path / "c")
    assert not same_weights(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_no_irl_steps_is_plain_rl_whatever_the_phases(name, tmp_path):
    for every in (0, 1, 3, 5):
        recipe = recipe_of(rl__algorithm=ALGORITHMS[name], irl__steps=0, irl__every=every)
        run(recipe, tmp_path / str(every))
    plain = weights(tmp_path / "0")
    for every in ("1", "3", "5"):
        assert same_weights(weights(tmp_path / every), plain)
        assert stored(tmp_path / every) == stored(tmp_path / "0")
    assert not any(r["kept"] for r in stored(tmp_path / "0"))
    run(recipe_of(rl__algorithm=ALGORITHMS[name]), tmp_path / "sps")
    assert not same_weights(weights(tmp_path / "sps"), plain)


def test_irl_leaves_the_order_of_problems_and_the_first_phase_alone(tmp_path):
    run(recipe_of(), tmp_path / "sps")
    run(recipe_of(irl__steps=0), tmp_path / "plain")
    sps, plain = stored(tmp_path / "sps"), stored(tmp_path / "plain")
    assert [r["problem_id"] for r in sps] == [r["problem_id"] for r in plain]
    first = [{**r, "kept": False} for r in sps if r["step"] <= 3]
    assert first == [r for r in plain if r["step"] <= 3]
    assert [r["ids"] for r in sps] != [r["ids"] for r in plain]


def learnt(folder):
    return [r for r in told(folder) if r["kind"] in ("rl", "irl")]


def test_irl_that_moves_nothing_is_plain_rl(tmp_path):
    # IRL draws no random number of the RL phases: at a rate of 0 the rest of the run is the same.
    run(recipe_of(irl__lr=0.0), tmp_path / "sps")
    run(recipe_of(irl__steps=0), tmp_path / "plain")
    assert same_weights(weights(tmp_path / "sps"), weights(tmp_path / "plain"))


class Killed(Exception):
    pass


def kill_at(kind, step, nth=1):
    """A listener that stops the run after the nth record of a kind at a step was written."""
    seen = []

    def listen(record):
        seen.append((record["kind"], record["step"]) == (kind, step))
        if seen[-1] and sum(seen) == nth:
            raise Killed

    return listen


def killed_and_resumed(recipe, folder, kill):
    with pytest.raises(Killed):
        run(recipe, folder, listeners=[kill])
    at = latest_checkpoint(folder / "checkpoints")
    run(recipe, folder, resume=True)
    return at.name if at else None


KILLS = {
    "in_rl_after_a_checkpoint": (kill_at("rl", 5), "step-000004"),
    "right_at_a_checkpoint": (kill_at("checkpoint", 2), "step-000002"),
    # Checkpoint at 2, phase 1 to 3 in the store already closed.
    "in_the_first_irl_step": (kill_at("irl", 3, 2), "step-000002"),
    "after_selection": (kill_at("irl", 3, 1), "step-000002"),
    "before_irl": (kill_at("meter", 3, 1), "step-000002"),
    "after_irl": (kill_at("meter", 3, 2), "step-000002"),
    "in_the_phase_after": (kill_at("rl", 4), "step-000002"),
    "in_the_last_irl_phase": (kill_at("irl", 6, 3), "step-000004"),
    "before_any_checkpoint": (kill_at("rl", 1), None),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(recipe_of(), folder)
    return folder


@pytest.mark.parametrize("name", sorted(KILLS))
def test_a_killed_run_resumes_to_the_same_bits(name, tmp_path, whole):
    kill, checkpoint = KILLS[name]
    assert killed_and_resumed(recipe_of(), tmp_path / "run", kill) == checkpoint
    assert same_weights(weights(tmp_path / "run"), weights(whole))
    assert stored(tmp_path / "run") == stored(whole)
    assert learnt(tmp_path / "run") == learnt(whole)  # every step once, with the same loss


def test_the_start_is_validated_once(tmp_path):
    recipe = recipe_of(evaluation__every=3)
    killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 1))
    names = [r["name"] for r in told(tmp_path / "run") if r["kind"] == "eval"]
    assert [n for n in names if n.startswith("validation")] == [
        f"validation-{step:06d}" for step in (0, 3, 6)
    ]


def test_a_run_goes_on_in_the_dtype_it_began_with(tmp_path):
    written = tmp_path / "run" / "recipe.yaml"
    with pytest.raises(Killed):
        run(recipe_of(), tmp_path / "run", listeners=[kill_at("rl", 3)])
    assert load_recipe(written).model.dtype == "float32"  # what auto is on a CPU
    written.write_text(written.read_text().replace("float32", "bfloat16"))  # and on a GPU
    this, _ = run(recipe_of(), tmp_path / "run", resume=True)
    assert this.recipe.model.dtype == "bfloat16"
    assert this.policy.model.compute_dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dapo", {"rl__algorithm": {"type": "dapo"}}),
        ("kl", {"rl__algorithm": {"type": "grpo", "beta": 0.05}}),
        ("kept_optimizer", {"irl__optimizer_state": "kept"}),
        ("warmup", {"rl__optimizer": {"warmup_steps": 5}}),
        ("plain", {"irl__steps": 0}),
        ("memory", {"irl__memory": {"weight": 1.0, "per_problem": 2}, "rollout__temperature": 1.3}),
        ("memory_in_phases", {"irl__memory": {"when": "phase"}, "irl__keep": 3}),
        (
            "memory_of_base",
            {"irl__memory": {"weight": 0.5, "source": "base", "divergence": "js"}},
        ),
        ("under_the_policy", {"irl__selector": {"under": "policy"}}),
        ("gspo", {"rl__algorithm": {"type": "gspo", "steps_per_generation": 2}, "irl__every": 2}),
    ],
)
def test_resuming_is_exact_for_every_state_there_is(name, changes, tmp_path):
    recipe = recipe_of(**changes)
    run(recipe, tmp_path / "whole")
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert stored(tmp_path / "run") == stored(tmp_path / "whole")


def test_the_base_draws_once_however_often_the_run_is_killed(tmp_path):
    memory = {"weight": 1.0, "source": "base", "when": "both", "distinct": False}
    recipe = recipe_of(irl__memory=memory, irl__keep=3)
    run(recipe, tmp_path / "whole")
    first = tmp_path / "run" / "rollouts" / "step-000000.parquet"
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("base", 0)])
    drawn = first.stat()
    with pytest.raises(Killed):  # before the first checkpoint, hence from the beginning
        run(recipe, tmp_path / "run", resume=True, listeners=[kill_at("rl", 1)])
    this, _ = run(recipe, tmp_path / "run", resume=True)
    assert first.stat().st_ino == drawn.st_ino
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    base = [r for r in stored(tmp_path / "run") if r["step"] == 0]
    assert len(base) == 24 * 4  # every training problem
    right = [tuple(r["ids"]) for r in base if r["verdict"] == "correct"]
    assert sorted(tuple(r.ids.tolist()) for r in this.memory) == sorted(right)


def test_rollouts_of_the_base_that_are_lost_are_named(tmp_path):
    recipe = recipe_of(irl__memory={"weight": 1.0, "source": "base"}, irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 3)])
    (tmp_path / "run" / "rollouts" / "step-000000.parquet").unlink()
    with pytest.raises(UserError, match="rollouts of step 0 are missing, and memory learns"):
        open_run(recipe, tmp_path / "run", resume=True)


def test_a_base_that_solves_too_little_is_said(tmp_path):
    recipe = recipe_of(irl__memory={"weight": 1.0, "source": "base"}, rl__steps=1)
    wrong = Verdict("wrong", 0.0)
    this = open_run(recipe, tmp_path / "run")
    this.verifier = InlineVerifier(lambda problem, text, finished: wrong)
    train(this)
    (text,) = [r["text"] for r in told(tmp_path / "run") if "memory is empty" in r.get("text", "")]
    assert "24 training problems" in text


def test_the_meter_reads_on_the_same_memory_after_a_resume(tmp_path, monkeypatch):
    """In phases of 4 steps the second is cut after its second: more is remembered by then."""
    chosen = []

    def noted(this, phase, kind):
        probe = measured(this, phase, kind)
        known = [] if probe is None else [(*p, *c) for p, c in zip(*parts(probe), strict=True)]
        chosen.append((phase.number, kind, known))
        return probe

    def parts(probe):
        return probe.prompts, probe.completions

    monkeypatch.setattr(loop, "measured", noted)
    recipe = recipe_of(irl__memory={"weight": 1.0}, rl__steps=8, irl__every=4)
    run(recipe, tmp_path / "whole")
    whole, chosen[:] = {c[:2]: c[2] for c in chosen}, []
    killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 7))
    resumed = [c for c in chosen if c[0] == 2]
    assert [c[1] for c in resumed] == ["rl", "rl", "irl"]  # of both processes
    assert all(whole[number, kind] == known for number, kind, known in resumed)
    assert len(whole[2, "irl"]) > len(whole[2, "rl"]) > len(whole[1, "rl"]) == 0
    for record in meters(tmp_path / "run"):
        has = record["phase"] == 2 or record["of"] == "irl"
        assert ("memory_gain" in record) == has
        assert not has or np.isfinite(record["memory_logprob"])


def meters(folder):
    return [r for r in told(folder) if r["kind"] == "meter"]


def files(folder):
    return sorted(path.name for path in (folder / "rollouts").iterdir())


@pytest.mark.parametrize("kind", ["meter", "checkpoint"])
def test_plain_rl_killed_at_the_end_of_a_phase_has_all_of_it_when_resumed(kind, tmp_path):
    recipe = recipe_of(irl__steps=0, irl__every=3, checkpoint__every=3)
    run(recipe, tmp_path / "whole")
    killed_and_resumed(recipe, tmp_path / "run", kill_at(kind, 3))
    assert [r["step"] for r in meters(tmp_path / "whole")] == [3, 6]
    assert meters(tmp_path / "run") == meters(tmp_path / "whole")
    assert files(tmp_path / "whole") == [
        "phase-000001-000003.parquet",
        "phase-000004-000006.parquet",
    ]
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_resumed_in_mid_phase_merges_all_of_it_and_says_since_when_the_meter_reads(tmp_path):
    recipe = recipe_of(irl__steps=0, irl__every=6)
    run(recipe, tmp_path / "whole")
    killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5))
    assert files(tmp_path / "run") == files(tmp_path / "whole") == ["phase-000001-000006.parquet"]
    (whole,), (resumed,) = meters(tmp_path / "whole"), meters(tmp_path / "run")
    assert "since_step" not in whole
    assert resumed["since_step"] == 4  # the checkpoint
    assert resumed["relative_update"] < whole["relative_update"]
    card = (checkpoint_path(tmp_path / "run", 6) / "README.md").read_text()
    assert "The last RL phase, from step 4 up to step 6, moved" in card


@pytest.mark.parametrize("name", ["validation-000006", "test"])
def test_samples_of_a_later_step_that_was_cut_short_are_drawn_again(name, tmp_path):
    recipe = recipe_of(evaluation={"every": 6, "n": 4, "validation_n": 4}, irl__steps=0)
    run(recipe, tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    store = EvalStore(tmp_path / "run" / "evals" / name)  # of the policy that was lost
    whole = EvalStore(tmp_path / "whole" / "evals" / name).read()
    for row in whole:
        store.append({**row, "verdict": "correct"})
    store.flush()
    run(recipe, tmp_path / "run", resume=True)
    assert EvalStore(store.folder).read() == whole
    assert {r["verdict"] for r in whole} > {"correct"}


def test_samples_of_the_end_that_was_cut_short_are_kept_when_it_is_resumed_there(tmp_path):
    recipe = recipe_of(evaluation={"every": 0, "n": 4}, irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("checkpoint", 6)])
    EvalStore(tmp_path / "run" / "evals" / "test")
    open_run(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "evals" / "test").is_dir()


def test_samples_of_a_base_that_was_being_compared_are_kept(tmp_path):
    recipe = recipe_of(evaluation={"every": 0, "n": 4})
    job = Job("base", recipe, tmp_path / "base", train=False)
    run_job(job)
    for name in ("result.json", "evals/test-000000.json"):  # as if killed before they were written
        (job.folder / name).unlink()
    (job.folder / "metrics.jsonl").write_text("")
    store = EvalStore(job.folder / "evals" / "test-000000")
    rows = store.read()
    store.replace([{**rows[0], "text": "drawn before"}])
    run_job(job)
    texts = [row["text"] for row in EvalStore(store.folder).read()]
    assert len(texts) == len(rows)
    assert texts.count("drawn before") == 1


@pytest.mark.parametrize("saved", [0, 1], ids=["the_first", "a_later_one"])
def test_a_checkpoint_whose_saving_was_killed_leaves_nothing_once_resumed(
    saved, tmp_path, monkeypatch
):
    recipe, left = recipe_of(rl__steps=4, irl__steps=0), [saved]

    def killed(*arguments, real=torch.save):
        if not left[0]:
            raise Killed
        left[0] -= 1
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", killed)
        patch.setattr("os.getpid", lambda: 99)  # a resumed run is another process
        with pytest.raises(Killed):
            run(recipe, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert len([*folder.glob("*.99.draft")]) == 1
    run(recipe, tmp_path / "run", resume=True)
    assert sorted(p.name for p in folder.iterdir()) == ["step-000002", "step-000004"]


def test_checkpoints_wait_for_the_end_of_a_generation_and_resume_is_exact(tmp_path):
    recipe = recipe_of(
        rl__algorithm={"type": "gspo", "steps_per_generation": 4}, irl__steps=0, irl__every=6
    )
    run(recipe, tmp_path / "whole")
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))


TWO = {"type": "gspo", "steps_per_generation": 2}


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, [2, 4, 6]),
        ({"checkpoint": {"every": 0}}, [6]),
        ({"checkpoint": {"every": 1, "keep": 2}}, [5, 6]),
        # Generations end at 2, 4, 6 in plain RL, and at 2, 3, 5, 6 where IRL follows step 3.
        ({"rl__algorithm": TWO, "checkpoint__every": 3, "irl__steps": 0}, [4, 6]),
        ({"rl__algorithm": TWO, "checkpoint__every": 1}, [2, 3, 5, 6]),
        ({"rl__algorithm": TWO, "checkpoint__every": 4}, [5, 6]),
    ],
)
def test_the_checkpoints_a_run_leaves_are_known_before_it(changes, steps, tmp_path):
    recipe = recipe_of(**changes)
    assert saved_steps(recipe) == steps
    run(recipe, tmp_path / "run")
    assert list(saved_checkpoints(tmp_path / "run" / "checkpoints")) == steps


def test_kept_rollouts_are_two_of_each_group_and_follow_l2te(tmp_path):
    run(recipe_of(), tmp_path / "run")
    rows = stored(tmp_path / "run")
    groups = {}
    for r in rows:
        groups.setdefault((r["step"], r["group"]), []).append(r)
    assert len(groups) == 24
    for group in groups.values():
        # By hand: the two least likely of four are the lower half, the negatives of it come first.
        order = sorted(group, key=lambda r: r["mean_logprob"])
        tiers = [(i >= 2, r["reward"] > 0, i) for i, r in enumerate(order)]
        want = {order[i]["sample"] for *_, i in sorted(tiers)[:2]}
        assert {r["sample"] for r in group if r["kept"]} == want
    records = [r for r in told(tmp_path / "run") if r["kind"] == "irl" and "kept" in r]
    assert [r["kept"] for r in records] == [24, 24]
    for record, steps in zip(records, [(1, 2, 3), (4, 5, 6)], strict=True):
        kept = [r for r in rows if r["kept"] and r["step"] in steps]
        assert record["kept_right"] == pytest.approx(sum(r["reward"] > 0 for r in kept) / 24)
        assert record["kept_cut_off"] == pytest.approx(sum(not r["finished"] for r in kept) / 24)


def test_learning_from_rollouts_without_an_end_is_warned_of(tmp_path):
    def warnings(folder, limit):
        run(recipe_of(rollout__max_new_tokens=limit, irl__selector={"type": "negative"}), folder)
        return [
            r["text"] for r in told(folder) if r["kind"] == "warning" and "cut off" in r["text"]
        ]

    short = warnings(tmp_path / "short", 2)
    assert len(short) == 2  # phases
    assert "100% of the rollouts" in short[0]
    assert "at 2 tokens" in short[0]
    assert not warnings(tmp_path / "long", recipe_of().rollout.max_new_tokens)


def test_an_entropy_bonus_keeps_the_policy_less_certain(tmp_path):
    def last_entropy(folder, bonus):
        run(recipe_of(rl__entropy=bonus, irl__steps=0, rl__lr=3e-3), folder)
        steps = [r for r in told(folder) if r["kind"] == "rl"]
        assert all(np.isfinite(r["loss"]) for r in steps)
        return steps[-1]["entropy"], steps[-1]["used"]

    (without, some), (with_bonus, every) = (
        last_entropy(tmp_path / str(bonus), bonus) for bonus in (0.0, 1.0)
    )
    assert with_bonus > without + 0.1
    assert some < 1 == every  # a group that agrees has an entropy, too


@pytest.mark.parametrize("selector", ["positive", "low_likelihood_positive", "negative"])
def test_other_selectors_reach_the_store(selector, tmp_path):
    run(recipe_of(irl__selector={"type": selector}), tmp_path / "run")
    kept = [r for r in stored(tmp_path / "run") if r["kept"]]
    assert kept
    assert {r["reward"] > 0 for r in kept} == {selector != "negative"}


def test_irl_makes_the_kept_rollouts_more_likely(tmp_path):
    recipe = recipe_of(rl__steps=3, irl__steps=20, irl__lr=1e-2)
    run(recipe, tmp_path / "run")
    losses = [r["loss"] for r in told(tmp_path / "run") if r["kind"] == "irl" and "loss" in r]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.1


def test_the_papers_irl_lr_is_warned_about_and_the_tuned_one_is_not(tmp_path):
    run(recipe_of(irl__lr=5e-10), tmp_path / "paper")
    warnings = [r for r in told(tmp_path / "paper") if r["kind"] == "warning"]
    assert [w["step"] for w in warnings] == [3, 6]
    assert all("lr 5e-10" in w["text"] and "float32" in w["text"] for w in warnings)
    assert all("the irl phase" in w["text"] for w in warnings)
    run(recipe_of(irl__lr=None), tmp_path / "tuned")
    assert not [r for r in told(tmp_path / "tuned") if r["kind"] == "warning"]


def test_the_rate_that_is_left_out_takes_the_irl_phase_as_far_as_asked(tmp_path):
    found = {}
    for name, settings in {
        "short": {"irl__lr": None, "irl__reach": 0.2},
        "long": {"irl__lr": None, "irl__reach": 0.4},
        "too_far": {"irl__lr": 6e-4},
    }.items():
        recipe = recipe_of(rl__steps=24, rl__lr=2e-4, irl__every=12, irl__steps=4, **settings)
        run(recipe, tmp_path / name)
        records = told(tmp_path / name)
        far = {r["of"]: r["relative_update"] for r in records if r["kind"] == "meter"}
        texts = [r["text"] for r in records if r["kind"] == "warning"]
        lr = next(r["lr"] for r in records if r["kind"] == "irl" and "lr" in r)
        found[name] = far["irl"] / far["rl"], lr, texts
    assert found["short"][0] == pytest.approx(0.2, rel=0.4)  # the law is rough
    assert found["long"][0] == pytest.approx(0.4, rel=0.4)
    assert found["long"][1] == pytest.approx(2 * found["short"][1])
    assert not found["short"][2]
    assert found["too_far"][1] == 6e-4
    assert any("undo what RL teaches" in text for text in found["too_far"][2])


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_a_short_last_phase_has_a_rate_of_its_own(tmp_path, state):
    """Phases of 4, 4 and 1 RL steps."""
    recipe = recipe_of(
        rl__steps=9, irl__every=4, irl__lr=None, irl__optimizer_state=state, checkpoint__every=3
    )
    run(recipe, tmp_path / "run")
    rates = [r["lr"] for r in told(tmp_path / "run") if "lr" in r]
    assert rates == pytest.approx([0.35 / reach(1.0, 2, 1e-3, steps) for steps in (4, 4, 1)])


def test_memory_that_runs_out_is_on_record_and_changes_nothing(tmp_path, monkeypatch):
    """Once while drawing, once in an IRL step; the run is the one that had memory enough."""
    run(recipe_of(irl__lr=None), tmp_path / "plain")
    whole, kl, failures = NativeEngine.generate, irl.forward_kl, ["draw", "irl"]

    def draw(engine, requests, sampling):
        for number, completion in enumerate(whole(engine, requests, sampling)):
            if "draw" in failures and len(requests) == 4 and number == 5:  # not the meter's two
                failures.remove("draw")
                raise torch.OutOfMemoryError
            yield completion

    def forward_kl(*given):
        if "irl" in failures:
            failures.remove("irl")
            raise torch.OutOfMemoryError
        return kl(*given)

    monkeypatch.setattr(NativeEngine, "draw", draw, raising=False)
    monkeypatch.setattr(NativeEngine, "generate", draw_all)
    monkeypatch.setattr(irl, "forward_kl", forward_kl)
    run(recipe_of(irl__lr=None), tmp_path / "tight")
    assert not failures
    records = told(tmp_path / "tight")
    texts = [(r["step"], r["text"]) for r in records if r["kind"] == "warning"]
    assert [step for step, _ in texts] == [1, 3]
    assert "sequences are drawn at once now" in texts[0][1]
    assert "passes are now of 8192 tokens" in texts[1][1]
    plain = [r for r in told(tmp_path / "plain") if r["kind"] == "rl"]
    tight = [r for r in records if r["kind"] == "rl"]
    assert [r["reward"] for r in tight] == [r["reward"] for r in plain]
    assert [r["loss"] for r in tight] == pytest.approx([r["loss"] for r in plain], abs=1e-6)


def test_a_phase_in_which_no_group_disagrees_says_so(tmp_path):
    # One token is never an answer: every group is all wrong. No right one is there to be kept.
    recipe = recipe_of(rollout__max_new_tokens=1, irl__selector={"type": "positive"})
    run(recipe, tmp_path / "run")
    said = [r["text"] for r in told(tmp_path / "run") if r["kind"] == "warning"]
    texts = [text for text in said if "no answer was right" not in text]
    assert len(said) == len(texts) + 2  # after 3 steps, a phase, and after twice as many
    assert ["both right and wrong answers" in text for text in texts] == [True, False] * 2
    assert ["the irl phase had nothing to learn from" in text for text in texts] == [
        False,
        True,
    ] * 2
    assert not any("Raise" in text for text in texts)


# A draw is 16 completions of 2 s each. A verdict takes 0.25 s in `submit` and 1 s of waiting.
# DAPO finds that all groups agree and draws 1 + 2 times; GSPO draws for two steps at once.
@pytest.mark.parametrize(
    ("algorithm", "generate", "verify"),
    [
        ({"type": "grpo"}, 32, 20),
        ({"type": "dapo", "max_resample_times": 2}, 96, 60),
        ({"type": "gspo", "steps_per_generation": 2}, 32, 20),
    ],
)
def test_generating_and_verifying_are_timed_apart(
    algorithm, generate, verify, tmp_path, monkeypatch
):
    this = open_run(recipe_of(rl__algorithm=algorithm), tmp_path / "run")
    now = [0.0]

    def passes(seconds):
        now[0] += seconds

    class Late(Future):
        waited = False

        def result(self, timeout=None):
            passes(0 if self.waited else 1)
            self.waited = True
            return Verdict("wrong", 0.0)

    def drawn(requests, sampling, real=this.engine.generate):
        for completion in real(requests, sampling):
            passes(2)
            yield completion

    monkeypatch.setattr(rl, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(this.engine, "generate", drawn)
    monkeypatch.setattr(this.verifier, "submit", lambda *_: passes(0.25) or Late())
    for _, metrics, _ in rl.rl_phase(this, Phase(1, 1, 1, 2)):
        assert metrics["seconds/generate"] == pytest.approx(generate)
        assert metrics["seconds/verify"] == pytest.approx(verify)
        assert "seconds/draw" not in metrics


DYING = """
import os
from sps.tasks.countdown import Countdown

def make_judge():
    judged = []
    def judge(problem, text, finished):
        judged.append(text)
        if len(judged) == 21:  # one to start, 16 of the first step, and then the fourth
            os._exit(9)
        return Countdown().judge(problem, text, finished)
    return judge
"""


def test_a_verifier_that_fails_ends_the_run_and_nothing_is_learnt_from_it(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    recipe = recipe_of(checkpoint__every=1, irl__steps=0)
    this = open_run(recipe, tmp_path / "run")
    this.verifier = VerifierPool("dying:make_judge", workers=1)
    ready = this.verifier.submit(this.train[0], "", True)
    ready.result(timeout=60)
    monkeypatch.setattr(this.verifier, "_start", lambda: os.close(-1))  # no worker ever again
    with pytest.raises(RunFailed, match="the verifier pool failed: OSError"):
        train(this)
    assert latest_checkpoint(tmp_path / "run" / "checkpoints").name == "step-000001"
    assert {row["step"] for row in stored(tmp_path / "run")} == {1}
    run(recipe, tmp_path / "run", resume=True)
    run(recipe, tmp_path / "whole")
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))


class Shifted(NativeEngine):
    """An engine that thinks its tokens less likely than the trainer does."""

    by = 0.0

    def generate(self, requests, sampling):
        for c in super().generate(requests, sampling):
            yield replace(c, logprobs=c.logprobs - np.float32(self.by))


def run_shifted(recipe, folder, by):
    """The `rl` records and the warnings of a run with such an engine."""
    this = open_run(recipe, folder)
    this.engine = Shifted(this.policy.model, this.policy.eos_ids, this.policy.pad_id)
    this.engine.by = by
    train(this)
    records = told(folder)
    return [r for r in records if r["kind"] == "rl"], [r for r in records if "text" in r]


def test_the_gap_to_the_engine_is_recorded_at_every_step(tmp_path):
    recipe = recipe_of(rl__algorithm=ALGORITHMS["gspo"], rl__steps=4, irl__steps=0)
    run(recipe, tmp_path / "run")
    rl = [r for r in told(tmp_path / "run") if r["kind"] == "rl" and r["used"]]
    assert len(rl) > 2
    assert all(r["engine_gap"] <= r["engine_gap_rms"] < 1e-5 for r in rl)


def test_a_wide_gap_is_warned_of_once_a_phase(tmp_path):
    """Six steps in two phases, each token off by 0.3: KL(engine || trainer) is e^0.3 - 0.3 - 1."""
    recipe = recipe_of(irl__lr=None, rollout__gap_stop=0.4)
    rl, warned = run_shifted(recipe, tmp_path / "run", by=0.3)
    far = [r for r in rl if r["used"]]
    assert [r["engine_gap"] for r in far] == pytest.approx([0.3] * len(far), abs=1e-5)
    assert [r["engine_kl"] for r in far] == pytest.approx([0.04986] * len(far), abs=1e-5)
    assert [r["text"].count("rollout.correct: 2") for r in warned] == [1, 1]


@pytest.mark.parametrize(("dtype", "by"), [("float32", 0.06), ("bfloat16", 0.4)])
def test_a_gap_that_rounding_cannot_explain_ends_the_run(tmp_path, dtype, by):
    recipe = recipe_of(rl__algorithm=ALGORITHMS["gspo"], irl__steps=0, checkpoint__every=1)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": dtype})})
    with pytest.raises(RunFailed, match=r"(?s)Rounding cannot explain.*does not see the prompt"):
        run_shifted(recipe, tmp_path / "run", by=by)
    assert not saved_checkpoints(tmp_path / "run" / "checkpoints")
    run_shifted(recipe, tmp_path / "near", by=by / 2)  # does end by itself


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_clipped_where_nothing_is_learnt(tmp_path, dtype):
    """GSPO's clip of 3e-4 is far below bf16's rounding: both log-probabilities are the trainer's,
    computed alike, so that at no learning rate every ratio is 1, to the last bit."""
    algorithm = {"type": "gspo", "steps_per_generation": 3}
    recipe = recipe_of(
        rl__algorithm=algorithm, rl__steps=6, rl__lr=1e-30, irl__steps=0, model__dtype=dtype,
        rl__micro_tokens=40, rollout__temperature=0.7,
    )  # fmt: skip
    run(recipe, tmp_path / "run")
    rl = [r for r in told(tmp_path / "run") if r["kind"] == "rl" and r["used"]]
    assert len({r["step"] % 3 for r in rl}) == 3
    assert [(r["clipped"], r["ratio"]) for r in rl] == [(0.0, 1.0)] * len(rl)
    if dtype == "bfloat16":  # the engine's own would not have been
        assert max(r["engine_gap"] for r in rl) > 3e-4


def test_the_correction_is_the_ratio_up_to_its_cap(tmp_path):
    """Tokens four times as likely to the trainer, a cap of 2: every weight, and the gradient, 2."""
    plain, _ = run_shifted(recipe_of(rl__steps=1), tmp_path / "plain", by=0.0)
    for cap, weight, cut in ((2.0, 2.0, 1.0), (8.0, 4.0, 0.0)):
        recipe = recipe_of(rl__steps=1, rollout__correct=cap, rollout__gap_stop=2.0)
        (first,), _ = run_shifted(recipe, tmp_path / f"cap-{cap}", by=np.log(4))
        assert first["engine_weight"] == pytest.approx(weight, rel=1e-5)
        assert first["engine_truncated"] == cut
        assert first["grad_norm"] == pytest.approx(weight * plain[0]["grad_norm"], rel=1e-4)


def test_later_steps_of_a_generation_are_corrected_by_the_policy_that_sampled(tmp_path):
    """The weight is of two programs' views of one policy: that it has moved since is the ratio."""
    grpo = {"type": "grpo", "steps_per_generation": 3}
    recipe = recipe_of(
        rl__algorithm=grpo, rl__steps=3, rl__lr=0.03, irl__steps=0,
        rollout__correct=8.0, rollout__gap_stop=2.0,
    )  # fmt: skip
    rl, _ = run_shifted(recipe, tmp_path / "run", by=np.log(4))
    assert [r["used"] > 0 for r in rl] == [True] * 3
    assert [r["engine_weight"] for r in rl] == pytest.approx([4.0] * 3, rel=1e-4)
    assert [r["engine_gap"] for r in rl] == pytest.approx([np.log(4)] * 3, rel=1e-4)
    assert abs(rl[2]["ratio"] - 1) > 1e-3  # and it has moved


def test_dapo_draws_again_for_groups_that_agree(tmp_path):
    recipe = recipe_of(rl__algorithm={"type": "dapo", "max_resample_times": 3}, irl__steps=0)
    run(recipe, tmp_path / "run")
    steps = [r for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert max(r["groups"] for r in steps) > 4
    assert max(r["groups"] for r in steps) <= 16  # 4 prompts, drawn at most 1 + 3 times
    rows = stored(tmp_path / "run")
    assert len(rows) == 4 * sum(r["groups"] for r in steps)  # the dull ones are stored too
    run(recipe_of(irl__steps=0), tmp_path / "grpo")
    grpo = [r for r in told(tmp_path / "grpo") if r["kind"] == "rl"]
    assert {r["groups"] for r in grpo} == {4}
    # What resampling is for: more of the batch carries a gradient.
    assert np.mean([r["useful"] for r in steps]) > np.mean([r["useful"] for r in grpo])


def test_groups_that_agree_cost_no_backward_pass(tmp_path):
    run(recipe_of(irl__steps=0), tmp_path / "run")
    steps = [r for r in told(tmp_path / "run") if r["kind"] == "rl"]
    assert all(r["used"] == r["useful"] for r in steps)
    assert min(r["used"] for r in steps) < 1


def test_honest_selection_takes_the_best_on_validation(tmp_path):
    # A rate at which the policy breaks: the last weights are not the best.
    recipe = recipe_of(
        rl__lr=0.03, evaluation__select="honest", evaluation__every=2, evaluation__final=True
    )
    this, scores = run(recipe, tmp_path / "run")
    by_step = {step: s.correct_Q.sum() for step, s in this.scores.items()}
    assert list(by_step) == [0, 2, 4, 6]  # what it starts from is scored, too
    del by_step[0]  # but is no checkpoint
    done = told(tmp_path / "run")[-1]
    assert done["kind"] == "done"
    best = max(by_step.values())
    assert done["selected"] == min(step for step, right in by_step.items() if right == best)
    assert done["selected"] != 6
    chosen = weights(tmp_path / "run", done["selected"])
    assert same_weights(chosen, dict(this.policy.model.named_parameters()))
    written = json.loads((tmp_path / "run" / "evals" / "test.json").read_text())
    assert sum(written["per_question"].values()) == scores.correct_Q.sum()
    (record,) = [r for r in told(tmp_path / "run") if r.get("name") == "test"]
    assert record["distinct"] == written["distinct"]
    assert not {"per_question", "solutions"} & set(record)  # a line a question would be too long


def test_the_best_of_the_saved_checkpoints_is_spared_and_selected(tmp_path, monkeypatch):
    # Right of 4 on validation. The best, 0 and 3, are not saved; of those saved, 2 is the best.
    right = {0: 4, 1: 1, 2: 3, 3: 4, 4: 2, 5: 0, 6: 1}

    def faked(this, name, problems, n, step):
        if not name.startswith("validation-"):
            return measure(this, name, problems, n, step)
        rows = [
            {"problem_id": "q", "verdict": kind, "detail": "", "length": 1, "sum_logprob": -1.0}
            for kind in ["correct"] * right[step] + ["wrong"] * (4 - right[step])
        ]
        return count_scores(["q"], 4, rows, None)

    monkeypatch.setattr("sps.lifecycle.measure.measure", faked)
    recipe = recipe_of(
        evaluation={"select": "honest", "every": 1, "n": 4},
        checkpoint={"every": 2, "keep": 1},
        irl__steps=0,
    )
    run(recipe, tmp_path / "run")
    saved = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step-000002", "step-000006"]
    assert told(tmp_path / "run")[-1]["selected"] == 2


def test_paper_selection_takes_the_best_on_the_test_set(tmp_path):
    recipe = recipe_of(rl__lr=0.03, evaluation__select="paper", evaluation__final=True)
    this, scores = run(recipe, tmp_path / "run")
    right = {}
    for step in (2, 4, 6):
        path = tmp_path / "run" / "evals" / f"select-{step:06d}.json"
        right[step] = sum(json.loads(path.read_text())["per_question"].values())
    selected = told(tmp_path / "run")[-1]["selected"]
    assert selected == min(s for s in right if right[s] == max(right.values()))
    assert selected != 6
    assert scores.correct_Q.sum() == right[selected]  # the same samples, drawn again
    chosen = weights(tmp_path / "run", selected)
    assert same_weights(chosen, dict(this.policy.model.named_parameters()))


def test_selection_of_the_last_is_the_default(tmp_path):
    recipe = recipe_of(rl__lr=0.03, evaluation__final=True)
    _, scores = run(recipe, tmp_path / "run")
    assert told(tmp_path / "run")[-1]["selected"] == 6
    assert scores.n == 4
    assert len(scores.ids) == 4


def test_the_run_folder_holds_the_resolved_recipe(tmp_path):
    recipe = recipe_of()
    open_run(recipe, tmp_path / "run")
    settled = recipe.model.model_copy(update={"dtype": "float32"})  # what auto is on a CPU
    written = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert written == recipe.model_copy(update={"model": settled})


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path):
    with pytest.raises(UserError, match=r"model.path: there is no folder"):
        open_run(recipe_of(model__path="./nowhere"), tmp_path / "run")
    open_run(recipe_of(), tmp_path / "run")


def test_a_folder_in_use_is_refused(tmp_path):
    open_run(recipe_of(), tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        open_run(recipe_of(), tmp_path / "run")
    with pytest.raises(UserError, match=r"rl.steps was 6, is 7. Give the old values, or .*--out"):
        open_run(recipe_of(rl__steps=7), tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        open_run(recipe_of(), tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run folder"):
        open_run(recipe_of(), tmp_path / "file")


def test_a_resumed_run_selects_what_the_whole_one_did(tmp_path):
    recipe = recipe_of(
        rl__lr=0.03, evaluation__select="honest", evaluation__every=2, evaluation__final=True
    )
    whole, scores = run(recipe, tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    resumed, again = run(recipe, tmp_path / "run", resume=True)
    assert {s: x.summary() for s, x in resumed.scores.items()} == {
        s: x.summary() for s, x in whole.scores.items()
    }
    assert again.summary() == scores.summary()
    assert told(tmp_path / "run")[-1]["selected"] == told(tmp_path / "whole")[-1]["selected"] != 6


def test_the_embedded_policy_is_made_once_and_named_by_what_made_it(tmp_path):
    first = Path(open_run(recipe_of(), tmp_path / "a").policy.source)
    written = (first / "model.safetensors").stat().st_mtime_ns
    second = Path(open_run(recipe_of(rl__steps=9), tmp_path / "b").policy.source)
    assert second == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    other = recipe_of(model__base={**BASE, "steps": 3})
    assert Path(open_run(other, tmp_path / "c").policy.source) != first


def adapters(folder, step=6):
    from safetensors.torch import load_file

    return load_file(checkpoint_path(folder, step) / "adapter_model.safetensors")


def test_lora_trains_adapters_alone_and_resumes_to_the_same_bits(tmp_path):
    pytest.importorskip("peft")
    recipe = recipe_of(model__lora={"rank": 4, "alpha": 8})
    before = first_weights(recipe, tmp_path)
    run(recipe, tmp_path / "whole")
    stored_names = set(adapters(tmp_path / "whole"))
    # 1 layer of 7 linear maps, two matrices each; nothing else is stored.
    assert len(stored_names) == 14
    assert all("lora_" in name for name in stored_names)
    assert any(bool(v.any()) for n, v in adapters(tmp_path / "whole").items() if "lora_B" in n)
    assert killed_and_resumed(recipe, tmp_path / "run", kill_at("rl", 5)) == "step-000004"
    again = adapters(tmp_path / "run")
    assert all(torch.equal(again[n], v) for n, v in adapters(tmp_path / "whole").items())
    loaded = load_policy(str(checkpoint_path(tmp_path / "whole", 6)))  # as anyone would load it
    own = dict(loaded.model.named_parameters())
    base = {n: p for n, p in before.items() if "lora_" not in n}
    assert len(base) == len(before) - 14
    assert all(torch.equal(own[n], p) for n, p in base.items())


def test_activation_checkpointing_gives_the_same_weights(tmp_path):
    run(recipe_of(), tmp_path / "plain")
    run(recipe_of(model__checkpointing=True), tmp_path / "again")
    plain, again = weights(tmp_path / "plain"), weights(tmp_path / "again")
    for name, value in plain.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-5)


def test_adapters_of_a_run_are_trained_on_by_another_and_never_silently_replaced(tmp_path):
    pytest.importorskip("peft", reason="the extra sps[lora] is not installed")
    lora = {"rank": 4, "alpha": 8}
    run(recipe_of(model__lora=lora, rl__steps=3), tmp_path / "first")
    start = checkpoint_path(tmp_path / "first", 3)
    for other in (None, {"rank": 8, "alpha": 8}):
        with pytest.raises(UserError, match=r"model.lora: \{rank: 4, alpha: 8\}"):
            open_run(recipe_of(model__path=str(start), model__lora=other), tmp_path / "refused")
    recipe = recipe_of(model__path=str(start), model__lora=lora)
    this = open_run(recipe, tmp_path / "look")
    held = adapters(tmp_path / "first", 3)
    own = {n: p for n, p in this.policy.model.named_parameters() if p.requires_grad}
    assert len(own) == len(held) > 0
    assert sorted(p.norm().item() for p in own.values()) == pytest.approx(
        sorted(p.norm().item() for p in held.values())
    )
    run(recipe, tmp_path / "whole")
    assert any(not torch.equal(held[n], p) for n, p in adapters(tmp_path / "whole").items())
    with pytest.raises(Killed):
        run(recipe, tmp_path / "cut", listeners=[kill_at("rl", 5)])
    run(recipe, tmp_path / "cut", resume=True)
    assert same_weights(adapters(tmp_path / "cut"), adapters(tmp_path / "whole"))
