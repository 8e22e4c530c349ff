"""One answer, one process: for judges that evaluate what a model wrote.

The worker never judges. For every answer it forks a child that holds nothing but the judge, the
sample and one end of a pipe, locks it in (sandbox.py), and takes one reply from it. So nothing an
answer does to the judge, to modules or to memory is there when the next one is judged, and a child
that hangs, dies, floods the pipe or says anything but one well-formed reply costs its own answer.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable

from sps.types import Problem, Verdict
from sps.verify import sandbox, wire

Judge = Callable[[Problem, str, bool], Verdict]
_REPLY = 3  # the number of the one pipe a child holds


def judge_apart(
    judge: Judge, limit: float, memory: int, kernel: bool, sample: tuple[Problem, str, bool]
) -> Verdict:
    """The verdict of a child that lives for this sample alone."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _close_all_but(writing)
            sandbox.die_with(parent)
            # Time is up by the clock, see below; this is for a child whose parent was stopped.
            sandbox.enter(memory, math.ceil(limit) + 2, kernel=kernel, hook=True)
            _answer(judge, sample)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        body = _collect(reading, time.monotonic() + limit)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # not yet waited for, so the number is still its own
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if body is None:
        return Verdict("timeout", 0.0, f"no verdict within {limit:g} s; its process was killed")
    return _verdict(body, code)


def _close_all_but(pipe: int) -> None:
    """The worker's own pipes are not for a child: with them it could answer for others."""
    os.dup2(1, 0)  # the worker's output goes nowhere; now so does the input
    os.dup2(pipe, _REPLY)
    os.closerange(_REPLY + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20))


def _answer(judge: Judge, sample: tuple[Problem, str, bool]) -> None:
    try:
        verdict = judge(*sample)
    except BaseException as error:  # SystemExit too: it is the answer that exits, not we
        verdict = Verdict("crashed", 0.0, f"{type(error).__name__}: {error}")
    data = wire.reply(wire.Judged(0, verdict))
    while data:
        data = data[os.write(_REPLY, data) :]
    os._exit(0)


def _collect(pipe: int, deadline: float) -> bytearray | None:
    """All that comes until the pipe is closed, or a little more than a reply can be; None: late."""
    body = bytearray()
    while len(body) <= 4 + wire.LARGEST:
        wait = deadline - time.monotonic()
        if wait <= 0 or not select.select([pipe], [], [], wait)[0]:
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            break
        body += part
    return body


def _verdict(body: bytearray, code: int) -> Verdict:
    """One whole reply and a clean end, or 'crashed'."""
    if code == sandbox.REFUSED:
        return Verdict("crashed", 0.0, "the answer reached for what no answer needs")
    try:
        found = list(wire.replies(body))
    except wire.Malformed as error:
        return Verdict("crashed", 0.0, f"the process of this answer sent {error}")
    if len(found) == 1 and isinstance(found[0], wire.Judged) and not body and code == 0:
        return found[0].verdict
    why = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return Verdict("crashed", 0.0, f"the process of this answer {why} and gave no one verdict")
