"""Asked to stop in good order: by SIGTERM (a cluster's preemption), SIGUSR1, or after a time.

The loop looks at `Stop.asked` where a run can be cut, and opens a window around long work that
changes no weights: inside it the request takes effect at once.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sps.errors import Stopped, UserError

_ONE = 1.0  # seconds in which several SIGTERM are one: a cluster and a launcher both send it


class Stop:
    """A request to stop; there is none unless `listening` is on."""

    def __init__(self) -> None:
        self.asked = ""  # why
        self._open = False
        self._since = 0.0

    @contextmanager
    def listening(self, after: str = "") -> Iterator[None]:
        """Hear signals, and stop after a time such as 25m where one is given."""
        main = threading.current_thread() is threading.main_thread()  # no other hears signals
        numbers = (signal.SIGTERM, signal.SIGUSR1) if main else ()
        timer = threading.Timer(seconds(after), self._over, (f"--stop-after {after}",))
        before = {number: signal.signal(number, self._hear) for number in numbers}
        timer.daemon = True
        if after:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def window(self, wide: bool = True) -> Iterator[None]:
        """Around work that may be left at any instant; not where other ranks would wait for us."""
        if wide and self.asked:
            self._leave()
        self._open = wide
        try:
            yield
        finally:
            self._open = False

    def _over(self, why: str) -> None:
        self.asked = why
        os.kill(os.getpid(), signal.SIGUSR1)  # signals are heard by the main thread, which works

    def _hear(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if number == signal.SIGTERM:
            if self._since and now - self._since > _ONE:  # the second: end at once
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self._since = self._since or now
        self.asked = self.asked or signal.Signals(number).name
        if self._open:
            self._leave()

    def _leave(self) -> None:
        self._open = False
        how = "the same command goes on (sps train with --resume)"
        raise Stopped(f"stopped ({self.asked}); what has finished is kept, and {how}")


def seconds(text: str) -> float:
    """`90s`, `25m`, `3h` or `1h30m` in seconds; nothing is 0."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    hours, minutes, rest = (int(n or 0) for n in found.groups()) if found else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + rest
    if text and not 0 < total <= threading.TIMEOUT_MAX:
        raise UserError(f"--stop-after {text}: write a time such as 90s, 25m, 3h or 1h30m")
    return float(total)
