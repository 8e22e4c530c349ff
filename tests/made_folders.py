"""Small run folders, written with the project's own stores and no model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from sps.algo.diversity import diversity
from sps.algo.passk import mean_interval, paired, pass_at_k
from sps.run.track import Track
from sps.store.evals import EvalStore
from sps.store.rollouts import RolloutStore
from sps.types import Rollout, Verdict

SCRIPT = "<script>window.pwned=1</script>"
IMAGE = "<img src=x onerror='window.pwned=2'>"
WORDS = ["5", "+", "8", "=", "13", ".", SCRIPT, IMAGE, "</script><b>", "&amp;"]


def make_run(
    folder: Path,
    steps: int = 6,
    prompts: int = 2,
    n: int = 4,
    name: str = "made",
    hostile: bool = False,
) -> Path:
    """A finished run: `steps` RL steps in two phases, an IRL phase after each, three
    evaluations."""
    folder.mkdir(parents=True)
    recipe = {
        "name": name,
        "seed": 0,
        "model": {"path": None},
        "task": {"type": "countdown"},
        "rollout": {"prompts": prompts, "n": n},
        "rl": {"algorithm": {"type": "grpo"}, "steps": steps},
        "irl": {"steps": 4, "keep": 3, "lr": 3e-4},
        "evaluation": {"temperature": 1.0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    store, track = RolloutStore(folder / "rollouts"), Track(folder / "metrics.jsonl")
    half = steps // 2
    for step in range(1, steps + 1):
        rows = [_rollout(step, g, s, hostile) for g in range(prompts) for s in range(n)]
        store.append(step, rows)
        track.log("rl", step, phase=1 + (step > half), **_metrics(step, rows))
        if step in (half, steps):
            first = 1 if step == half else half + 1
            store.close_phase(first, step, kept={(step, 0, 0), (step, 0, 1)})
            track.log("irl", step, phase=1, kept=2, **{"seconds/select": 0.25})
            track.log("irl", step, phase=1, loss=0.5, entropy=0.4, **{"seconds/update": 0.5})
            track.log("meter", step, of="rl", kl=0.02, weights_changed=1.0, to_greedy=0.01)
            track.log("meter", step, of="irl", kl=0.001, weights_changed=1.0, to_greedy=-0.005)
            write_evaluation(folder, f"validation-{step:06d}", step, 8, track, seed=step)
    track.log("warning", steps, text=f"the irl phase did nothing {SCRIPT if hostile else ''}")
    write_tokenizer(folder / "checkpoints" / f"step-{steps:06d}")
    write_evaluation(folder, "test", steps, 16, track, seed=99)
    track.log("done", steps, selected=steps)
    return folder


def _rollout(step: int, group: int, sample: int, hostile: bool) -> Rollout:
    rng = np.random.default_rng([step, group, sample])
    length = int(rng.integers(4, 9))
    ids = rng.integers(0, len(WORDS) if hostile else 6, length).astype(np.int32)
    logprobs = -rng.exponential(0.5, length).astype(np.float32)
    right = bool(rng.random() < 0.3)
    detail = IMAGE if hostile else "wrong_target"
    verdict = Verdict(
        "correct" if right else "wrong", float(right), detail, SCRIPT if hostile else "13"
    )
    problem = f"q{group}{SCRIPT if hostile else ''}"
    prompt = np.array([0, 2], dtype=np.int32)
    return Rollout(problem, prompt, ids, logprobs, float(right), verdict, step, step, group, sample)


def _metrics(step: int, rows: list[Rollout]) -> dict:
    tokens = sum(len(r.ids) for r in rows)
    right = float(np.mean([r.reward for r in rows]))
    return {
        "reward": right,
        "tokens": tokens,
        "logprob": sum(r.sum_logprob for r in rows) / tokens,
        "entropy": 1.0 / step,
        "grad_norm": 0.1,
        "verdict/correct": right,
        "verdict/wrong": 1 - right,
        "seconds/generate": 1.5,
        "seconds/verify": 0.5,
        "seconds/update": 1.0,
    }


def write_evaluation(folder: Path, name: str, step: int, n: int, track: Track, seed: int) -> None:
    """Samples in Parquet and the scores beside them."""
    rng = np.random.default_rng(seed)
    questions = [f"t{i}" for i in range(12)]
    chance = np.linspace(0, 0.9, len(questions))
    store, correct = EvalStore(folder / "evals" / name), {}
    for q, p in zip(questions, chance, strict=True):
        right = rng.random(n) < p
        correct[q] = int(right.sum())
        for sample in range(n):
            kind = "correct" if right[sample] else "wrong"
            row = {"problem_id": q, "sample": sample, "text": f"5 + 8 = {sample % 3}", "length": 5}
            row |= {"finished": True, "sum_logprob": -1.0, "verdict": kind, "detail": kind}
            store.append(row | {"answer": "13"})
    store.flush()
    summary = summary_of(correct, n) | {"greedy_logprob": -3.0 + step / 100}
    (folder / "evals" / f"{name}.json").write_text(json.dumps(summary))
    shown = {k: v for k, v in summary.items() if k not in ("per_question", "solutions")}
    track.log("eval", step, name=name, **shown)


def summary_of(correct: dict[str, int], n: int) -> dict:
    """What an evaluation writes."""
    counts = np.array(list(correct.values()))
    ks = [2**i for i in range(n.bit_length()) if 2**i <= n]
    told = {q: [c for c in ((c + 1) // 2, c // 2) if c] for q, c in correct.items()}  # two each
    return {
        "n": n,
        "questions": len(correct),
        "pass_at_k": {str(k): list(mean_interval(pass_at_k(counts, n, k))) for k in ks},
        "kinds": {},
        "details": {},
        "mean_logprob": -0.5,
        "mean_length": 5.0,
        "per_question": correct,
        **diversity([[*told.values()]]),
        "solutions": told,
    }


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of one token a word, as a checkpoint has it."""
    folder.mkdir(parents=True)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def make_comparison(folder: Path, seeds: int = 2, hostile: bool = False) -> Path:
    """base, grpo, sps, and grpo at an earlier checkpoint, with results.json as `compare` writes
    it."""
    n, questions = 16, [f"t{i}" for i in range(40)]
    rng = np.random.default_rng(3)
    easy = rng.beta(0.4, 3, len(questions))
    chances = {
        "base": easy,
        "grpo": np.where(easy > 0.1, np.minimum(2.5 * easy, 0.95), 0.0),
        "sps": np.minimum(1.5 * easy + 0.02, 0.95),
        "grpo@3": np.where(easy > 0.05, np.minimum(1.4 * easy, 0.95), 0.0),
    }
    counts = {m: [rng.binomial(n, p) for _ in range(seeds)] for m, p in chances.items()}
    for method in ("grpo", "sps"):
        for seed in range(seeds):
            run = make_run(folder / method / f"seed-{seed}", name=method, hostile=hostile)
            shown = [method, "grpo@3"] if method == "grpo" else [method]
            found = {
                m: summary_of(dict(zip(questions, counts[m][seed].tolist(), strict=True)), n)
                for m in shown
            }
            (run / "result.json").write_text(json.dumps(found))
    base = folder / "base" / "eval"
    base.mkdir(parents=True)
    found = summary_of(dict(zip(questions, counts["base"][0].tolist(), strict=True)), n)
    (base / "result.json").write_text(json.dumps({"base": found}))

    def stack(method: str, k: int) -> np.ndarray:
        return np.stack([pass_at_k(c, n, k) for c in counts[method]])

    ks = [1, 2, 4, 8, 16]
    methods = {
        m: {"pass_at_k": {str(k): list(mean_interval(stack(m, k))) for k in ks}, "seeds": seeds}
        for m in chances
    }
    pairs = []
    for a, b in [("base", "grpo"), ("base", "sps"), ("base", "grpo@3"), ("grpo", "sps")]:
        for k in (1, 16):
            found = paired(stack(a, k), stack(b, k))
            row = {"a": a, "b": b, "k": k, "delta": list(found.delta)}
            pairs.append(row | {"verdict": found.verdict, "p": found.p})
    results = {"methods": methods, "paired": pairs, "wall_seconds": 60.0}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


