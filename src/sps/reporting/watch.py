"""The report, live: served on this machine only, and made anew while the run goes on."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sps.errors import UserError
from sps.reporting.page import render
from sps.reporting.study import load_study

_PATIENCE = 20.0  # seconds for asking, and for taking the page
_REST = 5.0  # seconds between two pages, so that a busy run is not slowed by its own report


class LiveReport:
    """The newest page of a folder, and a stamp that changes when there is a newer one."""

    def __init__(self, folder: Path, rest: float = _REST):
        self.folder, self.rest = folder, rest
        self._lock = threading.Lock()
        self._page, self._stamp, self._made = b"", "", 0.0

    def stamp(self) -> str:
        """What the page would be stamped with if it were asked for now."""
        if self._page and time.monotonic() - self._made < self.rest:
            return self._stamp
        return folder_stamp(self.folder)

    def page(self) -> bytes:
        """The page, made anew if the folder has changed."""
        with self._lock:
            stamp = self.stamp()
            if stamp != self._stamp or not self._page:
                html = render(load_study([self.folder]), stamp)
                self._page, self._stamp = html.encode("utf-8"), stamp
                self._made = time.monotonic()
            return self._page


def folder_stamp(folder: Path) -> str:
    """Changes when any record, rollout file or evaluation does."""
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".jsonl", ".json", ".parquet", ".yaml"):
            try:
                found = path.stat()
            except OSError:  # it went away just now; its replacement is seen next time
                continue
            seen.update(f"{path.relative_to(folder)} {found.st_size} {found.st_mtime_ns};".encode())
    return seen.hexdigest()[:16]


class _Patient(BaseHTTPRequestHandler):
    """Who is slow to ask, or to take what was asked for, is left."""

    timeout = _PATIENCE  # seconds without a byte while asking, and in all while taking

    def setup(self) -> None:
        """Also one who asks a byte at a time."""
        super().setup()
        self.late = threading.Timer(_PATIENCE, self._hang_up)
        self.late.daemon = True
        self.late.start()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        """Who asked may have gone at any point, or was left."""
        with contextlib.suppress(OSError):
            super().handle()

    def finish(self) -> None:
        """Whatever came of it."""
        self.late.cancel()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the run."""


def make_server(folder: Path, port: int, rest: float = _REST) -> ThreadingHTTPServer:
    """A server on 127.0.0.1; port 0 takes a free one."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give the folder of a run")
    live = LiveReport(folder, rest)

    class Handler(_Patient):
        """Two pages: the report and its stamp."""

        def do_GET(self) -> None:
            """Answer, if the request was meant for this machine."""
            self.late.cancel()  # making the page may take long
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in ("127.0.0.1", "localhost"):  # a web page elsewhere must not read a run
                self.send_error(403)
            elif self.path in ("/", "/index.html"):
                self._answer(live.page(), "text/html; charset=utf-8")
            elif self.path == "/stamp":
                self._answer(live.stamp().encode(), "text/plain")
            else:
                self.send_error(404)

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(
            f"--port {port}: cannot listen there ({error.strerror}); choose another, or 0 for any"
        ) from None


def watch(run_folder: Path, port: int = 8765, browser: bool = False) -> None:
    """Serve until interrupted."""
    with make_server(Path(run_folder), port) as server:
        if browser:
            webbrowser.open(address(server))
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def address(server: ThreadingHTTPServer) -> str:
    """What to open."""
    return f"http://127.0.0.1:{server.server_address[1]}/"
