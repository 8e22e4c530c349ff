"""FSDP2 on a GPU: one rank, as large as a single card allows, does what plain training does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from sps.run.track import read_records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RECIPE = {
    "name": "sharded",
    "model": {
        "device": "cuda",
        "dtype": "bfloat16",
        "compile": False,
        "base": {"steps": 300, "hidden": 64, "heads": 2, "ff": 128, "layers": 2, "lr": 1e-2},
    },
    "task": {"numbers": 2, "high": 6, "max_value": 36, "train": 24, "validation": 4, "test": 4},
    "rollout": {"prompts": 8, "n": 8},
    "rl": {"steps": 3, "lr": 1e-3, "algorithm": {"type": "grpo", "beta": 0.01}},
    "irl": {"steps": 2, "every": 3, "batch": 16},
    "evaluation": {"n": 4, "validation_n": 4, "every": 0},
}


def run(recipe: Path, out: Path, **settings: str) -> list[dict]:
    """The record of a run in a process of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    command = [sys.executable, *(launcher if settings else []), "-m", "sps", "train"]
    done = subprocess.run(
        [*command, str(recipe), "--out", str(out)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("weights sharded" in done.stdout) == bool(settings)
    return read_records(out / "metrics.jsonl")


def test_sharded_training_on_a_gpu_is_plain_training(tmp_path, monkeypatch):
    monkeypatch.setenv("SPS_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    plain = run(recipe, tmp_path / "plain")
    settings = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    sharded = run(recipe, tmp_path / "sharded", **settings)
    assert [r["kind"] for r in plain] == [r["kind"] for r in sharded]
    first, same = plain[0], sharded[0]
    assert first["reward"] == pytest.approx(same["reward"], abs=0.1)  # bf16 may flip a token
    assert first["entropy"] == pytest.approx(same["entropy"], rel=0.05)
    for a, b in zip(plain, sharded, strict=True):
        if a["kind"] == "meter":
            assert b["weights_changed"] > 0.5
            assert a["relative_update"] == pytest.approx(b["relative_update"], rel=0.3)
