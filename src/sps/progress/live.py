"""Progress of a run: a small panel on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import deque
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sps.run.folder import TEMPERED
from sps.run.notebook import Place, in_notebook

_RECENT = 20  # steps that the shown means are over
_COLUMNS = 80
_EACH = 1.0  # seconds between panels in a notebook, which sends each to a browser


class Progress:
    """A listener for `Track`. Use it in a `with`, or let the 'done' record end it."""

    def __init__(self, total: int, name: str = "", file: TextIO | None = None, every: float = 10.0):
        self.total, self.name, self.every = total, name, every
        self.console = Console(file=file or sys.stderr, highlight=False)
        self.state = State(total)
        self._live: Live | None = None
        self._said = float("-inf")
        self._place = Place() if file is None and in_notebook() else None

    def __call__(self, record: dict[str, Any]) -> None:
        """Take one record and show it."""
        self.state.take(record)
        if self._place is not None:
            if record["kind"] != "rl" or time.monotonic() - self._said > _EACH:
                self._said = time.monotonic()
                self._place.show(self.panel())
            return
        if not self.console.is_terminal:
            self._print(record)
            return
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(self.panel())
        if record["kind"] == "done":
            self.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last panel standing and give the terminal back."""
        if self._place is not None and self.state.step:
            self._place.show(self.panel())
        if self._live is not None:
            self._live.update(self.panel(), refresh=True)
            self._live.stop()
            self._live = None

    def panel(self) -> Group:
        """What is shown on a terminal; no line is wider than 80 columns."""
        s = self.state
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self.total, 1), completed=s.step, width=24)
        title = Text(f"{self.name} " if self.name else "", style="bold")
        head.add_row(title, f"{s.phase}, step {s.step}/{self.total}", bar, f"left {s.left()}")
        body = Table.grid(padding=(0, 2))
        for label, value in s.lines():
            body.add_row(Text(label, style="dim"), Text(value, overflow="fold"))
        warnings = [
            Text(line, style="yellow")
            for text in s.warnings[-3:]
            for line in textwrap.wrap(f"! {text}", _COLUMNS - 1, subsequent_indent="  ")
        ]
        return Group(head, body, *warnings)

    def _print(self, record: dict[str, Any]) -> None:
        """One line for what matters at once, and one every few seconds for the steps."""
        kind, now = record["kind"], time.monotonic()
        if kind in ("rl", "irl") and now - self._said < self.every:
            return
        self._said = now if kind in ("rl", "irl") else self._said
        line = self.state.sentence(record)
        if line:
            for row in textwrap.wrap(line, _COLUMNS, subsequent_indent="    ") or [""]:
                self.console.print(Text(row), soft_wrap=True)


