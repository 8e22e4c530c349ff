"""Judged samples of evaluations, in Parquet parts; what is stored is never sampled again."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sps.errors import UserError
from sps.ranks import ALONE, Ranks
from sps.run.disk import naming, put

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
_PART = re.compile(r"part-\d{5,9}\.parquet", re.ASCII)
_LOG = logging.getLogger("sps")
_WHOLE = "samples.parquet"  # all samples, once an evaluation is done
_ROWS, _SECONDS = 8192, 2.0  # a part is written when it has so many rows or is so old


class EvalStore:
    """The samples of one evaluation, appended part by part; each (problem, sample) counts once."""

    def __init__(self, folder: Path, ranks: Ranks = ALONE):
        self.folder, self.ranks = folder, ranks
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        self._since = time.monotonic()
        numbers = [int(path.stem.partition("-")[2]) for path in self._parts()]
        for sentence in strays(folder):
            _LOG.warning(sentence)
        # Ranks number their parts without asking each other: every size-th number is one's own.
        self._number = (max(numbers, default=-1) // ranks.size + 1) * ranks.size + ranks.rank

    def read(self) -> list[dict[str, Any]]:
        """Every stored sample, each once."""
        whole = [self.folder / _WHOLE] if (self.folder / _WHOLE).exists() else []
        # A kill while parts are being joined leaves rows in both.
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for path in whole + self._parts():
            for row in _rows(path):
                found.setdefault((row["problem_id"], row["sample"]), row)
        return list(found.values())

    def append(self, row: dict[str, Any]) -> None:
        """Take one judged sample; written in parts."""
        self.rows.append(row)
        if len(self.rows) >= _ROWS or time.monotonic() - self._since > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self.rows:
            self._write(self.rows, f"part-{self._number:05d}.parquet")
            self._number += self.ranks.size
        self.rows, self._since = [], time.monotonic()

    def replace(self, rows: list[dict[str, Any]]) -> None:
        """Put these rows in the place of all that is stored, as one file in a fixed order."""
        whole = sorted(rows, key=lambda r: (r["problem_id"], r["sample"]))
        self._write(whole, _WHOLE, replaces=True)
        for part in self._parts():
            part.unlink()
        self.rows, self._number = [], 0

    def _parts(self) -> list[Path]:
        return parts(self.folder)

    def _write(self, rows: list[dict[str, Any]], name: str, replaces: bool = False) -> None:
        """On the disk where others go for it; the rest a checkpoint syncs."""
        path = self.folder / name
        draft = path.with_suffix(".draft")
        table = pa.Table.from_pylist(rows, SCHEMA)
        with naming(path):
            pq.write_table(table, draft, compression="zstd", write_page_checksum=True)
            put(draft, path) if replaces else draft.rename(path)


def parts(folder: Path) -> list[Path]:
    """The parts of an evaluation, in the order they were written."""
    named = (p for p in folder.glob("part-*.parquet") if _PART.fullmatch(p.name) and p.is_file())
    return sorted(named, key=lambda path: int(path.stem.partition("-")[2]))


def strays(folder: Path) -> list[str]:
    """A sentence on the Parquet files that are none of the evaluation's."""
    own = {path.name for path in parts(folder)} | {_WHOLE}
    other = sorted(p.name for p in folder.glob("*.parquet") if p.name not in own)
    return [f"{folder}: {', '.join(other[:3])}: no samples of the evaluation; ignored"] * bool(
        other
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        # Not with schema=SCHEMA: columns that the file lacks would be filled with nothing.
        table = pq.read_table(path, columns=SCHEMA.names, page_checksum_verification=True)
        return table.cast(SCHEMA).to_pylist()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        said = (str(error).strip().splitlines() or [repr(error)])[0][:200]
        raise UserError(
            f"{path}: the samples cannot be read ({said}); put the file back from a copy, or "
            "remove it, and they are drawn again"
        ) from None