DAMAGE = {
    "no folder at all": lambda f: shutil.rmtree(f),
    "empty": lambda f: [shutil.rmtree(f), f.mkdir()],
    "recipe is binary": lambda f: (f / "recipe.yaml").write_bytes(b"\xff\xfe\x00"),
    "recipe is a list": lambda f: (f / "recipe.yaml").write_text("- 1"),
    "metrics cut short": lambda f: (f / "metrics.jsonl").write_bytes(
        (f / "metrics.jsonl").read_bytes()[:-20]
    ),
    "metrics are other JSON": lambda f: (f / "metrics.jsonl").write_text('3\n{"a": 1}\nnull\n'),
    "metrics are deep and wrong": lambda f: (f / "metrics.jsonl").write_text(
        '{"kind": "rl", "step": 1, "reward": "x", "seconds/update": [1]}\n'
        '{"kind": "rl", "step": true}\n{"kind": "eval", "step": 1}\n'
        '{"kind": "warning", "step": 1}\n' + "[" * 100_000 + "\n" + "1" * 5000
    ),
    "recipe is a bomb": lambda f: (f / "recipe.yaml").write_text(
        "a: &a [1]\n" + "".join(f"b{i}: &a [*a, *a, *a, *a]\n" for i in range(40))
    ),
    "scores deep": lambda f: (f / "evals" / "test.json").write_text("[" * 100_000),
    "scores wrong": lambda f: (f / "evals" / "test.json").write_text(
        '{"n": 4, "per_question": {"a": 1}, "kinds": [1], "mean_length": "x", "greedy_logprob": {}}'
    ),
    "stray files": lambda f: [
        (f / place).write_bytes(b"?")
        for place in ("rollouts/a.parquet", "evals/test/part-a.parquet", "evals/a.json", "evals/b")
    ],
    "rollouts cut short": lambda f: next(f.glob("rollouts/*.parquet")).write_bytes(b"PAR1 oh"),
    "rollouts gone": lambda f: shutil.rmtree(f / "rollouts"),
    "scores damaged": lambda f: (f / "evals" / "test.json").write_text('{"n": 4'),
    "scores without questions": lambda f: (f / "evals" / "test.json").write_text('{"n": 4}'),
    "solutions wrong": lambda f: (f / "evals" / "test.json").write_text(
        json.dumps(json.loads((f / "evals" / "test.json").read_text()) | {"solutions": {"t1": 7}})
    ),
    "evaluation not finished": lambda f: (f / "evals" / "test.json").unlink(),
    "tokenizer damaged": lambda f: next(f.glob("checkpoints/*/tokenizer.json")).write_text("{"),
    "checkpoints gone": lambda f: shutil.rmtree(f / "checkpoints"),
}
