"""Ending a process and all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_ROUNDS = 5  # of looking for processes that were being started while others were killed


def end_all(process: subprocess.Popen, mark: str) -> None:
    """Kill a process that leads its group, the group, and every process that carries its mark.

    A process can leave its group, and lose its parent; it keeps the environment it started with.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
    process.kill()
    process.wait()
    for _ in range(_ROUNDS):
        left = _marked(mark.encode())
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return


def _marked(mark: bytes) -> list[int]:
    """Living processes with this entry in their environment; on Linux alone can it be read."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
