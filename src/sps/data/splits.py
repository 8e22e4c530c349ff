"""Questions from files and benchmarks, divided: what is trained on is nowhere held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from sps.data.benchmarks import load_benchmark
from sps.data.config import DataConfig
from sps.data.duplicates import Duplicate, describe, drop_duplicates
from sps.data.load import Columns, load_problems
from sps.data.overlap import Overlap, find_overlaps, held_out_summary, summary
from sps.data.subset import hold_out
from sps.types import Finding, Problem

Splits = dict[str, list[Problem]]
Label = Callable[[list[Problem], str], list[Problem]]  # checks the answers; errors name the place


def digest(splits: Splits) -> str:
    """Of every question and answer, in their order: whether a run goes on with what it began on."""
    rows = {split: [(p.id, p.question, p.answer) for p in splits[split]] for split in splits}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Read:
    """The questions of a task."""

    config: DataConfig
    splits: Splits
    dropped: list[Duplicate]  # left out because it was there already

    def findings(self) -> list[Finding]:
        """What was left out, and what leaks between the splits."""
        found = []
        if self.dropped:
            text = describe(self.dropped, self.config.data)
            rows = [d.row() for d in self.dropped]
            found.append(Finding("duplicates", "warning", text, rows))
        overlaps, text = check_overlap(self.config, self.splits)
        if text:
            rows = [[o.train_id, o.test_id, o.kind, round(o.share, 3)] for o in overlaps]
            found.append(Finding("overlaps", "warning" if overlaps else "overlap", text, rows))
        return found


def _as_they_are(problems: list[Problem], where: str) -> list[Problem]:
    return problems


def read_questions(t: DataConfig, label: Label = _as_they_are) -> Read:
    """Training questions, some of them held out, and the benchmarks as the test set."""
    columns = Columns(t.columns.question, t.columns.answer, t.columns.id)
    rows = load_problems(t.data, columns, split=t.split, config=t.config)
    rows, dropped = drop_duplicates(label(rows, f"task.data: {t.data}"))
    benchmarks = {name: _benchmark(name, t, label) for name in t.benchmarks}
    if benchmarks and t.overlap == "drop":
        shared = {o.train_id for o in find_overlaps(rows, benchmarks)}
        rows = [row for row in rows if row.id not in shared]
    held = {"validation": t.validation} | ({} if benchmarks else {"test": t.test})
    splits = hold_out(rows, held, t.subset, t.seed)
    if benchmarks:
        splits["test"] = [problem for problems in benchmarks.values() for problem in problems]
    return Read(t, splits, dropped)


def _benchmark(name: str, t: DataConfig, label: Label) -> list[Problem]:
    problems = load_benchmark(name, t.data_dir)[: t.limit]
    if t.data_dir:  # the hub's rows are labelled as they are read
        return label(problems, f"task.data_dir: benchmark {name}")
    return problems


def check_overlap(t: DataConfig, splits: Splits) -> tuple[list[Overlap], str]:
    """Training and validation questions that occur in the benchmarks, or nearly in what is held
    out, and a sentence on them."""
    if t.overlap == "off":
        return [], ""
    train, validation = splits["train"], splits["validation"]
    near = find_overlaps(train, {"validation": validation})
    if not t.benchmarks:
        near += find_overlaps(train + validation, {"test": splits["test"]})
        return near, held_out_summary(near)
    benchmarks: Splits = {name: [] for name in t.benchmarks}
    for problem in splits["test"]:
        benchmarks[problem.id.partition("/")[0]].append(problem)
    found = find_overlaps(train + validation, benchmarks)
    said = [summary(found, benchmarks), held_out_summary(near)]
    return found + near, ". ".join(filter(None, said))
