"""The `task` branch of a recipe: one node a kind of task. `type` may be left out for Countdown."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sps.config.node import Node, NonNegative, Positive, Seconds
from sps.errors import UserError

Template = Literal["qwen_boxed", "r1", "plain", "chat"]
# A completion cut off at the token limit: scored 0, or judged if it holds a box already.
Cut = Literal["zero", "judge"]


class CountdownTask(Node):
    """Reach a target from a few numbers, each used exactly once. Generated, nothing to download."""

    type: Literal["countdown"] = "countdown"
    numbers: Annotated[int, Field(ge=2, le=6)] = 4
    low: NonNegative = 1
    high: Positive = 10
    max_value: Positive = 99  # of any intermediate result and of the target
    seed: NonNegative = 0  # of the split
    train: Positive = 1000
    validation: Positive = 200
    test: Positive = 200

    @model_validator(mode="after")
    def _range(self) -> CountdownTask:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Columns(Node):
    """Where a row holds what, `a.b` for b inside a; left out, the usual names are tried."""

    question: str | None = None
    answer: str | None = None
    id: str | None = None


class _DataTask(Node):
    """What tasks that read their questions from files or the hub share."""

    data: str  # .jsonl, .json, .parquet or .csv file, or a hub id
    split: str = "train"  # on the hub
    config: str | None = None  # on the hub
    columns: Columns = Columns()
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


class MathTask(_DataTask):
    """Mathematical answers judged by Math-Verify in worker processes."""

    type: Literal["math"] = "math"
    template: Template = "qwen_boxed"
    time_limit: Seconds = 6.0  # seconds a verdict may take
    workers: NonNegative = 0  # 0: one a core


class ChoiceTask(_DataTask):
    """Questions with lettered options."""

    type: Literal["choice"] = "choice"
    template: Template = "chat"


class GymTask(Node):
    """A task of reasoning-gym, with its own generator and verifier."""

    type: Literal["gym"] = "gym"
    name: str  # as reasoning-gym calls it, such as basic_arithmetic
    settings: dict[str, Any] = Field({})  # its own settings, such as min_digits
    seed: NonNegative = 0
    train: Positive = 1000
    validation: Positive = 100
    test: Positive = 200
    template: Template = "chat"
    cut: Cut = "zero"
    time_limit: Seconds = 6.0
    workers: NonNegative = 0
    # Tasks that may be used although their verifiers evaluate answers as code; see SECURITY.md.
    unsafe: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _named(self) -> GymTask:
        if others := [name for name in self.unsafe if name != self.name]:
            raise ValueError(f"unsafe: {others[0]} is not the task of this recipe, {self.name}")
        return self

    @model_validator(mode="after")
    def _own_settings(self) -> GymTask:
        keys = {"seed": "task.seed", "size": "task.train, task.validation and task.test"}
        for key, own in keys.items():
            if key in self.settings:
                raise ValueError(f"settings.{key}: leave it out and set {own} instead")
        return self


def _kind(value: Any) -> str:
    """The tag of a task; a mapping without one is Countdown."""
    if isinstance(value, dict):
        return value.get("type", "countdown")
    return getattr(value, "type", "countdown")


TaskSettings = Annotated[
    Annotated[CountdownTask, Tag("countdown")]
    | Annotated[MathTask, Tag("math")]
    | Annotated[ChoiceTask, Tag("choice")]
    | Annotated[GymTask, Tag("gym")],
    Discriminator(
        _kind,
        custom_error_type="task_type",
        custom_error_message="type is one of countdown, math, choice and gym",
    ),
]


def check_embedded(task: TaskSettings) -> CountdownTask:
    """The task, if the embedded policy knows it; any other is refused."""
    if isinstance(task, CountdownTask):
        return task
    raise UserError(
        f"model.path: the embedded policy knows Countdown alone; name a model for the "
        f"{task.type} task, a folder, a .gguf file or a hub id such as Qwen/Qwen2.5-Math-1.5B"
    )
