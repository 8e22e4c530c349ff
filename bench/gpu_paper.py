"""The paper's recipes for real: RL steps, an IRL phase and AIME 2024 on one GPU.

python -m bench.gpu_paper MODEL DATA OUT [NAME=STEPS ...] [--set KEY=VALUE ...]

MODEL is a Hugging Face folder of 1.5 billion weights, DATA a folder with math_train.jsonl and
aime_2024.jsonl, OUT where runs go. NAME is sps, dapo or gspo. Model, data, number of steps, and
nothing else is set; a run that is there goes on, or is only read. Writes OUT/gpu_paper.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.sides import machine
from sps.run.track import read_records

ROOT = Path(__file__).parents[1]
STEPS = {"sps": 12, "gspo": 8, "dapo": 6}


def main(arguments: list[str]) -> None:
    """Run what is asked for, one after another, and write the figures after each."""
    at = arguments.index("--set") if "--set" in arguments else len(arguments)
    model, data, out, *names = arguments[:at]
    steps = dict(name.split("=") for name in names) or STEPS
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpu_paper.json"
    kept = json.loads(path.read_text())["runs"] if path.exists() else {}
    found: dict[str, Any] = {"machine": machine(), "model": Path(model).name, "runs": kept}
    for name, count in steps.items():
        if kept.get(name, {}).get("code") == 0:
            continue
        run = folder / name
        recipe = ROOT / "recipes" / "paper" / f"qwen2.5-math-1.5b_3k_{name}.yaml"
        settings = {
            "model.path": model,
            "task.data": f"{data}/math_train.jsonl",
            "task.data_dir": data,
            "task.benchmarks": "[aime24]",
            "rl.steps": count,
        }
        more = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        more += arguments[at:]
        said = _sps("doctor", str(recipe), *more).stdout
        began = time.perf_counter()
        done = _sps("train", str(recipe), "--out", str(run), "--resume", *more)
        print(done.stdout[-2000:], done.stderr[-2000:], flush=True)
        seconds = time.perf_counter() - began
        found["runs"][name] = read(run) | {"seconds": seconds, "code": done.returncode}
        found["runs"][name]["doctor"] = said.splitlines()
        path.write_text(json.dumps(found, indent=1))
        if done.returncode == 0:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)  # 20 GiB a run
        for row in found["runs"][name]["rl"]:
            print(name, row, flush=True)


def _sps(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sps", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


RL = (
    "step", "reward", "useful", "groups", "length", "engine_gap", "engine_gap_rms", "clipped",
    "ratio", "kl_ref", "entropy", "grad_norm", "peak_gib", "seconds/generate", "seconds/verify",
    "seconds/update", "verdict/truncated", "verdict/unparsed", "out_of_memory", "rows_at_once",
)  # fmt: skip


def read(run: Path) -> dict[str, Any]:
    """What the record holds of the things that the results page tells."""
    records = read_records(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []

    def of(kind: str) -> list[dict[str, Any]]:
        return [r for r in records if r["kind"] == kind]

    return {
        "rl": [{key: r[key] for key in RL if key in r} for r in of("rl")],
        "irl": of("irl"),
        "meter": of("meter"),
        "eval": of("eval"),
        "checkpoint": of("checkpoint"),
        "warnings": [r["text"] for r in of("warning")],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
