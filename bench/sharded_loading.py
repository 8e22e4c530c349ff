"""Host memory of a rank while a model is loaded and sharded, over gloo on this CPU.

python -m bench.sharded_loading [--ranks 4] [--layers 24] [--lazy]

A random Llama is written once, as safetensors and as GGUF (8 bits a weight). Then every rank reads
it whole ('read'), as it would without help from another, or the first rank reads it and sends the
others their shards ('sent'), as `sps train` does; with FSDP2, and with DeepSpeed where it is
installed. The peak of a process is what it took beyond its imports (ru_maxrss), in MiB; pages of
the file that it has mapped count. C's allocator is told to give back at once what is freed; with
`--lazy` it is not, and glibc then keeps the holes that freed layers leave between shards.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.sides import RESULTS

SHARDED = {
    "FSDP2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    "DeepSpeed": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}
CASES = (("safetensors", "FSDP2"), ("GGUF", "FSDP2"), ("safetensors", "DeepSpeed"))
EAGER = {"MALLOC_MMAP_THRESHOLD_": str(2**18)}
WIDE, INNER, VOCAB, HEADS = 1024, 4096, 8192, 16  # of the model


def peak() -> float:
    """Of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(path: str, mode: str) -> None:
    """One rank: load, shard, and say how much it took."""
    from sps.policy.load import load_policy
    from sps.policy.sharding import shard
    from sps.ranks import join_ranks

    ranks = join_ranks("cpu")
    if ranks.deepspeed:
        import deepspeed  # noqa: F401 (an import as the others)
    before = peak()
    policy = load_policy(path, empty=mode == "sent" and not ranks.main)
    total = sum(p.numel() for p in policy.model.parameters())
    policy.scorer = shard(policy.scorer, ranks)
    took = ranks.gather([round(peak() - before)])
    if ranks.main:
        print("FOUND", json.dumps({"mode": mode, "weights": total, "mib": took}), flush=True)
    ranks.leave()


def main() -> None:
    """All cases in both modes, printed and written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--child", nargs=2)
    told = parser.parse_args()
    if told.child:
        return child(*told.child)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), told.layers)
        make_gguf(Path(folder) / "model.gguf", told.layers)
        for kind, sharded in CASES:
            if sharded == "DeepSpeed" and importlib.util.find_spec("deepspeed") is None:
                print("DeepSpeed is not installed: pip install -e '.[deepspeed]'")
                continue
            path = str(Path(folder) / "model.gguf") if kind == "GGUF" else folder
            for mode in ("read", "sent"):
                settings = SHARDED[sharded] | ({} if told.lazy else EAGER)
                measured = measure(path, mode, told.ranks, settings)
                found.append({"file": kind, "sharded": sharded, **measured})
                print(found[-1], flush=True)
    name = "sharded_loading_lazy.json" if told.lazy else "sharded_loading.json"
    (RESULTS / name).write_text(json.dumps(found, indent=1))


def make(folder: Path, layers: int) -> None:
    """A random Llama of 1024 wide layers, with the tokenizer of the embedded policy."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sps.policy.embedded import make_tokenizer

    make_tokenizer([str(i) for i in range(100)]).save_pretrained(folder)
    shape: dict[str, Any] = {"hidden_size": WIDE, "intermediate_size": INNER, "vocab_size": VOCAB}
    config = LlamaConfig(num_hidden_layers=layers, num_attention_heads=HEADS, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)


def make_gguf(path: Path, layers: int) -> None:
    """One of the same shape in 8 bits, with a tokenizer of four tokens."""
    import gguf

    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(layers), out.add_context_length(2048), out.add_embedding_length(WIDE)
    out.add_feed_forward_length(INNER), out.add_head_count(HEADS), out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5), out.add_rope_freq_base(1e4), out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("gpt2"), out.add_tokenizer_pre("smollm")
    out.add_token_list(["<|endoftext|>", "a", "b", "ab"]), out.add_token_types([1] * 4)
    out.add_token_merges(["a b"]), out.add_bos_token_id(0), out.add_eos_token_id(0)
    squares = {f"attn_{x}": (WIDE, WIDE) for x in ("q", "k", "v", "output")}
    wides = {"ffn_gate": (INNER, WIDE), "ffn_up": (INNER, WIDE), "ffn_down": (WIDE, INNER)}
    norms = {"attn_norm": (WIDE,), "ffn_norm": (WIDE,)}
    shapes = {"token_embd": (VOCAB, WIDE), "output": (VOCAB, WIDE), "output_norm": (WIDE,)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{n}": s for n, s in (squares | wides | norms).items()}
    draw, bits = np.random.default_rng(0), gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        if len(shape) == 1:  # norms are not rounded
            out.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
        else:
            values = 0.02 * draw.standard_normal(shape, dtype=np.float32)
            out.add_tensor(f"{name}.weight", gguf.quantize(values, bits), raw_dtype=bits)
    out.write_header_to_file(), out.write_kv_data_to_file(), out.write_tensors_to_file()
    out.close()


def measure(path: str, mode: str, ranks: int, settings: dict[str, str]) -> dict[str, Any]:
    """Ranks in processes of their own, as accelerate's launcher starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={ranks}", "-m", "bench.sharded_loading", "--child", path, mode]
    env = os.environ | settings | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if not lines:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return json.loads(lines[0].removeprefix("FOUND "))


if __name__ == "__main__":
    main()
