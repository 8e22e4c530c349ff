"""One worker process of the pool: reads batches on standard input, answers sample by sample.

Run as `python -m sps.verify.worker SETTINGS`. It imports the judge and nothing of the trainer: no
torch, no CUDA, no threads. It ends when its input ends, and dies with its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sps.limit import TimeIsUp, time_limit
from sps.types import Problem, Verdict

Judge = Callable[[Problem, str, bool], Verdict]
READY = "ready"
_LONGEST = 500  # characters of an answer or a detail that are sent back


def pack(message: Any) -> bytes:
    """A message as it goes through a pipe: length, then content."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return struct.pack("<I", len(body)) + body


def unpack(buffer: bytearray) -> list[Any]:
    """Take every whole message from the front of a buffer."""
    messages = []
    while len(buffer) >= 4:
        size = struct.unpack_from("<I", buffer)[0]
        if len(buffer) < 4 + size:
            break
        messages.append(pickle.loads(bytes(buffer[4 : 4 + size])))
        del buffer[: 4 + size]
    return messages


def load_judge(spec: str, options: dict[str, Any]) -> Judge:
    """`package.module:factory` called with options."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


def judge_one(judge: Judge, limit: float, problem: Problem, text: str, finished: bool) -> Verdict:
    """A verdict whatever happens, short of the death of the process."""
    try:
        with time_limit(limit):
            verdict = judge(problem, text, finished)
    except TimeIsUp:
        return Verdict("timeout", 0.0, f"no verdict within {limit:g} s")
    except Exception as error:
        return Verdict("crashed", 0.0, f"{type(error).__name__}: {error}"[:_LONGEST])
    return Verdict(
        verdict.kind, verdict.reward, verdict.detail[:_LONGEST], verdict.answer[:_LONGEST]
    )


def _die_with(parent: int) -> None:
    """Never outlive the parent, however it ends and whatever we are doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def _private_output() -> BinaryIO:
    """The pipe to the parent; what libraries print goes nowhere."""
    out = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return out


def main() -> None:
    """Judge until the input ends."""
    settings = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # for the parent, which then ends us with SIGKILL
    _die_with(settings["parent"])
    out = _private_output()
    logging.disable(logging.CRITICAL)
    try:
        judge = load_judge(settings["judge"], settings["options"])
    except BaseException as error:
        out.write(pack(f"{type(error).__name__}: {error}"))
        out.flush()
        return
    cap = settings["memory_mb"] * 2**20
    if cap:
        resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
    out.write(pack(READY))
    out.flush()
    while head := sys.stdin.buffer.read(4):
        batch = pickle.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))
        for problem, text, finished in batch:
            out.write(pack(judge_one(judge, settings["limit"], problem, text, finished)))
            out.flush()


if __name__ == "__main__":
    main()
