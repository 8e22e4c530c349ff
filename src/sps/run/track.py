"""The record of a run: one JSON object a line, and whoever listens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sps.run.disk import naming, write_whole
from sps.run.folder import TEMPERED

_LONGEST = 64 * 2**20  # characters of a line
Listener = Callable[[dict[str, Any]], None]


class Track:
    """Writes every record to metrics.jsonl and hands it to the listeners."""

    def __init__(self, path: Path, listeners: list[Listener] | None = None, silent: bool = False):
        self.path, self.listeners, self.silent = path, listeners or [], silent

    def log(self, kind: str, step: int, **fields: Any) -> None:
        """`kind` is base, rl, irl, meter, eval, warning, checkpoint, stopped or done."""
        if self.silent:  # not the rank that writes
            return
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **fields}
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        for listener in self.listeners:
            listener(record)

    def forget_after(self, step: int) -> int:
        """Drop the records of steps that a resumed run will take again. Returns how many lines
        could not be read, but for the last, which a crash may cut short."""
        records, torn = _parse(self.path)
        kept = [r for r in records if r["step"] <= step and not _of_an_end(r)]
        write_whole(self.path, "".join(json.dumps(r) + "\n" for r in kept))
        return torn


def _of_an_end(record: dict[str, Any]) -> bool:
    """Written anew by a run that is resumed: it had ended, or was selecting, or was stopped."""
    name = str(record.get("name", ""))
    return (
        record["kind"] in ("done", "stopped")
        or name == "test"
        or name.startswith(("select-", "share-", "mixed-"))
        or (name.startswith(TEMPERED) and record["step"] > 0)  # those of the base are kept
    )


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole record; a line cut short by a crash, or that is none, is left out."""
    return _parse(path)[0]


def _parse(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole records, and how many lines before the last are none."""
    if not path.is_file():
        return [], 0
    records, torn = [], 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        # What is longer comes in pieces, which are no records.
        for line in iter(lambda: file.readline(_LONGEST), ""):
            if (record := parse_record(line)) is not None:
                records.append(record)
            else:
                torn += line.endswith("\n")
    return records, torn


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
