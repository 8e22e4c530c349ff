"""Two processes over gloo do what one does: RL, L2TE, IRL, checkpoint, resume, evaluation."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from sps.build import open_run
from sps.config.load import load_recipe
from sps.loop import train
from sps.policy.embedded import SHIPPED
from sps.run.track import read_records
from sps.store.rollouts import RolloutStore

ROOT = Path(__file__).parents[2]
# Seven problems for two ranks: shares are uneven, and so are their micro-batches.
SMALL = {
    "threads": 1,
    "rl": {"steps": 4, "micro_tokens": 300},
    "irl": {"every": 2, "steps": 2, "batch": 24},
    "task": {"train": 48, "validation": 5, "test": 5},
    "rollout": {"prompts": 7, "n": 4},
    "evaluation": {"every": 2, "n": 4, "validation_n": 4},
    "checkpoint": {"every": 2},
}
# Every collective that a plain run does not need: a sharded reference, likelihoods under the
# reinforced policy, an optimizer that lives on, old log-probabilities, problems by their
# difficulty, all of them seen after the first draw, a mix at the end; and DAPO's drawing again.
HARD = {
    "task": {"train": 20},
    "rl": {
        "algorithm": {"type": "grpo", "beta": 0.05, "steps_per_generation": 2},
        "sampling": {"by": "difficulty"},
    },
    "irl": {
        "selector": {"under": "policy"},
        "optimizer_state": "kept",
        "memory": {"weight": 1.0},
    },
    "checkpoint": {"mix": 0.3},
}
ADAPTERS = {
    "model": {"lora": {"rank": 4, "alpha": 8}},
    "rl": {"algorithm": {"type": "grpo", "beta": 0.05}, "lr": 1e-3},
    "irl": {"optimizer_state": "kept", "lr": 1e-3},
    "checkpoint": {"mix": 0.3},
}
# At this rate Pass@k falls, so that mixes are tried.
DAPO = {
    "rl": {
        "algorithm": {"type": "dapo", "max_resample_times": 2, "steps_per_generation": 2},
        "lr": 3e-3,
    },
    "checkpoint": {"mix": "auto"},
    "irl": {"memory": {"weight": 0.5, "source": "base", "divergence": "js"}},
}


def write_recipe(folder: Path, name: str, *trees: dict) -> Path:
    """The demo's SPS recipe with changes, as a file."""
    tree: dict = {"extends": str(ROOT / "recipes/demo/countdown_sps_phases.yaml"), "name": name}
    for more in (SMALL, *trees):
        for key, value in more.items():
            tree[key] = tree.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


