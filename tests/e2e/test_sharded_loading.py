"""The first of two ranks alone reads a model; both then hold what one process loads."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from made_gguf import write_gguf
from test_ranks import SETTINGS

from sps.policy.checkpoint import save_checkpoint
from sps.policy.embedded import SHIPPED
from sps.policy.load import load_policy, use_adapters

BASE = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
# Each rank leaves what it held before the weights were divided, and the whole of what it got.
RANK = """
import sys, torch
from sps.build import make_policy
from sps.config.load import load_recipe
from sps.policy import deepspeed, sharding
from sps.policy.sharding import local
from sps.ranks import join_ranks, materialise, whole

def held():
    return sum(w.numel() for w in model.parameters() if not w.is_meta and local(w) is w)

def noted(*given):
    materialise(*given)
    undivided.append(held())

sharding.materialise = deepspeed.materialise = noted
folder, *recipes = sys.argv[1:]
ranks, left = join_ranks("cpu"), []
for recipe in recipes:
    policy = make_policy(load_recipe(recipe), ranks=ranks)
    model, undivided = policy.model, []
    read = held()
    sharding.shard(policy.scorer, ranks)
    left.append({
        "read": read,
        "undivided": max(undivided),
        "kept": sum(local(weight).numel() for weight in model.parameters()),
        "weights": {n: whole(w).detach().clone() for n, w in model.named_parameters()},
        "buffers": dict(model.named_buffers()),
        "eos": policy.eos_ids,
        "config": (model.config.to_dict(), model.config._attn_implementation),
        "generation": model.generation_config.to_dict(),
    })
torch.save(left, f"{folder}/rank-{ranks.rank}.pt")
ranks.leave()
"""


def left_by_two(folder: Path, recipes: dict[str, dict], sharded: str) -> list[list[dict]]:
    """What two ranks leave, each for every recipe's `model`."""
    (folder / "rank.py").write_text(RANK)
    paths = [folder / f"{name}.yaml" for name in recipes]
    for path, model in zip(paths, recipes.values(), strict=True):
        path.write_text(yaml.safe_dump({"model": model}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    more = SETTINGS[sharded] | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, str(folder / "rank.py"), str(folder), *map(str, paths)],
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in (0, 1)]


def make_models(folder: Path) -> dict[str, dict]:
    """GGUF files with and without an output layer of their own, and adapters; no two are alike."""
    write_gguf(folder / "untied.gguf")
    write_gguf(folder / "tied.gguf", without="output", seed=1)
    # Not of the GGUF files beside it: a rank that read it would end texts elsewhere.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    policy = load_policy(str(BASE))
    use_adapters(policy.model, rank=2, alpha=4, targets=["q_proj"])
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:  # which begins as zeros
            torch.nn.init.normal_(weight)
    save_checkpoint(folder / "adapters", policy, {"step": 1}, {})
    return {
        "untied": {"path": str(folder / "untied.gguf")},
        "tied": {"path": str(folder), "gguf": "tied.gguf"},
        "adapters": {"path": str(folder / "adapters"), "lora": {"rank": 2, "alpha": 4}},
        "folder": {"path": str(BASE)},
    }


@pytest.mark.parametrize(
    ("sharded", "names"),
    [("FSDP2", ["untied", "tied", "adapters"]), ("DeepSpeed", ["untied", "tied", "folder"])],
    ids=["FSDP2", "DeepSpeed"],
)
def test_the_first_rank_alone_reads_and_all_have_its_model(tmp_path, sharded, names):
    if "adapters" in names:
        pytest.importorskip("peft", reason="the extra sps[lora] is not installed")
    ready = importlib.util.find_spec("deepspeed") and shutil.which("c++")
    if sharded == "DeepSpeed" and not ready:
        pytest.skip("needs DeepSpeed (pip install 'sps-rl[deepspeed]') and a compiler")
    recipes = {name: model for name, model in make_models(tmp_path).items() if name in names}
    ranks = left_by_two(tmp_path, recipes, sharded)
    for number, model in enumerate(recipes.values()):
        alone = load_policy(model["path"], model.get("gguf"))
        weights = dict(alone.model.named_parameters())
        total = sum(weight.numel() for weight in weights.values())
        first, second = (left[number] for left in ranks)
        assert (first["read"], second["read"]) == (total, 0)
        assert 0 < second["undivided"] < total  # a layer; the GGUF files have but one
        for got in (first, second):
            assert 0.4 * total < got["kept"] < 0.6 * total
            assert got["weights"].keys() == weights.keys()
            assert all(torch.equal(got["weights"][name], weights[name]) for name in weights)
            assert got["buffers"].keys() == dict(alone.model.named_buffers()).keys()
            for name, buffer in alone.model.named_buffers():
                assert torch.equal(got["buffers"][name], buffer)
            assert got["eos"] == alone.eos_ids
            config = alone.model.config
            assert got["config"] == (config.to_dict(), config._attn_implementation)
            assert got["generation"] == alone.model.generation_config.to_dict()
