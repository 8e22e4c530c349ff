"""What a process that judges may no longer do, from here on and for good.

Limits of the system hold everywhere. On Linux a list of system calls (seccomp.py) holds whatever
runs, Python or not. Where there is no such list, an audit hook ends the process when Python code
reaches for files to write, programs, processes, the network or foreign functions; that stops what a
model may plausibly write, and not somebody who knows CPython well.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from sps.verify import seccomp

REFUSED = 86  # exit code of a process that its audit hook ended
_FILES = 64  # that may be open at once
_FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove",
    "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.chflags", "os.lchown", "os.utime", "os.setxattr", "os.removexattr",
    "os.putenv", "os.unsetenv", "os.startfile", "subprocess.", "pty.", "socket.", "ctypes.",
    "signal.pthread_kill", "shutil.", "tempfile.", "resource.setrlimit", "resource.prlimit", "gc.",
    "sys._current_frames", "sys.settrace", "sys.setprofile", "sqlite3.", "webbrowser.", "urllib.",
    "http.", "ftplib.", "smtplib.", "code.__new__", "mmap.", "syslog.", "winreg.", "_winapi.",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def die_with(parent: int) -> None:
    """Never outlive the parent, however it ends and whatever we are doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    else:
        threading.Thread(target=_poll, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)


def _poll(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def enter(memory: int = 0, seconds: int = 0, *, kernel: bool = True, hook: bool = False) -> None:
    """Give up what a judge has no use for: new files, programs, processes, the network.

    `memory` in bytes and `seconds` of processor time, 0 for no limit. `hook` asks for the audit
    hook beside the list of system calls, `kernel` says whether to try for the list at all.
    """
    sys.dont_write_bytecode = True
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)  # pipes are no files
    _limit(resource.RLIMIT_NPROC, 0)  # no effect on root, whom the list of calls stops
    _limit(resource.RLIMIT_NOFILE, _FILES)
    if memory:
        _limit(resource.RLIMIT_AS, memory)
    if seconds:
        _limit(resource.RLIMIT_CPU, seconds)
    locked = kernel and seccomp.lock()
    if hook or not locked:
        sys.addaudithook(_guard())


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        if sys.platform == "linux":  # elsewhere some limits exist in name only
            raise


def _guard() -> Any:
    leave, forbidden, writing = os._exit, _FORBIDDEN, _WRITING  # whatever becomes of the modules

    def guard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            name = path if isinstance(path, str | bytes) else ""
            if flags & writing or name[:5] in ("/proc", b"/proc"):
                leave(REFUSED)
        elif event.startswith(forbidden):
            leave(REFUSED)

    return guard
