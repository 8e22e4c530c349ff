"""Questions from files and benchmarks, divided: what is trained on is nowhere held out."""

from __future__ import annotations

import hashlib
import json

from sps.config.recipe import Recipe
from sps.config.tasks import ChoiceTask, MathTask
from sps.data.benchmarks import load_benchmark
from sps.data.duplicates import Duplicate, drop_duplicates
from sps.data.load import Columns, load_problems
from sps.data.overlap import Overlap, find_overlaps, held_out_summary, summary
from sps.data.subset import hold_out
from sps.tasks.choice import labelled
from sps.types import Problem

Splits = dict[str, list[Problem]]


def digest(splits: Splits) -> str:
    """Of every question and answer, in their order: whether a run goes on with what it began on."""
    rows = {split: [(p.id, p.question, p.answer) for p in splits[split]] for split in splits}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def make_splits(t: MathTask | ChoiceTask) -> tuple[Splits, list[Duplicate]]:
    """Training questions, some of them held out, and the benchmarks as the test set; and what was
    left out because it was there already."""
    columns = Columns(t.columns.question, t.columns.answer, t.columns.id)
    rows = load_problems(t.data, columns, split=t.split, config=t.config)
    if isinstance(t, ChoiceTask):
        rows = labelled(rows, f"task.data: {t.data}")
    rows, dropped = drop_duplicates(rows)
    benchmarks = {name: _benchmark(name, t) for name in t.benchmarks}
    if benchmarks and t.overlap == "drop":
        shared = {o.train_id for o in find_overlaps(rows, benchmarks)}
        rows = [row for row in rows if row.id not in shared]
    held = {"validation": t.validation} | ({} if benchmarks else {"test": t.test})
    splits = hold_out(rows, held, t.subset, t.seed)
    if benchmarks:
        splits["test"] = [problem for problems in benchmarks.values() for problem in problems]
    return splits, dropped


def _benchmark(name: str, t: MathTask | ChoiceTask) -> list[Problem]:
    problems = load_benchmark(name, t.data_dir)[: t.limit]
    if isinstance(t, ChoiceTask) and t.data_dir:  # the hub's rows are labelled as they are read
        return labelled(problems, f"task.data_dir: benchmark {name}")
    return problems


def check_overlap(recipe: Recipe, splits: Splits) -> tuple[list[Overlap], str]:
    """Training and validation questions that occur in the benchmarks, or nearly in what is held
    out, and a sentence on them."""
    t = recipe.task
    if not isinstance(t, MathTask | ChoiceTask) or t.overlap == "off":
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
