"""Host memory of a rank while a model is loaded and sharded with FSDP2, over gloo on this CPU.

python -m bench.sharded_loading [--ranks 4] [--layers 24]

A random Llama is saved once. Then every rank reads it whole ('read'), as it would without help from
another, or the first rank reads it and sends the others their shards ('sent'), as `sps train` does.
The peak of a process is what it took beyond its imports (ru_maxrss), in MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.sides import RESULTS


def peak() -> float:
    """Of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(folder: str, mode: str) -> None:
    """One rank: load, shard, and say how much it took."""
    from sps.policy.load import load_policy
    from sps.policy.sharding import shard
    from sps.ranks import join_ranks

    ranks = join_ranks("cpu")
    before = peak()
    policy = load_policy(folder, empty=mode == "sent" and not ranks.main)
    shard(policy.scorer, ranks)
    took = ranks.gather([round(peak() - before)])
    total = sum(p.numel() for p in policy.model.parameters())
    if ranks.main:
        print("FOUND", json.dumps({"mode": mode, "weights": total, "mib": took}), flush=True)
    ranks.leave()


def main() -> None:
    """Both modes, printed and written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--child", nargs=2)
    told = parser.parse_args()
    if told.child:
        return child(*told.child)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), told.layers)
        found = [measure(folder, mode, told.ranks) for mode in ("read", "sent")]
    for line in found:
        print(line)
    (RESULTS / "sharded_loading.json").write_text(json.dumps(found, indent=1))


def make(folder: Path, layers: int) -> None:
    """A random Llama of 1024 wide layers, with the tokenizer of the embedded policy."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sps.policy.embedded import make_tokenizer

    make_tokenizer([str(i) for i in range(100)]).save_pretrained(folder)
    shape: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192}
    config = LlamaConfig(num_hidden_layers=layers, num_attention_heads=16, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)


def measure(folder: str, mode: str, ranks: int) -> dict[str, Any]:
    """Ranks in processes of their own, as accelerate's launcher starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={ranks}", "-m", "bench.sharded_loading", "--child", folder, mode]
    more = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    env = os.environ | more | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if not lines:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return json.loads(lines[0].removeprefix("FOUND "))


if __name__ == "__main__":
    main()
