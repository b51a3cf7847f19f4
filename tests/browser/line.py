"""A TCP proxy between browser and server that can be cut, as when a laptop lid is closed."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy(socketserver.ThreadingTCPServer):
    """Forwards all data between its own port and a server."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.far_end = ("127.0.0.1", urlsplit(url).port)
        self.open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def cut(self) -> int:
        """Close all open connections and return their number; new connections work."""
        connections = list(self.open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(connections)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: broken connections are the purpose of this proxy."""


class _Connection(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        near = self.request
        with socket.create_connection(self.server.far_end) as far:
            self.server.open |= {near, far}
            back = threading.Thread(target=_forward, args=(far, near), daemon=True)
            back.start()
            _forward(near, far)
            back.join()
            self.server.open -= {near, far}


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            proxy.cut()
