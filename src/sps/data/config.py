"""Keys of tasks that read their questions from files or the hub."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sps.schema import Cut, Node, NonNegative, Positive

# Columns of multiple choice: a list of texts, or {text: [...], label: [...]} as ARC has it.
OPTIONS = ("choices", "options")


class ColumnsConfig(Node):
    """Where a row holds what, `a.b` for b inside a; left out, the usual names are tried."""

    question: str | None = None
    answer: str | None = None
    id: str | None = None


class Source(Node):
    """One of several data sets, and its share of the questions."""

    data: str  # .jsonl, .json, .parquet or .csv file, or a hub id
    weight: Annotated[float, Field(gt=0)] = 1.0  # of all, next to the other weights
    split: str = "train"  # on the hub
    config: str | None = None  # on the hub
    columns: ColumnsConfig = ColumnsConfig()


class Example(Node):
    """A question and its answer."""

    question: str
    answer: str


class DataConfig(Node):
    """Which questions, and how they are divided."""

    data: str | None = None  # .jsonl, .json, .parquet or .csv file, or a hub id
    sources: tuple[Source, ...] = ()  # or several of them, mixed
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
    system: str = ""  # a system message, for rows that have none of their own
    examples: tuple[Example, ...] = ()  # shown before every question
    cut: Cut = "zero"

    def mixed(self) -> tuple[Source, ...]:
        """The data sets; the one that `data` names has the keys beside it."""
        if self.data is None:
            return self.sources
        own = {"split": self.split, "config": self.config, "columns": self.columns}
        return (Source(data=self.data, **own),)

    @model_validator(mode="after")
    def _has_data(self) -> DataConfig:
        if not self.data and not self.sources:
            raise ValueError("data: name a .jsonl, .json, .parquet or .csv file, or a hub id")
        return self

    @model_validator(mode="after")
    def _one_of_them(self) -> DataConfig:
        if self.data and self.sources:
            raise ValueError("give data for one data set, or sources for several, and not both")
        for key in ("split", "config", "columns") if self.sources else ():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: with sources, give it in the one that it is of")
        return self


def data_sets(task: object) -> tuple[Source, ...]:
    """What a task's settings say its questions are read from; nothing where it makes its own."""
    return task.mixed() if isinstance(task, DataConfig) else ()
