"""Who may talk to the standalone page: requests for this computer, from the page itself, and with the password.

A web page of someone else can send requests to any address that the browser reaches, and can give its own name the
address of this computer (DNS rebinding). Both are told by the headers `Host` and `Origin`, which it can't choose.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse

from ...train_utils import format_count

MAX_BODY_BYTES, MAX_UPLOAD_BYTES = 64_000_000, 4_000_000_000
LOGIN = "/login"
# What the login page needs, and what Gradio asks for at its start. Gradio asks for the password itself, but not on
# every path: version 6.31 answers /cancel and /heartbeat without it.
OPEN_PATHS = ("/", LOGIN, "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/startup-events")
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")
API_PREFIX = "/gradio_api"  # Gradio 6 has its routes with and without it
# Wrong passwords in a minute: from one address, and from all but this computer together.
GUESSES_OF_ONE, GUESSES_OF_ALL, SECONDS = 5, 60, 60.0


@dataclass
class Guesses:
    """The wrong passwords of the last minute: a few from each address, and a bearable number in all."""

    clock: Callable[[], float] = time.monotonic
    recent: list[tuple[float, str]] = field(default_factory=list)

    def count(self, address: str) -> None:
        """Count a guess before it is looked at, so that many at once don't pass; it must not come too soon."""
        now = self.clock()
        self.recent = [guess for guess in self.recent if guess[0] > now - SECONDS]
        own = [moment for moment, other in self.recent if other == address]
        waits = [own[0]] if len(own) >= GUESSES_OF_ONE else []
        if len(self.recent) >= GUESSES_OF_ALL and not is_address(address, loopback=True):
            waits.append(self.recent[0][0])
        if waits:
            seconds = format_count(int(max(waits) + SECONDS - now) + 1, "second")
            raise HTTPException(429, f"Too many wrong passwords. Try again in {seconds}.")
        self.recent.append((now, address))

    def forget(self, address: str) -> None:
        """Forget the guesses of an address that gave the right password."""
        self.recent = [guess for guess in self.recent if guess[1] != address]


class PageGuard:
    """Middleware that looks at every request before Gradio does."""

    def __init__(self, app: Any, names: Collection[str], *, listens: bool, asks_password: bool) -> None:
        self._app, self._listens, self._asks_password = app, listens, asks_password
        self._names, self._guesses = {name.lower() for name in names}, Guesses()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        path = scope["path"].removeprefix(API_PREFIX) or "/"
        is_login = path.rstrip("/") == LOGIN and scope.get("method") == "POST"
        address = request.client.host if request.client else ""
        try:
            self._check(request, path)
            if self._asks_password and is_login:
                self._guesses.count(address)
        except HTTPException as refusal:
            await PlainTextResponse(refusal.detail, refusal.status_code)(scope, receive, send)
            return

        async def watched_send(message: MutableMapping[str, Any]) -> None:
            if is_login and message["type"] == "http.response.start" and message["status"] < 400:
                self._guesses.forget(address)
            await send(message)

        await self._app(scope, receive, watched_send)

    def _check(self, request: HTTPConnection, path: str) -> None:
        """Raise an HTTPException unless the request is for this computer, from the page, bearable, and allowed."""
        headers = request.headers
        host = headers.get("host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:  # such as half an IPv6 address
            name = ""
        # An address in numbers can't be given by a foreign name server, so it is safe where others may come.
        # Starlette's own check of the host knows no such rule, and takes IPv6 addresses for wrong.
        if name not in self._names and not is_address(name, loopback=not self._listens):
            where = f"this page can't be opened at the address {host[:100]!r}."
            raise HTTPException(403, f"{where} Open the URL that the console shows.")
        # A browser says that another site sent it; a link on another site to the page itself is fine.
        is_link = request.scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link
        if is_foreign or urlsplit(headers.get("origin", f"//{host}")).netloc != host:
            raise HTTPException(
                403, "This request comes from another website. Open the URL that the console shows."
            )
        limit, remedy = MAX_BODY_BYTES, "A request can be at most {:,} bytes. Send less data."
        if path.rstrip("/") == "/upload":
            limit = MAX_UPLOAD_BYTES
            remedy = "An upload can be at most {:,} bytes. Copy larger files into the folder training/datasets."
        # Browsers state the length of a body; one without it could fill the memory.
        length = headers.get("content-length", "0")
        has_length = length.isdecimal() and len(length) < 19 and "transfer-encoding" not in headers
        if not has_length or int(length) > limit:
            raise HTTPException(413, remedy.format(limit))
        is_open = (path.rstrip("/") or "/") in OPEN_PATHS
        is_open = is_open or (path.startswith(OPEN_FOLDERS) and ".." not in path)
        if self._asks_password and not is_open:
            # The cookie that Gradio gave for the password.
            gradio = request.scope["app"]
            names = (f"access-token-{gradio.cookie_id}", f"access-token-unsecure-{gradio.cookie_id}")
            if not any(request.cookies.get(name) in gradio.tokens for name in names):
                raise HTTPException(401, "Enter the password on the page first.")


def guard_middleware(*, listens: bool, asks_password: bool, names: Collection[str] = ()) -> Middleware:
    """The guard for Gradio's `app_kwargs`; `names` are more names of this computer."""
    own = {"localhost", *names}
    if listens:
        host = socket.gethostname()
        own |= {host, f"{host}.local", socket.getfqdn()}
    return Middleware(PageGuard, names=own, listens=listens, asks_password=asks_password)


def is_address(name: str, *, loopback: bool) -> bool:
    """Whether a name is an IP address, and if `loopback` one of this computer itself."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not loopback
