"""Judged samples of evaluations, in Parquet parts; what is stored is never sampled again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("sample", pa.int32()),
        ("text", pa.string()),
        ("length", pa.int32()),
        ("finished", pa.bool_()),
        ("sum_logprob", pa.float32()),
        ("verdict", pa.string()),
        ("detail", pa.string()),
        ("answer", pa.string()),
    ]
)
_ROWS, _SECONDS = 8192, 5.0  # a part is written when it has so many rows or is so old


class EvalStore:
    """The samples of one evaluation, appended part by part."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        self._since = time.monotonic()
        self._number = len(list(folder.glob("part-*.parquet")))

    def read(self) -> list[dict[str, Any]]:
        """Every stored sample."""
        parts = sorted(self.folder.glob("part-*.parquet"))
        return pa.concat_tables([pq.read_table(p) for p in parts]).to_pylist() if parts else []

    def append(self, row: dict[str, Any]) -> None:
        """Take one judged sample; written in parts."""
        self.rows.append(row)
        if len(self.rows) >= _ROWS or time.monotonic() - self._since > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self.rows:
            path = self.folder / f"part-{self._number:05d}.parquet"
            draft = path.with_suffix(".draft")
            pq.write_table(pa.Table.from_pylist(self.rows, SCHEMA), draft, compression="zstd")
            draft.rename(path)
            self._number += 1
        self.rows, self._since = [], time.monotonic()
