"""Questions from files and benchmarks, divided: what is trained on is nowhere held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sps.data.benchmarks import load_benchmark
from sps.data.config import DataConfig, Source, data_sets
from sps.data.duplicates import Duplicate, describe, drop_duplicates
from sps.data.load import Columns, load_problems
from sps.data.overlap import Overlap, find_overlaps, held_out_summary, summary
from sps.data.subset import hold_out, shuffled
from sps.types import Finding, Problem

Splits = dict[str, list[Problem]]
Label = Callable[[list[Problem], str], list[Problem]]  # checks the answers; errors name the place


def digest(splits: Splits, whole: bool = False) -> str:
    """Of every question and answer, in their order: whether a run goes on with what it began on.

    With `whole` of all that a judge is told.
    """

    def row(p: Problem) -> tuple:
        return (p.id, p.question, p.answer, *([dict(p.meta)] if whole else []))

    rows = {split: [row(p) for p in splits[split]] for split in splits}
    try:
        text = json.dumps(rows, sort_keys=True)
    except TypeError:  # keys that JSON does not know, in what a user's problems() made
        text = repr(rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Read:
    """The questions of a task."""

    config: DataConfig
    splits: Splits
    dropped: list[Duplicate]  # left out because it was there already
    used: dict[str, tuple[int, int]]  # of several sources: questions used by weight, of how many
    shared: list[str]  # ids that were left out for being a benchmark's: task.overlap: drop

    def findings(self) -> list[Finding]:
        """What was left out, and what leaks between the splits."""
        found = []
        if self.dropped:
            text = describe(self.dropped, self.config.data or "task.sources")
            rows = [d.row() for d in self.dropped]
            found.append(Finding("duplicates", "warning", text, rows))
        if any(used < of for used, of in self.used.values()):
            said = ", ".join(f"{used} of {of} of {name}" for name, (used, of) in self.used.items())
            text = (
                f"task.sources: the weights use {said}; the rest would need repeats of the others"
            )
            rows = [[name, *counts] for name, counts in self.used.items()]
            found.append(Finding("sources", "sources", text, rows))
        if self.shared:
            text = f"{len(self.shared)} training questions of benchmarks are left out"
            found.append(Finding("left_out", "overlap", text, [[name] for name in self.shared]))
        overlaps, text = check_overlap(self.config, self.splits)
        if text:
            rows = [[o.train_id, o.test_id, o.kind, round(o.share, 3)] for o in overlaps]
            found.append(Finding("overlaps", "warning" if overlaps else "overlap", text, rows))
        return found


def _as_they_are(problems: list[Problem], where: str) -> list[Problem]:
    return problems


def read_questions(t: DataConfig, label: Label = _as_they_are, whole: bool = False) -> Read:
    """Training questions, some of them held out, and the benchmarks as the test set.

    With `whole` a row needs no answer, and all of it is its problem's `meta`.
    """
    rows, dropped = drop_duplicates(_mixed(t, label, whole))
    before = source_counts(t, rows)
    rows = _by_weight(t, rows)
    used = {name: (n, before[name]) for name, n in source_counts(t, rows).items()}
    benchmarks = {name: _benchmark(name, t, label) for name in t.benchmarks}
    shared: set[str] = set()
    if benchmarks and t.overlap == "drop":
        shared = {o.train_id for o in find_overlaps(rows, benchmarks)}
        rows = [row for row in rows if row.id not in shared]
    held = {"validation": t.validation} | ({} if benchmarks else {"test": t.test})
    source = f"task.data: {t.data}" if t.data else "task.sources: the mixture"
    splits = hold_out(rows, held, t.subset, t.seed, source, len(dropped))
    if benchmarks:
        splits["test"] = [problem for problems in benchmarks.values() for problem in problems]
    return Read(t, splits, dropped, used, sorted(shared))


def _mixed(t: DataConfig, label: Label, whole: bool) -> list[Problem]:
    """The rows of every source; of several, the ids say which one they are of."""
    found: list[Problem] = []
    sources = t.mixed()
    for name, source in zip(source_names(sources), sources, strict=True):
        key = "task.data" if t.data else f"task.sources: {name}"
        columns = Columns(source.columns.question, source.columns.answer, source.columns.id)
        how = {"split": source.split, "config": source.config, "key": key, "whole": whole}
        rows = label(load_problems(source.data, columns, **how), f"{key}: {source.data}")
        if t.sources:
            rows = [replace(row, id=f"{name}/{row.id}") for row in rows]
        found += rows
    return found


def source_names(sets: Sequence[Source]) -> list[str]:
    """What sources are called: by their files, with a number where two have the same name."""
    stems = [Path(source.data).stem for source in sets]
    return [f"{s}-{i}" if stems.count(s) > 1 else s for i, s in enumerate(stems, 1)]


def source_counts(t: object, problems: list[Problem]) -> dict[str, int]:
    """How many problems are of which source; empty where there is one alone."""
    sets = data_sets(t)
    names = source_names(sets) if len(sets) > 1 else []
    return {name: sum(p.id.startswith(f"{name}/") for p in problems) for name in names}


def sources_of(t: object, problems: list[Problem]) -> list[int]:
    """The number of each problem's source; 0 where there is one alone."""
    sets = data_sets(t)
    number = {name: i for i, name in enumerate(source_names(sets))} if len(sets) > 1 else {}
    return [number.get(p.id.partition("/")[0], 0) for p in problems]


def _by_weight(t: DataConfig, rows: list[Problem]) -> list[Problem]:
    """As many of each source as its weight allows where no question is used twice."""
    if not t.sources:
        return rows
    weights = {name: s.weight for name, s in zip(source_names(t.sources), t.sources, strict=True)}
    pools = {name: [r for r in rows if r.id.startswith(f"{name}/")] for name in weights}
    unit = min(len(pools[name]) / weight for name, weight in weights.items())
    # A whisker more, so that 0.07 of 100, which may be 6.999999999999999, counts as 7.
    take = {name: int(unit * weight + 1e-9) for name, weight in weights.items()}
    return [row for name in pools for row in shuffled(pools[name], t.seed)[: take[name]]]


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
