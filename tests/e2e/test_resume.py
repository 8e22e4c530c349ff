"""Runs that are killed and resumed end as those that never were; which checkpoints they leave."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from small_runs import (
    Killed,
    kill_at,
    killed_and_resumed,
    learnt,
    recipe_of,
    run,
    same_weights,
    stored,
    told,
    weights,
)

from sps.build import open_run
from sps.commands.jobs import Job, run_job, saved_steps
from sps.config.load import load_recipe
from sps.policy.checkpoint import saved_checkpoints
from sps.run.folder import checkpoint_path
from sps.store.evals import EvalStore

pytestmark = pytest.mark.usefixtures("one_cache")


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
def whole(one_cache, tmp_path_factory):
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
        # Eight problems, four a step: what was drawn before the checkpoint is recalled after it.
        (
            "memory",
            {
                "irl__memory": {"weight": 1.0, "per_problem": 2},
                "rollout__temperature": 1.3,
                "task__train": 8,
            },
        ),
        ("memory_in_phases", {"irl__memory": {"when": "phase"}, "irl__keep": 3}),
        (
            "memory_of_base",
            {"irl__memory": {"weight": 0.5, "source": "base", "divergence": "js"}},
        ),
        # The same, and which of them are drawn goes by what was drawn before.
        (
            "difficulty",
            {
                "rl__sampling": {"by": "difficulty", "floor": 0.2},
                "rl__algorithm": {"type": "dapo", "max_resample_times": 1},
                "irl__memory": {"weight": 1.0},
                "task__train": 8,
            },
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


def test_samples_of_mixes_go_by_the_step_in_their_name_and_not_by_their_share(tmp_path):
    recipe = recipe_of(irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    names = ["mix-0.3-000004", "mix-0.3-000006", "mix-1e-05-000006-0.6", "test-000006-1"]
    for name in names:
        EvalStore(tmp_path / "run" / "evals" / name)
    open_run(recipe, tmp_path / "run", resume=True)
    assert [path.name for path in (tmp_path / "run" / "evals").iterdir()] == names[:1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kept", [True, False], ids=["kept_optimizer", "fresh_optimizer"])
def test_a_resumed_run_does_not_hold_the_optimizer_file_of_its_checkpoint(kept, tmp_path):
    """Of a mapped file that is deleted the disk gets no space back while the run goes on."""
    recipe = recipe_of(irl__optimizer_state="kept" if kept else "fresh")
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("rl", 5)])
    this = open_run(recipe, tmp_path / "run", resume=True)
    assert this.start == 4
    assert this.optimizer.state
    assert bool(this.irl_optimizer and this.irl_optimizer.state) == kept
    gc.collect()  # what reads a checkpoint leaves cycles
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert [line for line in maps if "trainer.pt" in line and str(tmp_path) in line] == []


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
