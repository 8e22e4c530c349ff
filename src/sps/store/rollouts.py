"""Every rollout of a run, in Parquet.

    rollouts/step-000001.parquet          one step, written as soon as it was judged
    rollouts/phase-000001-000050.parquet  an RL phase, ordered by likelihood, with what L2TE kept

At the end of a phase its step files are merged into one; a reader never sees a rollout twice. A
file's name says which steps it holds, so a reader opens those it needs and no others: the cost of
a phase does not grow with the run. Row groups are small and ordered by likelihood, so the unlikely
ones are read without the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sps.errors import UserError
from sps.run.disk import naming, put
from sps.types import Rollout

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),
        ("sample", pa.int32()),
        ("problem_id", pa.string()),
        ("policy_version", pa.int32()),
        ("prompt_ids", pa.large_list(pa.int32())),
        ("ids", pa.large_list(pa.int32())),
        ("logprobs", pa.large_list(pa.float32())),
        ("mean_logprob", pa.float32()),
        ("sum_logprob", pa.float32()),
        ("length", pa.int32()),
        ("finished", pa.bool_()),
        ("reward", pa.float32()),
        ("verdict", pa.string()),
        ("detail", pa.string()),
        ("answer", pa.string()),
        ("kept", pa.bool_()),
    ]
)
_ROW_GROUP = 1024
_NAME = re.compile(r"(?:step-(\d{6,9})|phase-(\d{6,9})-(\d{6,9}))\.parquet", re.ASCII)
_MAGIC = b"PAR1"  # how a Parquet file begins and ends
_LOG = logging.getLogger("sps")
_LIGHT = ["step", "group", "sample", "reward", "mean_logprob", "sum_logprob"]


@dataclass(frozen=True)
class File:
    """A file of the store, and what its name says."""

    path: Path
    first: int  # step
    last: int
    merged: bool  # of a phase, not of one step


class RolloutStore:
    """One run's rollouts."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Once, here: nothing looks at them again until somebody needs those very steps.
        for sentence in (*strays(folder), *damaged(folder)):
            _LOG.warning(sentence)

    def append(self, step: int, rollouts: Iterable[Rollout]) -> None:
        """Write one step; it is there whole or not at all."""
        self._write(self.folder / f"step-{step:06d}.parquet", _table(list(rollouts)))

    def light(self, first: int, last: int) -> pa.Table:
        """What selection needs of the steps first .. last: no tokens."""
        return self.read(first, last, columns=_LIGHT)

    def read(
        self,
        first: int = 0,
        last: int = 10**9,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Rollouts of some steps and columns, and those alone of which `where` is true."""
        keep = (pc.field("step") >= first) & (pc.field("step") <= last)
        if where is not None:
            keep = keep & where
        needed = [f for f in listing(self.folder) if f.first <= last and first <= f.last]
        schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(c) for c in columns])
        tables = [_read(file, schema, keep) for file in needed]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def right(self, last: int, columns: list[str]) -> pa.Table:
        """Some columns of the rollouts that were judged right, up to a step."""
        table = self.read(0, last, [*columns, "verdict"], pc.field("verdict") == "correct")
        return table.drop_columns("verdict")

    def missing(self, steps: Iterable[int]) -> list[int]:
        """Those of some steps that no file is there for."""
        files = listing(self.folder)
        return [s for s in steps if not any(file.first <= s <= file.last for file in files)]

    def close_phase(self, first: int, last: int, kept: set[tuple[int, int, int]]) -> None:
        """Merge the steps of a phase, marking the (step, group, sample) that the IRL phase kept."""
        table = self.read(first, last)
        if not len(table):
            return
        keys = zip(*(table[c].to_pylist() for c in ("step", "group", "sample")), strict=True)
        flags = pa.array([key in kept for key in keys])
        table = table.set_column(SCHEMA.get_field_index("kept"), "kept", flags)
        merged = self.folder / f"phase-{first:06d}-{last:06d}.parquet"
        self._write(merged, table.sort_by("mean_logprob"), replaces=True)
        for file in _named(self.folder):
            if file.path != merged and first <= file.first <= file.last <= last:
                file.path.unlink()

    def forget_after(self, step: int) -> None:
        """Drop what a run that is resumed at `step` will draw again."""
        for file in _named(self.folder):
            if file.first > step:
                file.path.unlink()
            elif file.last > step:  # a phase that was closed after the checkpoint: cut it back
                cut = self.folder / f"phase-{file.first:06d}-{step:06d}.parquet"
                self._write(cut, self.read(file.first, step), replaces=True)
                file.path.unlink()

    def _write(self, path: Path, table: pa.Table, replaces: bool = False) -> None:
        """On the disk where others go for it; the rest a checkpoint syncs."""
        draft = path.with_suffix(".draft")
        # With checksums: a bit that flips in a number would be another number to a reader.
        how = {"compression": "zstd", "write_page_checksum": True}
        with naming(path):
            pq.write_table(table, draft, row_group_size=_ROW_GROUP, **how)
            put(draft, path) if replaces else draft.rename(path)


def listing(folder: Path) -> list[File]:
    """The files that no phase file covers (a merge or a cut may have been cut short), by step."""
    found, end = [], -1  # `end`: the last step of the phase files so far
    # A file comes after all that could cover it: those that begin before, the longest first.
    for file in sorted(_named(folder), key=lambda f: (f.first, -f.last, not f.merged)):
        if file.last > end:
            found.append(file)
            end = file.last if file.merged else end
    return found


def strays(folder: Path) -> list[str]:
    """A sentence on the Parquet files that are none of the store's."""
    own = {file.path.name for file in _named(folder)}
    other = sorted(p.name for p in folder.glob("*.parquet") if p.name not in own)
    if not other:
        return []
    shown = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
    return [f"{folder}: {shown}: not a file of the rollout store; ignored"]


def damaged(folder: Path) -> list[str]:
    """A sentence on each file that was cut short or overwritten: a look at its two ends."""
    said = "is damaged; skipped as long as its steps are not needed"
    return [f"{file.path} {said}" for file in listing(folder) if not _whole(file.path)]


def _whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            file.seek(-2 * len(_MAGIC), 2)  # the size of the footer, and the end
            return head == file.read()[-len(_MAGIC) :] == _MAGIC
    except OSError:  # also of a file that is shorter than that
        return False


def to_arrays(table: pa.Table, column: str) -> list[np.ndarray]:
    """A list column as numpy arrays, one a row, without copying the values."""
    column_data = table[column].combine_chunks()
    if isinstance(column_data, pa.ChunkedArray):
        column_data = pa.concat_arrays(column_data.chunks)
    values = column_data.values.to_numpy(zero_copy_only=False)
    offsets = column_data.offsets.to_numpy()
    return [values[a:b] for a, b in pairwise(offsets)]


def _table(rollouts: list[Rollout]) -> pa.Table:
    """Rollouts as columns of SCHEMA; lists are joined once, not row by row."""

    def lists(rows: list[np.ndarray], kind: pa.DataType) -> pa.Array:
        ends = np.cumsum([0, *(len(row) for row in rows)])
        values = np.concatenate(rows) if rows else np.empty(0)
        return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values, kind))

    sums = [r.sum_logprob for r in rollouts]
    lengths = [len(r.ids) for r in rollouts]
    columns = {
        "step": [r.step for r in rollouts],
        "group": [r.group for r in rollouts],
        "sample": [r.sample for r in rollouts],
        "problem_id": [r.problem_id for r in rollouts],
        "policy_version": [r.policy_version for r in rollouts],
        "prompt_ids": lists([r.prompt_ids for r in rollouts], pa.int32()),
        "ids": lists([r.ids for r in rollouts], pa.int32()),
        "logprobs": lists([r.logprobs for r in rollouts], pa.float32()),
        "mean_logprob": [r.mean_logprob for r in rollouts],
        "sum_logprob": sums,
        "length": lengths,
        "finished": [r.finished for r in rollouts],
        "reward": [r.reward for r in rollouts],
        "verdict": [r.verdict.kind for r in rollouts],
        "detail": [r.verdict.detail for r in rollouts],
        "answer": [r.verdict.answer for r in rollouts],
        "kept": [False] * len(rollouts),
    }
    return pa.table(columns, schema=SCHEMA)


def _named(folder: Path) -> list[File]:
    """Every file whose name is one of the store's."""
    found = []
    for path in folder.glob("*.parquet"):
        match = _NAME.fullmatch(path.name)
        if not match or not path.is_file():
            continue
        first = int(match[1] or match[2])
        last = int(match[1] or match[3])
        if first <= last:
            found.append(File(path, first, last, match[1] is None))
    return found


def _read(file: File, schema: pa.Schema, keep: pc.Expression) -> pa.Table:
    """Some columns and rows of a file that is needed."""
    try:
        # Not with schema=SCHEMA: columns that the file lacks would be filled with nothing.
        table = pq.read_table(
            file.path, columns=schema.names, filters=keep, page_checksum_verification=True
        )
        return table.cast(schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        said = (str(error).strip().splitlines() or [repr(error)])[0][:200]
        steps = f"step {file.first}" + (f" to {file.last}" if file.last > file.first else "")
        raise UserError(
            f"{file.path}: the rollouts of {steps} are needed and cannot be read ({said}). Put the "
            f"file back from a copy, or remove the checkpoints from step {file.first} on and go "
            "on with --resume"
        ) from None
