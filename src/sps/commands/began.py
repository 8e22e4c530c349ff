"""Whether a run of before was asked what its task asks now, and judged as it judges now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sps.data.splits import digest
from sps.errors import UserError
from sps.run.began import other_code, other_data
from sps.run.folder import TASK_FILE
from sps.tasks import Task
from sps.tasks.table import TASKS


class TaskNow:
    """The task of a recipe, read once for all the runs that have it."""

    def __init__(self, config: Any):
        self.config = config
        task: Task = TASKS[config.type].make(config)
        self.source, self.data = task.source, data_digest(task)

    def refuse_other(self, run: Path) -> None:
        """What a run's folder holds counts no longer where its judge or its data changed."""
        if other_code(run, self.source):
            copy = run / TASK_FILE
            raise UserError(
                f"{run}: it holds a run under another judge: {self.source} is not the file that it "
                f"began with; that one is {copy}. See what changed: diff {copy} {self.source}. To "
                f"go on, put it back: cp {copy} {self.source}. For the new one choose another "
                "folder with --out"
            )
        if other_data(run, self.data):
            raise UserError(
                f"{run}: it holds a run of other questions or answers: {named_data(self.config)} "
                "changed since it began. Put it back as it was, or choose another folder with --out"
            )


def data_digest(task: Task) -> str:
    """Of all its questions and answers, as a run keeps it."""
    splits = {split: task.problems(split) for split in ("train", "validation", "test")}
    return digest(splits, whole=task.source is not None)


def named_data(config: Any) -> str:
    """Where a task's questions come from, by the keys of its recipe."""
    given = [(k, getattr(config, k, None)) for k in ("data", "sources", "benchmarks")]
    named = [f"task.{k}" + (f" ({v})" if k == "data" else "") for k, v in given if v]
    return " or ".join(named) or f"what task.type: {config.type} makes"
