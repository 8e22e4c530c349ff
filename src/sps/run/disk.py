"""Files that outlive a power cut, and what to say when a disk does not take them."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_PIECE = 2**26  # bytes hashed at once, several pieces in parallel
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BROKEN = {errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO}
_REFUSED = {errno.EACCES, errno.EPERM}  # in mid-run: a ticket that has run out, a changed mode


def write_whole(path: Path, text: str | bytes) -> None:
    """Put a text in a file's place; after a crash or a power cut it is the old one or the new."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    put(draft, path)


def put(draft: Path, path: Path) -> None:
    """Rename a draft to its own name, on the disk: what it replaces may go afterwards."""
    sync(draft)
    draft.rename(path)
    sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Around a library that writes a file and does not name it in its errors."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """The same for all that a folder holds, and for itself; nothing if it is not there."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of each file its size and a SHA-256 over those of its pieces: as many cores as there are."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    pieces = [(name, at) for name, size in sizes.items() for at in range(0, size or 1, _PIECE)]

    def digest(piece: tuple[str, int]) -> bytes:
        with (folder / piece[0]).open("rb") as file:
            file.seek(piece[1])
            return hashlib.sha256(file.read(_PIECE)).digest()

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        found = list(pool.map(digest, pieces))
    joined = {name: hashlib.sha256() for name in sizes}
    for (name, _), part in zip(pieces, found, strict=True):
        joined[name].update(part)
    return {name: f"{size} {joined[name].hexdigest()}" for name, size in sizes.items()}


def disk_failure(error: BaseException) -> str:
    """What to say of an error of the disk, with what to do; empty for any other error."""
    number = getattr(error, "errno", None)
    if number not in _FULL | _BROKEN | _REFUSED:
        return ""
    why = "the disk is full, or a quota is" if number in _FULL else "the disk cannot be used"
    why = "permission is missing" if number in _REFUSED else why
    return unwritten(getattr(error, "filename", None), f"{why}: {error}")


def unwritten(path: object, why: str) -> str:
    """A file could not be written in the middle of a run: why, and how to go on."""
    where = f"{path}: " if path else ""
    return (
        f"{where}cannot be written ({' '.join(why.split())}). Free space, or see to the disk, then "
        "go on with --resume (sps train) or the same command; nothing is damaged"
    )
