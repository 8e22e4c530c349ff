"""The `task` branch of a recipe: the keys of each row of TASKS. Without `type` it is Countdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from sps.errors import UserError
from sps.tasks.table import TASKS


def _kind(value: Any) -> str:
    """The tag of a task; a mapping without one is Countdown."""
    if isinstance(value, dict):
        return value.get("type", "countdown")
    return getattr(value, "type", "countdown")


if TYPE_CHECKING:
    TaskConfig = Any  # one of the settings of TASKS; a type checker cannot read the table
else:
    *_first, _last = TASKS
    TaskConfig = Annotated[
        Union[tuple(Annotated[row.config, Tag(name)] for name, row in TASKS.items())],  # noqa: UP007
        Discriminator(
            _kind,
            custom_error_type="task_type",
            custom_error_message=f"type is one of {', '.join(_first)} and {_last}",
        ),
    ]


def check_embedded(task: TaskConfig) -> None:
    """Refuse a task that the embedded policy does not know."""
    if not TASKS[task.type].embedded:
        raise UserError(
            f"model.path: the embedded policy knows Countdown alone; name a model for the "
            f"{task.type} task, a folder, a .gguf file or a hub id such as Qwen/Qwen2.5-Math-1.5B"
        )
