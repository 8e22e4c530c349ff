"""Where the time went, by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

# How a `seconds/*` field of a record is called in the table: stage by (kind of record, field).
STAGES = {
    ("rl", "generate"): "generate",
    ("rl", "verify"): "verify",
    ("rl", "update"): "RL update",
    ("irl", "select"): "select (L2TE)",
    ("irl", "update"): "IRL update",
    ("eval", "evaluate"): "evaluate",
    ("checkpoint", "save"): "checkpoint",
}


def cost_by_stage(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Seconds of each stage: in total, per RL step, and as a share of the run's time.

    What no timer covers is 'not timed': evaluation and checkpoints, unless they say their seconds.
    """
    total: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.items():
            if name.startswith("seconds/") and isinstance(value, int | float):
                kind, field = record["kind"], name.removeprefix("seconds/")
                total[STAGES.get((kind, field), f"{kind} {field}")] += value
    steps = len({r["step"] for r in records if r["kind"] == "rl"})
    wall = _wall(records)
    timed = sum(total.values())
    if wall > timed > 0:
        total["not timed"] = wall - timed
    whole = sum(total.values())
    stages = [
        {
            "stage": stage,
            "seconds": seconds,
            "per_step": seconds / steps if steps else None,
            "share": seconds / whole if whole else None,
        }
        for stage, seconds in sorted(total.items(), key=lambda item: stage_place(item[0]))
    ]
    irl = total.get("IRL update", 0.0) + total.get("select (L2TE)", 0.0)
    rl = sum(total.get(s, 0.0) for s in ("generate", "verify", "RL update"))
    return {
        "stages": stages,
        "steps": steps,
        "wall_seconds": wall,
        "irl_over_rl": irl / rl if rl else None,
        "tokens_per_second": _speed(records),
    }


def stage_place(stage: str) -> int:
    """The order of the stages in a step; what was not timed comes last."""
    order = [*STAGES.values(), stage, "not timed"]
    return len(order) if stage == "not timed" else order.index(stage)


def _wall(records: Sequence[dict[str, Any]]) -> float:
    """Seconds from the start of the first step to the run's end, or to the last record where it has
    none; pauses included. Evaluations may be put on record long after the end."""
    ends = [i for i, record in enumerate(records) if record["kind"] == "done"]
    records = records[: ends[-1] + 1] if ends else records
    times = [r["time"] for r in records if isinstance(r.get("time"), int | float)]
    if not times:
        return 0.0
    first = records[0]
    began = sum(v for k, v in first.items() if k.startswith("seconds/") and isinstance(v, float))
    return max(times) - min(times) + began


def _speed(records: Sequence[dict[str, Any]]) -> float | None:
    drawn = [r for r in records if r["kind"] == "rl" and "tokens" in r]
    seconds = sum(r.get("seconds/generate", 0.0) for r in drawn)
    return sum(r["tokens"] for r in drawn) / seconds if seconds else None
