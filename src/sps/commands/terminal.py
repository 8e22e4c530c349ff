"""The terminal that commands speak to."""

from __future__ import annotations

from rich.console import Console

console = Console()


def say(text: str) -> None:
    """A text as it is: no markup, no colours; the terminal wraps it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
