"""Every rollout of a run, in Parquet.

    rollouts/step-000001.parquet          one step, written as soon as it was judged
    rollouts/phase-000001-000050.parquet  an RL phase, ordered by likelihood, with what L2TE kept

At the end of a phase its step files are merged into one; a reader never sees a rollout twice. Row
groups are small and ordered by likelihood, so the unlikely ones are read without the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
_LIGHT = ["step", "group", "sample", "reward", "mean_logprob", "sum_logprob"]


class RolloutStore:
    """One run's rollouts."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

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
        below: float | None = None,
    ) -> pa.Table:
        """Rollouts of some steps and columns, less likely (mean log-probability) than `below`."""
        keep = (pc.field("step") >= first) & (pc.field("step") <= last)
        if below is not None:
            keep = keep & (pc.field("mean_logprob") < below)
        tables = [
            pq.read_table(path, columns=columns, filters=keep, schema=SCHEMA)
            for path in files(self.folder)
        ]
        schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(c) for c in columns])
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def close_phase(self, first: int, last: int, kept: set[tuple[int, int, int]]) -> None:
        """Merge the steps of a phase, marking the (step, group, sample) that the IRL phase kept."""
        table = self.read(first, last)
        if not len(table):
            return
        keys = zip(*(table[c].to_pylist() for c in ("step", "group", "sample")), strict=True)
        flags = pa.array([key in kept for key in keys])
        table = table.set_column(SCHEMA.get_field_index("kept"), "kept", flags)
        merged = self.folder / f"phase-{first:06d}-{last:06d}.parquet"
        self._write(merged, table.sort_by("mean_logprob"))
        for path in [*self.folder.glob("*.parquet")]:
            if path != merged and first <= _range(path)[0] <= _range(path)[1] <= last:
                path.unlink()

    def forget_after(self, step: int) -> None:
        """Drop what a run that is resumed at `step` will draw again."""
        for path in [*self.folder.glob("*.parquet")]:
            first, last = _range(path)
            if first > step:
                path.unlink()
            elif last > step:  # a phase that was closed after the checkpoint: cut it back
                self._write(
                    self.folder / f"phase-{first:06d}-{step:06d}.parquet", self.read(first, step)
                )
                path.unlink()

    def _write(self, path: Path, table: pa.Table) -> None:
        draft = path.with_suffix(".draft")
        pq.write_table(table, draft, row_group_size=_ROW_GROUP, compression="zstd")
        draft.rename(path)


def files(folder: Path) -> list[Path]:
    """The files that no phase file covers (a merge or a cut may have been cut short)."""
    found = sorted(folder.glob("*.parquet"))
    phases = [p for p in found if p.name.startswith("phase-")]
    return [p for p in found if not any(_covers(phase, p) for phase in phases)]


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


def _covers(phase: Path, path: Path) -> bool:
    (first, last), (begin, end) = _range(phase), _range(path)
    return phase != path and first <= begin <= end <= last


def _range(path: Path) -> tuple[int, int]:
    numbers = [int(x) for x in re.findall(r"\d+", path.stem)]
    return numbers[0], numbers[-1]
