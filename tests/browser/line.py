"""The line between a browser and a server, which can be cut, as when a lid is closed and opened again."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK = 65536


class Line(socketserver.ThreadingTCPServer):
    """Passes everything on to a server, both ways, from a port of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.far_end = ("127.0.0.1", urlsplit(url).port)
        self.open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def cut(self) -> int:
        """End every call that is going on, and say how many; new ones get through."""
        calls = list(self.open)
        for call in calls:
            with contextlib.suppress(OSError):
                call.shutdown(socket.SHUT_RDWR)
        return len(calls)

    def handle_error(self, request: object, client_address: object) -> None:
        """A call that breaks off is what this is for."""


class _Call(socketserver.BaseRequestHandler):
    server: Line

    def handle(self) -> None:
        near = self.request
        with socket.create_connection(self.server.far_end) as far:
            self.server.open |= {near, far}
            back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
            back.start()
            _pass_on(near, far)
            back.join()
            self.server.open -= {near, far}


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(CHUNK):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def line_to(url: str) -> Iterator[Line]:
    with Line(url) as line:
        threading.Thread(target=line.serve_forever, daemon=True).start()
        try:
            yield line
        finally:
            line.shutdown()
            line.cut()
