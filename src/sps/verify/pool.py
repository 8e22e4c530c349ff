"""Judges in worker processes that can be killed.

    submit -> queue -> manager thread -> worker processes -> futures

A worker gets a few samples at a time and answers one by one, so it is always known which sample
it is at. When that one takes too long the worker is killed, the sample is a 'timeout', the rest of
its batch goes back to the head of the queue, and a new worker starts. A worker that dies, or that
sends anything but the reply it owes, makes it a 'crashed'. One whose memory is used up is replaced,
and its sample judged again by the new one, once. A pool that cannot go on is no verdict on what
waits: those futures hold a RunFailed.

What a worker may do is in sandbox.py, what it may say in wire.py.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import sps
from sps.errors import RunFailed
from sps.types import Problem, Verdict
from sps.verify import wire
from sps.verify.processes import end_all

_GRACE = 1.0  # seconds after its limit that a worker gets to interrupt itself
_STARTING = 120.0  # seconds that a worker may take to import its judge
_FAILED_STARTS = 3  # in a row, before the pool gives up
# What a worker sees of the environment. Not all of it: there may be passwords and keys in it.
_KEPT = ("PATH", "HOME", "LANG", "LC_", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV")
_KERNEL = True  # whether workers ask for the list of system calls; tests say no


@dataclass
class _Job:
    number: int  # its reply must name it
    request: bytes
    future: Future[Verdict]
    again: bool = False  # it was too much for one worker, and goes to a new one


@dataclass
class _Worker:
    process: subprocess.Popen
    mark: str  # in the environment of all its processes
    stdin: IO[bytes]
    stdout: IO[bytes]
    deadline: float  # for the sample it is at, or for its start
    ready: bool = False
    new: bool = True  # no sample was sent to it yet
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    batch: deque[_Job] = field(default_factory=deque)  # the first is the one it is at
    buffer: bytearray = field(default_factory=bytearray)


class VerifierPool:
    """A Verifier over processes; `judge` names a factory, `package.module:function`."""

    def __init__(
        self,
        judge: str,
        options: dict[str, Any] | None = None,
        *,
        workers: int = 0,  # 0: one a core
        time_limit: float = 6.0,  # seconds a sample
        batch: int = 16,  # samples sent to a worker at once
        pending: int = 4096,  # samples that may wait; submit blocks above that
        memory_mb: int = 2048,  # of address space a worker; 0: no limit
        fresh: bool = False,  # a new process an answer: for judges that evaluate what they read
        locked: bool = True,  # in the sandbox; else with our rights, memory and environment
    ):
        self.time_limit, self.batch, self.locked = time_limit, batch, locked
        self.memory_mb = memory_mb if locked else 0
        self._settings = json.dumps(
            {
                "judge": judge,
                "options": options or {},
                "limit": time_limit,
                "memory_mb": self.memory_mb,
                "fresh": fresh,
                "locked": locked,
                "kernel": _KERNEL,
                "parent": os.getpid(),
            }
        )
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # on this machine, each with a pool
        self._size = workers or max(1, (os.cpu_count() or 1) // ranks)
        self._queue: deque[_Job] = deque()
        self._again: deque[_Job] = deque()  # for new workers
        self._lock = threading.Lock()
        self._room = threading.Semaphore(pending)
        self._closing = False
        self._failure = ""
        self._failed_starts = 0
        self._workers: list[_Worker] = []
        self._select = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        # Every worker is started by this one thread: on Linux a worker dies with the thread that
        # started it, so it must be one that lives as long as the pool.
        self._thread = threading.Thread(target=self._run, name="verifier-pool", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, problem: Problem, text: str, finished: bool) -> Future[Verdict]:
        """Queue one sample; waits while the queue is full.

        The future holds a verdict, or a RunFailed where the pool itself has failed.
        """
        number = secrets.randbits(53)  # a guess at the next one is not right
        job = _Job(number, wire.request(number, problem, text, finished), Future())
        self._room.acquire()
        with self._lock:
            if self._failure or self._closing:
                self._room.release()
                raise RunFailed(self._failure or "the verifier pool is closed")
            self._queue.append(job)
        self._wake()
        return job.future

    def close(self) -> None:
        """End every worker; samples still waiting are 'crashed', so nobody waits for ever."""
        atexit.unregister(self.close)
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake()
        self._thread.join()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wake(self) -> None:
        with self._lock, suppress(OSError):  # a full pipe wakes just as well
            if self._wake_write >= 0:
                os.write(self._wake_write, b"x")

    def _run(self) -> None:
        try:
            self._select.register(self._wake_read, selectors.EVENT_READ, None)
            for _ in range(self._size):
                self._start()
            while not self._closing and not self._failure:
                self._turn()
        except Exception as error:  # our own fault, but whoever waits must hear of it
            self._failure = f"the verifier pool failed: {type(error).__name__}: {error}"
        finally:
            self._shut()

    def _turn(self) -> None:
        """Wait for something, take what came, see to the late ones, hand out work."""
        deadlines = [w.deadline for w in self._workers if w.batch or not w.ready]
        wait = min(deadlines) - time.monotonic() if deadlines else None
        for key, _ in self._select.select(None if wait is None else max(0.0, wait)):
            if key.data is None:
                while _drain(self._wake_read):
                    pass
            elif key.data not in self._workers:
                pass  # ended by what came before it in this turn
            elif key.fileobj is key.data.stdin:
                self._send(key.data)
            else:
                self._hear(key.data)
        now = time.monotonic()
        for worker in [w for w in self._workers if (w.batch or not w.ready) and now > w.deadline]:
            self._hear(worker)  # the answer may lie in the pipe while we were held up
            if worker in self._workers and worker.deadline < now:
                self._late(worker)
        self._hand_out()

    def _start(self) -> None:
        mark = f"SPS_WORKER={secrets.token_hex(16)}"
        process = subprocess.Popen(
            [sys.executable, "-m", "sps.verify.worker", self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(mark, self.locked),
            bufsize=0,
            start_new_session=True,  # a group of its own, so that all of it can be ended
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + _STARTING
        worker = _Worker(process, mark, process.stdin, process.stdout, deadline)
        self._workers.append(worker)
        self._select.register(worker.stdout, selectors.EVENT_READ, worker)

    def _hear(self, worker: _Worker) -> None:
        """Take the replies that have come; an end of the stream is the worker's death."""
        while worker in self._workers:
            try:
                part = os.read(worker.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not part:
                self._lost(worker)
                return
            worker.buffer += part
            try:
                for message in wire.replies(worker.buffer):
                    self._take(worker, message)
                    if worker not in self._workers:
                        return
            except wire.Malformed as error:
                self._replace(worker, _crashed(f"the verifier's worker sent {error}"))

    def _take(self, worker: _Worker, message: wire.Reply) -> None:
        """One reply; one that is not due is as malformed as one that cannot be read."""
        due = worker.batch[0].number if worker.batch else None
        match message:
            case wire.Judged(sample, verdict) if sample == due:
                self._settle(worker.batch.popleft(), verdict)
                worker.deadline = time.monotonic() + self.time_limit + _GRACE
            case wire.Full(sample) if sample == due:
                self._full(worker)
            case wire.Ready() if not worker.ready:
                worker.ready, self._failed_starts = True, 0
            case wire.Failed(why) if not worker.ready:
                self._failure = f"the verifier cannot start: {why}"
            case _:
                raise wire.Malformed("a reply that was not due")

    def _full(self, worker: _Worker) -> None:
        """The memory is used up: the sample gets a new worker; if that fails too, it is why."""
        job = worker.batch[0]
        if job.again:
            why = f"MemoryError: more than the {self.memory_mb} MB that a worker may use"
            self._replace(worker, _crashed(why))
        else:
            job.again = True
            self._again.append(worker.batch.popleft())
            self._replace(worker)

    def _lost(self, worker: _Worker) -> None:
        self._end(worker)
        code = worker.process.returncode
        why = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._replace(worker, _crashed(f"the verifier's worker was {why}"))

    def _late(self, worker: _Worker) -> None:
        limit = f"no verdict within {self.time_limit:g} s; its worker was killed"
        self._replace(worker, Verdict("timeout", 0.0, limit))

    def _replace(self, worker: _Worker, verdict: Verdict | None = None) -> None:
        """Settle the sample the worker was at, put the rest back, and start another worker."""
        self._end(worker)
        if worker.batch and verdict:
            self._settle(worker.batch.popleft(), verdict)
        self._put_back(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS and verdict:
                self._failure = self._failure or f"the verifier cannot start: {verdict.detail}"
        if not self._failure:
            self._start()

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            self._queue.extendleft(reversed(worker.batch))
        worker.batch.clear()

    def _end(self, worker: _Worker) -> None:
        """Kill all its processes; it is a worker no more."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        self._select.unregister(worker.stdout)
        if worker.unsent:
            self._select.unregister(worker.stdin)
        end_all(worker.process, worker.mark)
        for pipe in (worker.stdin, worker.stdout):
            with suppress(OSError):  # unsent bytes to a dead process
                pipe.close()

    def _hand_out(self) -> None:
        for worker in [w for w in self._workers if w.ready and not w.batch]:
            if worker.new and self._again:
                worker.batch.append(self._again.popleft())
            with self._lock:
                # A share of the queue, so that the last samples are spread over all workers.
                count = min(self.batch, -(-len(self._queue) // (2 * self._size)))
                worker.batch.extend(self._queue.popleft() for _ in range(count))
            if worker.batch:
                worker.new = False
                worker.deadline = time.monotonic() + self.time_limit + _GRACE
                worker.unsent = memoryview(b"".join(job.request for job in worker.batch))
                self._select.register(worker.stdin, selectors.EVENT_WRITE, worker)
                self._send(worker)

    def _send(self, worker: _Worker) -> None:
        """As much as the pipe takes; nobody waits for a worker that does not read."""
        try:
            worker.unsent = worker.unsent[_write(worker.stdin.fileno(), worker.unsent) :]
        except OSError:  # it died before it took them, so none of them is why
            self._put_back(worker)
            self._lost(worker)
            return
        if not worker.unsent:
            self._select.unregister(worker.stdin)

    def _settle(self, job: _Job, verdict: Verdict) -> None:
        self._room.release()
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(verdict)

    def _give_up(self, job: _Job) -> None:
        self._room.release()
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(RunFailed(self._failure))

    def _shut(self) -> None:
        closed = Verdict("crashed", 0.0, "the verifier pool was closed before this was judged")
        with self._lock:
            self._closing = True
            left = [job for w in self._workers for job in w.batch] + [*self._again, *self._queue]
            self._queue.clear()
        for worker in list(self._workers):
            self._end(worker)
        for job in left:
            if self._failure:
                self._give_up(job)
            else:
                self._settle(job, closed)
        self._select.close()
        with self._lock:  # the numbers may soon belong to other files: nobody may wake us any more
            read, write, self._wake_write = self._wake_read, self._wake_write, -1
        os.close(read)
        os.close(write)


def _crashed(why: str) -> Verdict:
    return Verdict("crashed", 0.0, why)


def _environment(mark: str, locked: bool = True) -> dict[str, str]:
    root = str(Path(sps.__file__).parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    seen = _KEPT if locked else ("",)
    kept = {name: value for name, value in os.environ.items() if name.startswith(seen)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    name, _, value = mark.partition("=")
    return {**kept, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **threads, name: value}


def _write(fd: int, data: memoryview) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""
