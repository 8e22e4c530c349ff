"""How a command ends early: what the user did wrong, what could not be done, what was asked for.

Anything else that fails is our bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Row = TypeVar("Row")


class UserError(Exception):
    """Bad input: the command line prints the message as one paragraph and exits with code 2."""


class RunFailed(Exception):
    """The work could not be finished, through no fault of the user's; exit code 1."""


class Stopped(BaseException):
    """Asked to stop, and everything is kept; exit code 0.

    A BaseException: it may be raised anywhere, and a library's `except Exception` lets it through.
    """


def row_of(table: Mapping[Any, Row], name: str, key: str, where: str) -> Row:
    """The row of a table; one that nobody has added is said with the place where it belongs.

    `key` is what names the row in a recipe, `where` the table and its file.
    """
    if name not in table:
        raise UserError(
            f"{key}: {name} has no row in {where}; add it there (docs/extending.md), or choose one "
            f"of {', '.join(table)}"
        )
    return table[name]
