"""A place in a notebook's output that is written to again and again."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any

_COLUMNS = 100


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Place:
    """Plain text, replaced by every later one; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, what: Any) -> None:
        """Show this, a text or what rich can draw, and nothing else."""
        from IPython.display import display  # there, since a notebook is  # type: ignore

        text = _drawn(what)
        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


def _drawn(what: Any) -> str:
    from rich.console import Console

    page = StringIO()
    # A kernel sets FORCE_COLOR, and these texts are plain.
    plain = {"force_jupyter": False, "force_terminal": False, "color_system": None}
    Console(file=page, width=_COLUMNS, highlight=False, **plain).print(what, markup=False)
    return page.getvalue().rstrip()
