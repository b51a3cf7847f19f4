"""Who may talk to the standalone page: requests for this computer, from the page itself, and with the password.

A web page of someone else can send requests to any address that the browser reaches, and can give its own name the
address of this computer (DNS rebinding). Both are told by the headers `Host` and `Origin`, which it can't choose.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from ...train_utils import format_count

MAX_BODY_BYTES, MAX_UPLOAD_BYTES = 64_000_000, 4_000_000_000
UPLOAD = "/upload"
LOGIN = "/login"
# What the login page needs, and what Gradio asks for at its start.
OPEN_PATHS = ("/", LOGIN, "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/startup-events")
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")
API_PREFIX = "/gradio_api"
FREE_GUESSES, FIRST_WAIT, LONGEST_WAIT = 5, 1.0, 30.0
GUESSES_A_MINUTE, MINUTE = 60, 60.0
MAX_ADDRESSES = 1000


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """An answer instead of the page: the status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(text)


@dataclass
class Guesses:
    """Wrong passwords, by address and in all; each makes the next one wait."""

    clock: Callable[[], float] = time.monotonic
    by_address: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    recent: list[float] = field(default_factory=list)

    def count(self, address: str) -> None:
        """Count a guess before it is looked at, so that many at once don't pass; Refusal if it comes too soon."""
        now = self.clock()
        number, last = self.by_address.get(address, (0, now))
        too_many = number - FREE_GUESSES
        wait = last + (min(FIRST_WAIT * 2.0 ** min(too_many, 10), LONGEST_WAIT) if too_many >= 0 else 0.0) - now
        self.recent = [moment for moment in self.recent if moment > now - MINUTE]
        if len(self.recent) >= GUESSES_A_MINUTE and not _is_loopback(address):
            wait = max(wait, self.recent[0] + MINUTE - now)
        if wait > 0:
            raise Refusal(429, f"Too many wrong passwords. Try again in {format_count(int(wait) + 1, 'second')}.")
        self.recent.append(now)
        self.by_address[address] = (number + 1, now)
        self.by_address.move_to_end(address)
        while len(self.by_address) > MAX_ADDRESSES:
            self.by_address.popitem(last=False)

    def forget(self, address: str) -> None:
        """Forget the guesses of an address that gave the right password."""
        if self.by_address.pop(address, None) and self.recent:
            self.recent.pop()


class PageGuard:
    """Middleware that looks at every request before Gradio does."""

    def __init__(self, app: Any, names: Collection[str], *, listens: bool, asks_password: bool) -> None:
        self._app, self._listens, self._asks_password = app, listens, asks_password
        self._names, self._guesses = {name.lower() for name in names}, Guesses()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            if not self._is_this_computer(_host_name(host)):
                where = f"this page can't be opened at the address {host[:100]!r}."
                raise Refusal(403, f"{where} Open the URL that the console shows.")
            origin = headers.get("origin")
            if _is_cross_site(scope, headers) or (origin is not None and urlsplit(origin).netloc != host):
                raise Refusal(403, "This request comes from another website. Open the URL that the console shows.")
            path = _api_path(scope)
            length = headers.get("content-length", "0")
            is_number = length.isdecimal() and len(length) < 19
            if not is_number or int(length) > _max_body(path):
                raise Refusal(413, _too_large(path))
            is_open = (path.rstrip("/") or "/") in OPEN_PATHS
            is_open = is_open or (path.startswith(OPEN_FOLDERS) and ".." not in path)
            if self._asks_password and not is_open and not _is_logged_in(scope, headers):
                raise Refusal(401, "Enter the password on the page first.")
            if self._is_guess(scope):
                self._guesses.count(_address(scope))
        except Refusal as refusal:
            await PlainTextResponse(refusal.text, refusal.status)(scope, receive, send)
            return
        body = LimitedBody(receive, _max_body(_api_path(scope)))
        await self._app(scope, body, self._watch_login(scope, send))

    def _is_this_computer(self, name: str) -> bool:
        """An address in numbers can't be given by a foreign name server, so it is safe where others may come."""
        if name in self._names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self._listens
        except ValueError:
            return False

    def _is_guess(self, scope: MutableMapping[str, Any]) -> bool:
        is_login = _api_path(scope).rstrip("/") == LOGIN
        return self._asks_password and is_login and scope.get("method") == "POST"

    def _watch_login(self, scope: MutableMapping[str, Any], send: Any) -> Any:
        if not self._is_guess(scope):
            return send

        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._guesses.forget(_address(scope))
            await send(message)

        return watched


class LimitedBody:
    """The body of a request without a stated length, up to the limit; then it looks cut off."""

    def __init__(self, receive: Any, limit: int) -> None:
        self._receive, self._limit, self._size = receive, limit, 0

    async def __call__(self) -> Any:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self._size > self._limit else message


def guard_middleware(*, listens: bool, asks_password: bool, names: Collection[str] = ()) -> Middleware:
    """The guard for Gradio's `app_kwargs`; `names` are more names of this computer."""
    own = {"localhost", *names}
    if listens:
        host = socket.gethostname()
        own |= {host, f"{host}.local", socket.getfqdn()}
    return Middleware(PageGuard, names=own, listens=listens, asks_password=asks_password)


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_cross_site(scope: MutableMapping[str, Any], headers: Headers) -> bool:
    """Whether a browser says that another site sent it; a link on another site to the page itself is fine."""
    is_link = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link


def _max_body(path: str) -> int:
    return MAX_UPLOAD_BYTES if path.rstrip("/") == UPLOAD else MAX_BODY_BYTES


def _too_large(path: str) -> str:
    limit = _max_body(path)
    if limit == MAX_UPLOAD_BYTES:
        return f"An upload can be at most {limit:,} bytes. Copy larger files into the folder training/datasets."
    return f"A request can be at most {limit:,} bytes. Send less data."


def _api_path(scope: MutableMapping[str, Any]) -> str:
    """The path of a request; Gradio 6 has its routes with and without a prefix."""
    path = str(scope["path"])
    return path.removeprefix(API_PREFIX) or "/"


def _is_logged_in(scope: MutableMapping[str, Any], headers: Headers) -> bool:
    """Whether a request has the cookie that Gradio gave for the password."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return False
    gradio = scope["app"]
    names = (f"access-token-{gradio.cookie_id}", f"access-token-unsecure-{gradio.cookie_id}")
    return any(name in cookies and cookies[name].value in gradio.tokens for name in names)


def _address(scope: MutableMapping[str, Any]) -> str:
    return str((scope.get("client") or ("",))[0])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
