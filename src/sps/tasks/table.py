"""Every task. A new one is its module and its row here. Nothing here loads torch or sympy."""

from __future__ import annotations

from collections.abc import Mapping

from sps.errors import row_of
from sps.tasks import Bench, Task, TaskType, choice, countdown, python
from sps.tasks.gym import task as gym
from sps.tasks.math import task as math

_ROWS = (countdown.TYPE, math.TYPE, choice.TYPE, gym.TYPE, python.TYPE)
TASKS: Mapping[str, TaskType] = {row.name: row for row in _ROWS}


def make_bench(asked: Bench) -> Task:
    """A task by name, `NAME` if it generates its problems, or `NAME:ARGUMENT`; else a benchmark."""
    from sps.data.benchmarks import find_benchmark

    row = TASKS.get(asked.name.partition(":")[0])
    if row is None or not (row.generates or asked.rows):
        kind = find_benchmark(asked.name).kind
        row = row_of(TASKS, kind, f"benchmark {asked.name}", "TASKS (sps/tasks/table.py)")
    return row.bench(asked)
