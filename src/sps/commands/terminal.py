"""The terminal that commands speak to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from sps.run.notebook import Place, in_notebook

console = Console()


def say(text: str) -> None:
    """A text as it is: no markup, no colours; the terminal wraps it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def status(doing: str) -> Iterator[Callable[[Any], None]]:
    """What is being done, as long as it is; call what this yields to say more."""
    if in_notebook():  # where rich's own would need widgets
        yield Place().show
        return
    with console.status(doing) as shown:
        yield shown.update
