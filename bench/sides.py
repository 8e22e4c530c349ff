"""Time two or more ways to do the same work, turn by turn, and report ratios with their spread."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
# GRPOConfig's: the same loss as ours, and nothing beside the steps.
TRL = {
    "beta": 0.0, "loss_type": "grpo", "gradient_checkpointing": False, "report_to": [],
    "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
}  # fmt: skip


def alternate(sides: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Units of work a second of each side, one measurement a turn, after one turn of warm-up.

    A side does its work once and returns how many units that was.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, work in sides.items():
            wait()
            began = time.perf_counter()
            units = work()
            wait()
            if turn:
                rates[name].append(units / (time.perf_counter() - began))
    return rates


def row(label: str, rates: dict[str, list[float]], unit: str) -> dict[str, Any]:
    """Medians, and the ratio of the first side to each other one, turn by turn."""
    first, *others = rates
    ratios = {
        other: sorted(a / b for a, b in zip(rates[first], rates[other], strict=True))
        for other in others
    }
    return {
        "what": label,
        "unit": unit,
        "median": {name: statistics.median(values) for name, values in rates.items()},
        "ratio": {
            other: {"median": statistics.median(r), "low": r[0], "high": r[-1]}
            for other, r in ratios.items()
        },
        "repeats": len(rates[first]),
    }


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the table and write the JSON."""
    first = next(iter(rows[0]["median"]))
    for r in rows:
        medians = "  ".join(f"{side} {value:,.4g}" for side, value in r["median"].items())
        print(f"{r['what']:<34} {medians} {r['unit']}")
        for other, ratio in r["ratio"].items():
            spread = f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
            print(
                f"{'':<34} {first} is {ratio['median']:.2f}x {other} {spread}, {r['repeats']} turns"
            )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**machine(), "rows": rows}, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What ran it."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": date.today().isoformat(),
        "gpu": gpu,
        "cpu_threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
    }


def wait() -> None:
    """Until the GPU, if there is one, has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
