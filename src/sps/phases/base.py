"""Rollouts of the first policy, drawn once before the first step, for memory (irl.memory.source).

They are step 0 of the rollout store: there whole or not at all, whenever the run was killed.
"""

from __future__ import annotations

import time
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from sps.phases.memory import COLUMNS
from sps.phases.rl import draw
from sps.phases.run import Run
from sps.run.track import read_records
from sps.types import Metrics


def remember_base(run: Run) -> None:
    """Fill the memory of a run that has one of the base, and put on record what was drawn."""
    settings = run.recipe.irl.memory
    if run.memory is None or settings.source != "base":
        return
    began = time.perf_counter()
    if run.ranks.broadcast(lambda: run.store.missing([0])):
        with run.stop.window(run.ranks.size == 1):
            groups, _ = draw(run, 0, run.train)  # the seed of step 0 is no other draw's
        if run.ranks.main:
            run.store.append(0, [rollout for group in groups for rollout in group])
    seconds = time.perf_counter() - began
    table, counts = run.ranks.broadcast(lambda: _right(run, settings.solved))
    run.memory.read(table)
    if run.ranks.broadcast(lambda: _on_record(run)):
        return
    counts |= {"remembered": len(run.memory), "seconds/generate": seconds}
    run.track.log("base", 0, **counts)
    if not len(run.memory):
        text = (
            f"the base solves none of {counts['problems']} training problems often enough "
            f"(irl.memory.solved: {settings.solved:g}), so memory is empty and does nothing. Lower "
            "irl.memory.solved, raise rollout.n, or set irl.memory.source: run"
        )
        run.track.log("warning", 0, text=text)


def _right(run: Run, solved: float) -> tuple[pa.Table, Metrics]:
    """The base's right rollouts of the problems that it solves often enough, and its counts."""
    table = run.store.read(0, 0, [*COLUMNS, "logprobs", "verdict", "length"])
    is_right = pc.field("verdict") == "correct"
    drawn = Counter[str](table["problem_id"].to_pylist())
    right = Counter[str](table.filter(is_right)["problem_id"].to_pylist())
    often = [name for name in right if right[name] >= solved * drawn[name] - 1e-9]
    found = table.filter(is_right & pc.field("problem_id").isin(pa.array(often, pa.string())))
    tokens = sum(table["length"].to_pylist())
    counts: Metrics = {"problems": len(drawn), "solved": len(often), "rollouts": len(table)}
    counts |= {"right": right.total(), "tokens": tokens}
    return found, counts


def _on_record(run: Run) -> bool:
    return any(record["kind"] == "base" for record in read_records(run.track.path))
