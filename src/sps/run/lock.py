"""One job a folder: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from sps.errors import UserError
from sps.run.folder import LOCK

_held: dict[Path, int] = {}
# POSIX locks, not flock: a forked child does not inherit them, and NFS carries them. Their trap is
# that closing any descriptor of the file lets go: inside this process nobody else may open it.


def hold(folder: Path, doing: str) -> None:
    """Take a folder for this process, until `release` or its end; another holder is named."""
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / LOCK).resolve()
    if path in _held:
        return
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(number, 4096, 0)
        os.close(number)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UserError(f"{folder}: in use by {_name(holder)}. {_CURE}") from None
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            text = "this storage knows no locks; see that no other job uses the folder"
            sys.stderr.write(f"warning: {folder}: {text}\n")
            return
        raise
    _held[path] = number
    who = {"doing": doing, "host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
    os.ftruncate(number, 0)
    os.pwrite(number, json.dumps(who).encode(), 0)


_CURE = "Wait for it, or stop it; or choose another folder with --out"


def release(folder: Path) -> None:
    """Let go of a folder that this process may hold."""
    number = _held.pop((folder / LOCK).resolve(), None)
    if number is not None:
        os.ftruncate(number, 0)
        os.close(number)


def _name(holder: bytes) -> str:
    try:
        who = json.loads(holder)
        return f"{who['doing']} (process {who['pid']} on {who['host']}, since {who['since']})"
    except (ValueError, KeyError, TypeError):  # it has not written its name yet
        return "another process"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
