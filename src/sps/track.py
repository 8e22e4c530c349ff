"""The record of a run: one JSON object a line, and whoever listens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LONGEST = 64 * 2**20  # characters of a line
Listener = Callable[[dict[str, Any]], None]


class Track:
    """Writes every record to metrics.jsonl and hands it to the listeners."""

    def __init__(self, path: Path, listeners: list[Listener] | None = None, silent: bool = False):
        self.path, self.listeners, self.silent = path, listeners or [], silent

    def log(self, kind: str, step: int, **fields: Any) -> None:
        """`kind` is rl, irl, meter, eval, warning, checkpoint or done."""
        if self.silent:  # not the rank that writes
            return
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **fields}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        for listener in self.listeners:
            listener(record)

    def forget_after(self, step: int) -> None:
        """Drop the records of steps that a resumed run will take again."""
        again = {"done", "test"}  # the end of a run that had ended is written anew
        kept = [
            r
            for r in read_records(self.path)
            if r["step"] <= step and not {r["kind"], r.get("name")} & again
        ]
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
        draft.rename(self.path)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole record; a line cut short by a crash, or that is none, is left out."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        # What is longer comes in pieces, which are no records.
        lines = iter(lambda: file.readline(_LONGEST), "")
        return [record for line in lines if (record := parse_record(line)) is not None]


def parse_record(line: str) -> dict[str, Any] | None:
    """A line's record: an object with a kind and a step; None for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    step = record.get("step")
    return record if type(step) is int and 0 <= step < 10**9 else None
