"""A run's record and scores, short enough to be kept: python -m bench.slim RUN OUT.

What figures are drawn from, numbers to four digits: recipe, metrics and scores; no seconds, no
samples, no weights. `sps report OUT` reads it like any run.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

_DROPPED = ("seconds/", "time", "details", "solved", "useful", "groups", "length", "tokens", "loss",
            "clipped", "ratio", "used", "engine", "memory/recalled", "memory/problems",
            "memory/tokens")  # fmt: skip


def short(value: Any) -> Any:
    """A JSON value with numbers of four digits, and without what no figure shows."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items() if not k.startswith(_DROPPED)}
    if isinstance(value, list):
        return [short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def slim(run: Path, out: Path) -> None:
    """Copy what is kept."""
    (out / "evals").mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "recipe.yaml", out)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    written = [json.dumps(short(json.loads(line)), separators=(",", ":")) for line in lines]
    (out / "metrics.jsonl").write_text("\n".join(written) + "\n")
    for path in sorted((run / "evals").glob("*.json")):
        told = json.dumps(short(json.loads(path.read_text())), separators=(",", ":"))
        (out / "evals" / path.name).write_text(told + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    slim(given.run, given.out)
