"""How an evaluation is getting on: a bar on a terminal, a line that changes in a notebook, a line
now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from sps.evaluation.evaluate import Tally
from sps.run.notebook import Place, in_notebook

_EVERY = 10.0  # seconds between plain lines


class PlainProgress:
    """One line every ten seconds."""

    def __init__(self, name: str, out: TextIO | None = None, every: float = _EVERY):
        self.name, self.out, self.every = name, out or sys.stderr, every
        self.began = time.monotonic()
        self._next, self._last = self.began, -1

    def __call__(self, tally: Tally) -> None:
        """Say where it stands, if it is time to."""
        now = time.monotonic()
        if now >= self._next or (tally.done == tally.total and tally.done != self._last):
            self._next, self._last = now + self.every, tally.done
            self.out.write(f"{self.name}: {describe(tally, now - self.began)}\n")
            self.out.flush()

    def close(self) -> None:
        """Nothing is held."""


class BarProgress:
    """A rich bar."""

    def __init__(self, name: str):
        from rich.progress import BarColumn, Progress, TextColumn

        self.bar = Progress(TextColumn(name), BarColumn(), TextColumn("{task.description}"))
        self.began = time.monotonic()
        self.task: Any = self.bar.add_task("", total=None)
        self.bar.start()

    def __call__(self, tally: Tally) -> None:
        """Move the bar."""
        text = describe(tally, time.monotonic() - self.began)
        self.bar.update(self.task, completed=tally.done, total=tally.total, description=text)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self.bar.stop()


class NotebookProgress:
    """One line in a notebook, at most every second."""

    def __init__(self, name: str):
        self.name, self.place, self.began = name, Place(), time.monotonic()
        self._next = self.began

    def __call__(self, tally: Tally) -> None:
        """Say where it stands, if it is time to."""
        now = time.monotonic()
        if now >= self._next or tally.done == tally.total:
            self._next = now + 1.0
            self.place.show(f"{self.name}: {describe(tally, now - self.began)}")

    def close(self) -> None:
        """Leave the last line standing."""


class NoProgress:
    """Of a rank that has no say."""

    def __call__(self, tally: Tally) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is held."""


Shown = PlainProgress | BarProgress | NotebookProgress | NoProgress


def make_progress(name: str, loud: bool = True) -> Shown:
    """A bar where someone is looking."""
    if not loud:
        return NoProgress()
    if in_notebook():
        return NotebookProgress(name)
    return BarProgress(name) if sys.stderr.isatty() and sys.stdout.isatty() else PlainProgress(name)


def describe(tally: Tally, seconds: float) -> str:
    """Samples, share correct, questions solved, speed, time left."""
    share = 100 * tally.correct / tally.done if tally.done else 0.0
    fresh = tally.done - tally.stored
    parts = [
        f"{tally.done}/{tally.total} samples",
        f"{share:.1f} % correct",
        f"{tally.solved} questions solved",
    ]
    if fresh and seconds > 0:
        left = (tally.total - tally.done) * seconds / fresh
        if tally.tokens:  # none are drawn where verdicts alone are made again
            parts.append(f"{tally.tokens / seconds:.0f} tokens/s")
        parts.append(f"{_clock(left)} left")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
