"""Ending a process and all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_ROUNDS = 10  # of looking for processes that were being started while others were killed
_A_START = 0.005  # seconds between two looks at a process that is becoming another program


def end_all(process: subprocess.Popen, mark: str) -> None:
    """Kill a process that leads its group, the group, and every process that carries its mark.

    A process can leave its group, and lose its parent; it keeps the environment it started with.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
    process.kill()
    process.wait()
    for _ in range(_ROUNDS):
        left, starting = _marked(mark.encode())
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left and not starting:
            return
        if starting:
            time.sleep(_A_START)


def _marked(mark: bytes) -> tuple[list[int], bool]:
    """Living processes with this entry in their environment, and whether there are some that have
    none to be read yet; on Linux alone can it be read."""
    found, starting = [], False
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = _environment(folder)
            if mark in environment.split(b"\0"):
                found.append(int(folder.name))
            # During execve it is empty. A thread of the kernel, or a dead process, has no program.
            starting |= not environment and bool(os.readlink(folder / "exe"))
    return found, starting


def _environment(folder: Path) -> bytes:
    return (folder / "environ").read_bytes()
