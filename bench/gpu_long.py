"""The engine at the lengths of reasoning, on one GPU: is it right, how near to its floor, how fast.

python -m bench.gpu_long check
python -m bench.gpu_long attention:7b products:7b step:7b        parts of a decode step
python -m bench.gpu_long spec:MODEL --questions data/gsm8k_train.jsonl     guesses in the tail
python -m bench.gpu_long 7b:16x8 7b:24x32:256 --sides ours,whole,vllm --turns 3
python -m bench.gpu_long eval:1.5b:12x128:512 --turns 1           judged while they are drawn

7b:24x32:256 is 24 prompts, 32 samples each, 256 rows at once. Lengths are drawn once (geometric,
mean 900, at most 3072) and forced on all sides, log-probabilities on, prompts of 200 tokens, random
weights in bf16. Sides: `ours`; `cublas`, with cuBLAS for every product; `whole`, one program a row
and key/value head and powers of two of rows, as it once was; `vllm` where it is installed.
Every figure is written at once to OUT/gpu_long_NAME.json, and rollouts and steps that are there
already are not measured again. --seconds limits each part, 7b:16x8@60 this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench import gpu_decode as decode
from bench import gpu_tail
from bench.long_floor import MOST, PROMPT, SHAPES, lengths_of, work_of
from bench.sides import RESULTS, machine, wait
from sps.rollout.cuda import attention, decoder, engine, products, room, tail
from sps.rollout.cuda.rows import Rows, Wanted
from sps.types import Request, Sampling

# What parts of it put other things in the place of; the next part finds them as they were.
_PATCHED: list[tuple[Any, str]] = [
    (engine, "Rows"), (engine, "Tail"), (engine, "bucket"), (room, "_SHARE"), (tail, "ROWS"),
    (tail, "DEPTH"), (products, "tiles_for"), (attention, "plan_for"), (decoder.Decoder, "kind"),
]  # fmt: skip


def config_of(shape: str) -> Any:
    """transformers' configuration."""
    settings = dict(SHAPES[shape])
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def build(shape: str) -> Any:
    """Random weights in bf16, held once: the engine moves in."""
    torch.manual_seed(0)
    with torch.device(decode.DEVICE):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16).eval()
    model.requires_grad_(False).compute_dtype = torch.bfloat16
    return model


