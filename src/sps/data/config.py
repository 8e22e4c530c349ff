"""Keys of tasks that read their questions from files or the hub."""

from __future__ import annotations

from typing import Literal

from sps.schema import Cut, Node, NonNegative, Positive


class ColumnsConfig(Node):
    """Where a row holds what, `a.b` for b inside a; left out, the usual names are tried."""

    question: str | None = None
    answer: str | None = None
    id: str | None = None


class DataConfig(Node):
    """Which questions, and how they are divided."""

    data: str  # .jsonl, .json, .parquet or .csv file, or a hub id
    split: str = "train"  # on the hub
    config: str | None = None  # on the hub
    columns: ColumnsConfig = ColumnsConfig()
    subset: Positive | None = None  # training questions, drawn uniformly and nested; None: all
    seed: NonNegative = 0  # of the subset and of what is held out
    validation: Positive = 64  # training questions held out
    benchmarks: tuple[str, ...] = ()  # the test set; without any, `test` questions are held out
    data_dir: str | None = None  # local copies of the benchmarks; None: from the hub
    limit: Positive | None = None  # questions of each benchmark, the first ones; None: all
    test: Positive = 64  # training questions held out when there are no benchmarks
    overlap: Literal["report", "drop", "off"] = "report"  # training questions found in benchmarks
    instruction: str | None = None  # None: the usual sentence
    cut: Cut = "zero"