# What accelerate's launcher sets for the files in launch/.
SETTINGS = {
    "": {},
    "FSDP2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    "DeepSpeed": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}


def launch(*arguments: str, sharded: str = "", **how) -> subprocess.Popen:
    """`sps` on two ranks, as accelerate's launcher starts it."""
    settings = SETTINGS[sharded]
    if sharded == "DeepSpeed" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: pip install 'sps-rl[deepspeed]'")
    if sharded == "DeepSpeed" and shutil.which("c++") is None:
        pytest.skip("DeepSpeed compiles what it needs on a CPU, and there is no compiler")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.Popen(
        [*command, "-m", "sps", *arguments],
        env=os.environ | settings | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **how,
    )


def two_ranks(*arguments: str, sharded: str = "") -> str:
    """Its output, after it has ended well."""
    process = launch(*arguments, sharded=sharded)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    kind = f"weights sharded ({sharded})" if sharded else "weights on every rank"
    assert f"2 ranks, {kind}" in out
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs of one process, in this one."""
    folder = tmp_path_factory.mktemp("alone")
    runs = {}

    def run(name: str, *trees: dict) -> tuple[Path, Path]:
        if name not in runs:
            path = write_recipe(folder, name, *trees)
            train(open_run(load_recipe(path), folder / name))
            runs[name] = path, folder / name
        return runs[name]

    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)


def weights(run: Path, step: int | str) -> dict[str, torch.Tensor]:
    name = step if isinstance(step, str) else f"step-{step:06d}"
    (path,) = (run / "checkpoints" / name).glob("*model.safetensors")  # or adapters
    return load_file(path)


def kept(run: Path) -> dict:
    """Every rollout of the run, and whether L2TE kept it."""
    rows = RolloutStore(run / "rollouts").read().to_pylist()
    return {(r["step"], r["group"], r["sample"], *r["ids"]): r["kept"] for r in rows}


def assert_same_run(one: Path, two: Path) -> None:
    """Same rollouts kept, same record to 1e-4, same weights to a thousandth of the way moved."""
    assert kept(one) == kept(two)
    assert sum(kept(one).values()) > 20
    records, others = read_records(one / "metrics.jsonl"), read_records(two / "metrics.jsonl")
    assert [(r["kind"], r["step"]) for r in records] == [(r["kind"], r["step"]) for r in others]
    compared = 0
    for a, b in zip(records, others, strict=True):
        names = ("loss", "grad_norm", "entropy", "reward", "kl", "relative_update", "kl_ref")
        names += ("memory_gain", "memory_logprob", "remembered", "tokens")
        for name in set(names) & set(a):
            # A loss is a difference of large terms: an absolute error is what it can be held to.
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6), (a["kind"], name)
            compared += 1
        assert a.get("pass_at_k") == b.get("pass_at_k")
    assert compared > 30
    first, a, b = weights(one, 2), weights(one, 4), weights(two, 4)
    assert a.keys() == b.keys()
    apart = sum(float((a[k] - b[k]).square().sum()) for k in a) ** 0.5
    moved = sum(float((a[k] - first[k]).square().sum()) for k in a) ** 0.5
    assert moved > 0.01
    assert apart < 1e-3 * moved
    if (one / "checkpoints" / "mixed").exists():
        a, b = weights(one, "mixed"), weights(two, "mixed")
        assert sum(float((a[k] - b[k]).square().sum()) for k in a) ** 0.5 < 1e-3 * moved


@pytest.mark.parametrize(
    ("name", "changes", "sharded"),
    [
        ("plain", {}, "FSDP2"),
        ("hard", HARD, "FSDP2"),
        ("hard", HARD, ""),
        ("dapo", DAPO, ""),
        ("hard", HARD, "DeepSpeed"),
    ],
    ids=["FSDP2", "FSDP2-hard", "DDP-hard", "DDP-dapo", "DeepSpeed-hard"],
)
def test_two_ranks_are_one_process(alone, tmp_path, name, changes, sharded):
    recipe, one = alone(name, changes)
    two_ranks("train", str(recipe), "--out", str(tmp_path / "two"), sharded=sharded)
    assert_same_run(one, tmp_path / "two")


@pytest.mark.parametrize("sharded", ["FSDP2", "DeepSpeed"])
def test_ranks_resume_each_others_runs(alone, tmp_path, sharded):
    """A run of one process that was cut after step 2 ends on two sharded ranks, as if never cut."""
    recipe, one = alone("hard", HARD)
    two = tmp_path / "two"
    shutil.copytree(one, two)
    shutil.rmtree(two / "checkpoints" / "step-000004")
    out = two_ranks("train", str(recipe), "--out", str(two), "--resume", sharded=sharded)
    assert "resumed after step 2" in out
    assert_same_run(one, two)
    # And back: the sharded ranks' last checkpoint is one that a single process can go on from.
    states = [torch.load(run / "checkpoints/step-000004/trainer.pt") for run in (one, two)]
    for name in ("optimizer", "irl_optimizer"):
        a, b = (state[name] for state in states)
        assert a.keys() == b.keys()
        assert a
        for weight in a:
            assert a[weight]["step"] == b[weight]["step"]
            torch.testing.assert_close(
                a[weight]["exp_avg"], b[weight]["exp_avg"], rtol=1e-3, atol=1e-6
            )


def test_sharded_ranks_make_lost_validations_again_and_go_on(alone, tmp_path):
    recipe, one = alone("hard", HARD)
    two, lost = tmp_path / "two", ["validation-000000", "validation-000002"]
    shutil.copytree(one, two)
    shutil.rmtree(two / "checkpoints" / "step-000004")
    for name in lost:
        (two / "evals" / f"{name}.json").unlink()
        shutil.rmtree(two / "evals" / name)
    two_ranks("train", str(recipe), "--out", str(two), "--resume", sharded="FSDP2")
    for name in [*lost, "validation-000004"]:
        a, b = (json.loads((run / "evals" / f"{name}.json").read_text()) for run in (one, two))
        assert a["per_question"] == b["per_question"]
    a, b = weights(one, 4), weights(two, 4)
    assert all(torch.allclose(a[key], b[key], atol=1e-5) for key in a)


def test_sharded_ranks_go_on_with_adapters(alone, tmp_path):
    """Of a run of one process; the first rank alone reads the model and the adapters."""
    pytest.importorskip("peft", reason="the extra sps[lora] is not installed")
    recipe, one = alone("adapters", ADAPTERS)
    two = tmp_path / "two"
    shutil.copytree(one, two)
    shutil.rmtree(two / "checkpoints" / "step-000004")
    out = two_ranks("train", str(recipe), "--out", str(two), "--resume", sharded="FSDP2")
    assert "resumed after step 2" in out
    assert_same_run(one, two)
    assert all("lora_" in name for name in weights(two, 4))


def saved(folder, step):
    """Whether the record has it, which comes after the checkpoint itself."""
    records = read_records(folder / "metrics.jsonl")
    return any(r["kind"] == "checkpoint" and r["step"] == step for r in records)


def test_a_dead_rank_ends_the_job_and_the_rest_is_kept(alone, tmp_path):
    recipe, one = alone("plain")
    two = tmp_path / "two"
    process = launch("train", str(recipe), "--out", str(two), start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not saved(two, 2) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        assert saved(two, 2)
        os.kill(_rank_pid(process.pid, 1), signal.SIGKILL)
        out, _ = process.communicate(timeout=120)  # not a hang
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "rank      : 1" in out
    assert "SIGKILL" in out
    two_ranks("train", str(recipe), "--out", str(two), "--resume")
    assert_same_run(one, two)


def test_two_ranks_evaluate_as_one_and_go_on_from_what_is_stored(tmp_path):
    base = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
    given = ["eval", str(base), "--bench", "countdown", "--template", "plain", "--limit", "9"]
    given += ["--max-new-tokens", "20", "--temperature", "1", "--out"]
    for n in ("2", "5"):  # the second time three more samples of each are drawn
        process = launch(*given, str(tmp_path / "two"), "--samples", n)  # --n is the launcher's
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert out.count("written to") == 1
    subprocess.run(
        [sys.executable, "-m", "sps", *given, str(tmp_path / "one"), "--n", "5"], check=True
    )
    one, two = (json.loads((tmp_path / x / "results.json").read_text()) for x in ("one", "two"))
    assert one["benchmarks"] == two["benchmarks"]
    files = [tmp_path / x / "countdown" / "samples.parquet" for x in ("one", "two")]
    texts = [pq.read_table(f, columns=["problem_id", "sample", "text"]).to_pylist() for f in files]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 45


def test_bad_input_is_said_once(alone):
    recipe, one = alone("plain")
    process = launch("train", str(recipe), "--out", str(one))
    out, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out.count("already holds a run") == 1
    assert json.loads((one / "evals" / "test.json").read_text())


def _rank_pid(launcher: int, rank: int) -> int:
    """The process that the launcher started as this rank."""
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            parent = int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = place.joinpath("environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in words:
            return int(place.name)
    raise AssertionError("no such rank")