class Results:
    """A JSON file that grows; what it has is not measured again."""

    def __init__(self, folder: Path, name: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"gpu_long_{name.replace(':', '_').replace('/', '_')}.json"
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = json.loads(self.path.read_text())["rows"]

    def has(self, what: str) -> bool:
        """Whether it was measured."""
        return any(row["what"] == what for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Print and write."""
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        self.rows.append(row)
        self.path.write_text(json.dumps({**machine(), "rows": self.rows}, indent=1) + "\n")

    def show_fastest(self, most: int = 5) -> None:
        """The fastest plans for each number of rows, which `what` begins with."""
        for rows in dict.fromkeys(row["what"].split()[0] for row in self.rows):
            of = [row for row in self.rows if row["what"].split()[0] == rows]
            for row in sorted(of, key=lambda row: row["us"])[:most]:
                print(f"{row['what']}: {row['us']:.1f} us, {row['share']:.0%} of the bandwidth")


def prompts_of(groups: int) -> list[list[int]]:
    """Random, all of one length."""
    rng = np.random.default_rng(1)
    return [rng.integers(5, 40000, PROMPT).tolist() for _ in range(groups)]


def forced(length_PG: np.ndarray) -> type[Rows]:
    """Rows that end at given lengths."""

    class Forced(Rows):
        def add(self, take: list[Wanted], requests: list[Request]) -> None:
            at = self.count
            super().add(take, requests)
            ends = [int(length_PG[w.request, w.sample]) for w in take]
            limit = self.room.state.limit
            limit[at : at + len(take)] = torch.tensor(ends, dtype=limit.dtype).to(limit.device)

    return Forced


def powers_of_two(count: int, most: int) -> int:
    """Buckets as they once were."""
    return min(most, max(8, 1 << (count - 1).bit_length()))


WAYS = ("ours", "cublas", "whole")  # sides of ours


@contextmanager
def way(name: str) -> Iterator[None]:
    """The engine as this side has it."""
    usual = attention.plan_for, engine.bucket
    if name == "whole":
        attention.plan_for = lambda *_: attention.Plan(1, 64, 2, 2, 4)
        engine.bucket = powers_of_two
    products.tiles_for = products.few_rows if name == "ours" else products.no_tiles
    try:
        yield
    finally:
        attention.plan_for, engine.bucket = usual
        products.tiles_for = products.few_rows


def native_side(model: Any, name: str, work: tuple[int, int, int]) -> Callable:
    """Answers of these lengths, by the engine."""
    groups, n, at_once = work
    ours = engine.CudaEngine(model, [-1], 0, max_rows=at_once)
    requests = [Request(i, tuple(p), tuple(range(n))) for i, p in enumerate(prompts_of(groups))]

    def run(length_PG: np.ndarray, seed: int) -> Iterator[tuple[int, int, int]]:
        engine.Rows = forced(length_PG)
        with way(name):
            for c in ours.generate(requests, Sampling(n, MOST, seed=seed)):
                yield c.index, c.sample, len(c.ids)

    run.close = ours.close  # type: ignore[attr-defined]
    return run


def vllm_side(llm: Any, work: tuple[int, int, int]) -> Callable:
    """Answers of the same lengths, by vLLM; prompts are shared by its prefix cache."""
    from vllm import SamplingParams

    groups, n, _ = work
    texts = prompts_of(groups)

    def run(length_PG: np.ndarray, seed: int) -> Iterator[tuple[int, int, int]]:
        inputs = [{"prompt_token_ids": texts[p]} for p in range(groups) for _ in range(n)]
        how = [
            SamplingParams(max_tokens=int(size), min_tokens=int(size), ignore_eos=True, logprobs=0,
                           detokenize=False, seed=None)
            for size in length_PG.flatten()
        ]  # fmt: skip
        done = llm.generate(inputs, how, use_tqdm=False)
        for at, answer in enumerate(done):  # one sample each, in order
            yield at // n, at % n, len(answer.outputs[0].token_ids)

    return run


def make_vllm(shape: str, at_once: int, share: float) -> Any:
    """vLLM with random weights of the shape, or None where it is not installed."""
    try:
        from vllm import LLM
    except ImportError:
        print("vLLM is not installed: its side is left out", flush=True)
        return None
    folder = tempfile.mkdtemp()
    config = config_of(shape)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    return LLM(
        model=folder, skip_tokenizer_init=True, dtype="bfloat16", load_format="dummy",
        gpu_memory_utilization=share, max_num_seqs=max(at_once, 256),
        max_model_len=PROMPT + MOST + 8, attention_config={"backend": "FLASH_ATTN"},
    )  # fmt: skip


def sides_of(shape: str, work: tuple[int, int, int], options: Any) -> dict[str, Callable]:
    """Those asked for."""
    llm = make_vllm(shape, work[2], options.vllm_share) if "vllm" in options.sides else None
    model = build(shape)
    sides = {name: native_side(model, name, work) for name in options.sides if name in WAYS}
    return sides if llm is None else sides | {"vllm": vllm_side(llm, work)}


def rollouts(asked: str, options: argparse.Namespace, results: Results, until: float) -> None:
    """All sides in turns; the first turn, of short rows, captures the graphs."""
    shape, work = work_of(asked)
    length_PG, sides = lengths_of(*work[:2]), sides_of(shape, work, options)
    short_PG = np.maximum(1, length_PG // 24)
    for turn in range(options.turns + 1):
        for name, run in sides.items():
            # A new process captures its graphs again.
            if (turn and results.has(f"{name} {turn}")) or time.monotonic() > until:
                continue
            wait()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            drawn = sum(size for *_, size in run(short_PG if turn == 0 else length_PG, turn))
            wait()
            spent = time.perf_counter() - began
            assert drawn == (short_PG if turn == 0 else length_PG).sum(), drawn
            peak = torch.cuda.max_memory_allocated() / 2**30
            found = {"side": name, "turn": turn, "seconds": spent, "tokens": int(drawn)}
            found |= {"what": f"{name} {turn}", "rate": drawn / spent, "peak_gib": peak}
            if turn or not results.has(f"{name} {turn}"):
                results.add(found)
            if options.close and name in WAYS:
                run.close()  # type: ignore[attr-defined]
    for name in sides:
        turns = [r["seconds"] for r in results.rows if r.get("side") == name and r["turn"]]
        if turns:
            print(f"{asked} {name}: median {statistics.median(turns):.2f} s of {len(turns)}")


def evaluations(asked: str, options: argparse.Namespace, results: Results, until: float) -> None:
    """The same answers, each judged while others are drawn."""
    from bench import gpu_eval  # needs math-verify

    shape, work = work_of(asked.partition(":")[2])
    length_PG, sides = lengths_of(*work[:2]), sides_of(shape, work, options)
    for run in sides.values():
        for _ in run(np.maximum(1, length_PG // 24), 0):  # captures the graphs
            pass
    for turn in range(1, options.turns + 1):
        for name, run in sides.items():
            if results.has(f"{name} {turn}") or time.monotonic() > until:
                continue
            print(f"{name}, turn {turn}", flush=True)
            found = gpu_eval.evaluation(run, length_PG, turn)
            assert found["tokens"] == length_PG.sum(), found["tokens"]
            results.add({"what": f"{name} {turn}", "side": name, "turn": turn, **found})


def parts(asked: str, options: argparse.Namespace, results: Results, until: float) -> None:
    """Checks, and parts of a step."""
    kind, _, shape = asked.partition(":")
    if kind == "check":
        results.rows.clear()
        steps: list[Iterable] = [
            decode.check_attention(config_of("7b")), decode.check_engine(),
            decode.check_products(), decode.check_attention(config_of("1.5b")),
        ]  # fmt: skip
        for step in steps:
            for found in step:
                results.add(found)
        wrong = [row["what"] for row in results.rows if not row["ok"]]
        print("ALL RIGHT" if not wrong else f"WRONG: {wrong}", flush=True)
    elif kind == "attention":
        for count, own in ((64, 1000), (8, 2800), (32, 1800), (128, 400), (16, 2400)):
            for found in decode.sweep_attention(config_of(shape), count, [own] * count, until):
                results.add(found)
        results.show_fastest()
    elif kind == "products":
        for count in (8, 64, 128):
            for found in decode.sweep_products(config_of(shape), count, until):
                results.add(found)
    elif kind == "spec":
        gpu_tail.measure(shape, options, results.add)
    else:
        steps_of(shape, options, results, until)


def steps_of(shape: str, options: argparse.Namespace, results: Results, until: float) -> None:
    """One step, as the engine is and as it was."""
    ours = engine.CudaEngine(build(shape), [-1], 0, max_rows=256)
    for count, own in ((8, 2800), (64, 1000), (32, 1800), (128, 500), (16, 2400)):
        for name in WAYS:
            what = f"{name} {count} x {own}"
            if results.has(what) or time.monotonic() > until:
                continue
            with way(name):
                shown = 14 if count in (8, 64) else 0
                results.add({"what": what, **decode.time_step(ours, count, own, shown)})


def main() -> None:
    """Everything asked for, one after another; a part that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="+")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["ours", "vllm"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--vllm-share", type=float, default=0.45)
    parser.add_argument("--close", action="store_true", help="give the cache back after each turn")
    parser.add_argument("--questions", type=Path, help="of spec:MODEL, a .jsonl with `problem`")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tail", type=lambda t: tuple(map(int, t.split("x"))), default=(32, 3))
    parser.add_argument("--float32", action="store_true", help="log-probabilities must be the same")
    options = parser.parse_args()
    failed = False
    for wanted in options.work:
        asked, _, seconds = wanted.partition("@")
        print(f"== {asked}", flush=True)
        until = time.monotonic() + float(seconds or options.seconds)
        kind = asked.partition(":")[0]
        before = [getattr(*place) for place in _PATCHED]
        try:
            run = rollouts if kind in SHAPES else evaluations if kind == "eval" else parts
            run(asked, options, Results(options.out, asked), until)
        except Exception:
            traceback.print_exc()
            failed = True
        finally:
            for place, value in zip(_PATCHED, before, strict=True):
                setattr(*place, value)
        torch.cuda.empty_cache()
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