class State:
    """What is known of the run so far, as words."""

    def __init__(self, total: int):
        self.total, self.step, self.phase = total, 0, "starting"
        self.warnings: list[str] = []
        self.greedy: list[float] = []
        self.passes = ""
        self._began: tuple[float, int] | None = None
        self._now = 0.0
        self._recent: dict[str, deque[float]] = {}

    def take(self, record: dict[str, Any]) -> None:
        """Learn from one record."""
        kind = record["kind"]
        self._now = float(record.get("time", self._now))
        if kind == "rl":
            self.step = int(record["step"])
            if self._began is None:
                self._began = (self._now, self.step)
            self._remember(record)
        if kind in ("rl", "irl"):
            self.phase = f"{kind.upper()} phase {record.get('phase', '')}".strip()
        elif kind == "eval" and not str(record.get("name")).startswith(TEMPERED):
            self.passes = passes(record)
            if isinstance(record.get("greedy_logprob"), int | float):
                self.greedy.append(float(record["greedy_logprob"]))
        elif kind == "warning":
            self.warnings.append(f"step {record['step']}: {record.get('text', '')}")
        elif kind == "done":
            self.phase = "done"

    def mean(self, field: str) -> float | None:
        """Mean over the last steps that had it."""
        found = self._recent.get(field)
        return sum(found) / len(found) if found else None

    def left(self) -> str:
        """Time left, from the pace so far; evaluations are in the pace."""
        if self.phase == "done":
            return "0:00"
        if self._began is None or self.step <= self._began[1]:
            return "?"
        pace = (self._now - self._began[0]) / (self.step - self._began[1])
        return clock(pace * max(self.total - self.step, 0))

    def lines(self) -> list[tuple[str, str]]:
        """Label and value of each line of the panel."""
        now = [
            f"{name} {show(self.mean(field))}"
            for name, field in _SHOWN
            if self.mean(field) is not None
        ]
        out = [("now", "  ".join(now) or "waiting for the first step")]
        speed = self.mean("tokens/s")
        if speed:
            out.append(("speed", f"{speed:,.0f} tok/s"))
        if self.passes:
            out.append(("so far", self.passes))
        if self.greedy:
            first = f", first {self.greedy[0]:.2f}" if len(self.greedy) > 1 else ""
            out.append(("squeeze", f"greedy log p {self.greedy[-1]:.2f}{first}"))
        return out

    def sentence(self, record: dict[str, Any]) -> str:
        """A record as one plain line; empty for records that need none."""
        kind, step = record["kind"], record["step"]
        if kind == "rl":
            speed = self.mean("tokens/s")
            numbers = [f"{n} {show(record.get(f))}" for n, f in _SHOWN if record.get(f) is not None]
            pace = f" {speed:.0f} tok/s" if speed else ""
            return f"step {step}/{self.total} {' '.join(numbers)}{pace} left {self.left()}"
        if kind == "irl":
            kept = f" kept {record['kept']}" if "kept" in record else ""
            if "kept_right" in record:
                kept += f" ({record['kept_right']:.0%} right, {record['kept_cut_off']:.0%} cut off)"
            if "lr" in record:
                kept += f", lr {record['lr']:.1e}"
            return f"step {step} IRL{kept}" + (
                f" loss {show(record['loss'])}" if "loss" in record else ""
            )
        if kind == "eval":
            greedy = record.get("greedy_logprob")
            squeeze = f" greedy log p {greedy:.2f}" if isinstance(greedy, int | float) else ""
            return f"step {step} {record.get('name', 'evaluation')}: {passes(record)}{squeeze}"
        if kind == "warning":
            return f"step {step} WARNING {record.get('text', '')}"
        if kind != "done":
            return ""
        share, mix = record.get("mixed"), ""
        if share is not None:
            mix = f", mixed with {share:g} of the base" if share else ", not mixed: Pass@k was kept"
        return f"done, step {record.get('selected', step)} selected{mix}"

    def _remember(self, record: dict[str, Any]) -> None:
        values = {field: record.get(field) for _, field in _SHOWN}
        seconds = record.get("seconds/generate")
        if seconds and record.get("tokens"):
            values["tokens/s"] = record["tokens"] / seconds
        for field, value in values.items():
            if isinstance(value, int | float):
                self._recent.setdefault(field, deque(maxlen=_RECENT)).append(float(value))


_SHOWN = (("reward", "reward"), ("entropy", "entropy"), ("log p", "logprob"), ("KL", "kl_ref"))


def passes(record: dict[str, Any]) -> str:
    """Pass@1 and Pass@max-k of an evaluation, with intervals."""
    curve = record.get("pass_at_k") or {}
    ks = sorted(curve, key=int)
    parts = []
    for k in dict.fromkeys([*ks[:1], *ks[-1:]]):
        mean, low, high = (100 * v for v in curve[k])
        parts.append(f"Pass@{k} {mean:.1f} % [{low:.1f}, {high:.1f}]")
    return "  ".join(parts)


def show(value: float | None) -> str:
    """Three figures."""
    return "-" if value is None else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
