"""One worker process of the pool: reads samples on standard input, answers one by one.

Run as `python -m sps.verify.worker SETTINGS`. It imports the judge and nothing of the trainer: no
torch, no CUDA, no threads. It ends when its input ends, and dies with its parent. Once the judge is
loaded it can write no file, start no process and reach no network (sandbox.py); with `fresh` that
goes for the children in which it has every answer judged (apart.py). A judge of the user's own may
ask to go without (`locked`).
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from sps.types import Problem, Verdict
from sps.verify import sandbox, wire
from sps.verify.apart import judge_apart
from sps.verify.limit import TimeIsUp, time_limit

Judge = Callable[[Problem, str, bool], Verdict]
# Of its memory; with more in use, a worker that judges on may fail at answers that need little.
_FULL = 0.75


def load_judge(spec: str, options: dict[str, Any]) -> Judge:
    """`package.module:factory` called with options."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


def judge_one(judge: Judge, limit: float, problem: Problem, text: str, finished: bool) -> Verdict:
    """A verdict whatever happens, short of the death of the process; MemoryError is passed on."""
    try:
        with time_limit(limit):
            return judge(problem, text, finished)
    except TimeIsUp:
        return Verdict("timeout", 0.0, f"no verdict within {limit:g} s")
    except MemoryError:
        raise
    except Exception as error:
        return Verdict("crashed", 0.0, f"{type(error).__name__}: {error}")


class Memory:
    """How much of its address space this process uses."""

    def __init__(self, cap: int):
        self.cap = cap
        self._file: BinaryIO | None = None
        with suppress(OSError):  # Linux alone has it
            self._file = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115
        self._page = os.sysconf("SC_PAGE_SIZE")

    def used(self) -> int:
        """Bytes of address space; 0 where that cannot be known."""
        if self._file is None:
            return 0
        return int(os.pread(self._file.fileno(), 64, 0).split()[0]) * self._page

    def full(self) -> bool:
        """Whether it is time for another worker."""
        return bool(self.cap) and self.used() > _FULL * self.cap


def _private_output() -> BinaryIO:
    """The pipe to the parent; what libraries print goes nowhere."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return out


def main() -> None:
    """Judge until the input ends."""
    settings = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # for the parent, which then ends us with SIGKILL
    sandbox.die_with(settings["parent"])
    out = _private_output()
    logging.disable(logging.CRITICAL)
    memory = Memory(settings["memory_mb"] * 2**20)
    try:
        judge = load_judge(settings["judge"], settings["options"])
        if memory.full():
            used, cap = memory.used() >> 20, settings["memory_mb"]
            raise MemoryError(f"the judge alone takes {used} MB of the {cap} MB a worker may use")
    except BaseException as error:
        out.write(wire.reply(wire.Failed(f"{type(error).__name__}: {error}")))
        return
    if settings["fresh"]:
        gc.freeze()  # the children share these pages as long as no collection writes to them
    elif settings["locked"]:
        sandbox.enter(memory.cap, kernel=settings["kernel"])
    out.write(wire.reply(wire.Ready()))
    while head := sys.stdin.buffer.read(4):
        body = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
        out.write(wire.reply(_judge(judge, settings, memory, body)))


def _judge(judge: Judge, settings: dict[str, Any], memory: Memory, body: bytes) -> wire.Reply:
    number, problem, text, finished = wire.read_request(body)
    if settings["fresh"]:
        verdict = judge_apart(
            judge, settings["limit"], memory.cap, settings["kernel"], (problem, text, finished)
        )
        return wire.Judged(number, verdict)
    if memory.full():
        return wire.Full(number)
    try:
        return wire.Judged(number, judge_one(judge, settings["limit"], problem, text, finished))
    except MemoryError:
        return wire.Full(number)


if __name__ == "__main__":
    main()
