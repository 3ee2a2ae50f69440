"""What the workers write to: one value that refuses a writer whose fencing token is too old.

It stands for the row in a database that the lock protects. It lives in the arena, and so is never
killed or stopped in the middle of a write, and writes its own record of what it has accepted.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from pathlib import Path
from typing import Self

from .history import Journal


class Register:
    """Accepts a write unless its token is smaller than one that it has seen.

    A writer without a token can't be told from any other: it is accepted, as a database would.
    """

    def __init__(self) -> None:
        self._seen = 0

    def accepts(self, token: int | None) -> bool:
        if token is None:
            return True
        if token < self._seen:
            return False
        self._seen = token
        return True


class RegisterServer:
    """A register for other processes, at a Unix socket. Each write is recorded in `journal`."""

    def __init__(self, path: Path, journal: Journal) -> None:
        register, one_at_a_time = Register(), threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    write = json.loads(line)
                    with one_at_a_time:
                        accepted = register.accepts(write.pop("token"))
                        journal.write("write", accepted=accepted, **write)
                    self.wfile.write(b"yes\n" if accepted else b"no\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        # A writer was killed: no news.
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Writer:
    """A connection to the register."""

    def __init__(self, path: Path, who: str) -> None:
        self._who = who
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    def write(self, number: int, token: int | None) -> bool:
        """Write, as attempt `number`. False: refused."""
        message = {"writer": self._who, "number": number, "token": token}
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        return self._answers.readline() == b"yes\n"

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
