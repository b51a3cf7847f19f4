"""A hub on this machine: those of the Hugging Face hub's ways that are gone here, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LFS_BYTES = 100_000  # so many bytes and more are not kept in git, but beside it
CHUNK_BYTES = 64_000


@dataclass
class Repository:
    """A model, or as datasets/OWNER/NAME a dataset, as the hub has it: files by revision, and its card."""

    files: dict[str, dict[str, bytes]]
    card: dict[str, Any]
    gated: bool = False
    private: bool = False

    def commit(self, revision: str) -> str:
        """By the revision's name and its bytes; a commit is its own."""
        commits = {name: _commit(name, files) for name, files in self.files.items()}
        return revision if revision in commits.values() else commits.get(revision, "")

    def at(self, revision: str) -> dict[str, bytes]:
        return next((f for r, f in self.files.items() if self.commit(r) == self.commit(revision)), {})


@dataclass
class Hub:
    """What is there, what goes wrong, and what was asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "secret"
    breaks_at: list[int] = field(default_factory=list)
    """The next answers with a large file in them end after so many bytes, one after another."""
    spoils: Callable[[bytes], bytes] | None = None
    """What becomes of a large file on its way."""
    seconds_a_piece: float = 0.0
    status: int = 0
    """Everything is answered with this."""
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Files by their names, and the byte from which they were asked for."""
    url: str = ""

    def add(
        self,
        name: str,
        folder: Path | None = None,
        more: Mapping[str, bytes] | None = None,
        revision: str = "main",
    ) -> Repository:
        """A model out of a folder, with these files besides or instead."""
        found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")} if folder else {}
        made = self.repositories.setdefault(name, Repository({}, {"license": "apache-2.0"}))
        made.files[revision] = {**found, **(more or {})}
        return made


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.hub.status:
            self._refuse(self.hub.status, "", "too much to do")
        elif asked := re.fullmatch(r"/api/(?:models/)?((?:datasets/)?[^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._about(asked[1], asked[2] or "main")
        elif asked := re.fullmatch(r"/api/([^/]+/[^/]+/[^/]+)/auth-check", path):
            if self._may_read(asked[1]):
                self._send(b"", {})
        elif asked := re.fullmatch(r"/api/([^/]+/[^/]+/[^/]+)/tree/([^/]+)(.*)", path):
            files = self.hub.repositories[asked[1]].at(asked[2]).items()
            tree = [{"type": "file", "path": name, "size": len(data), "oid": _digest(data, "sha1")}
                    for name, data in files if name.startswith(asked[3].lstrip("/"))]  # fmt: skip
            self._send(json.dumps(tree).encode(), {"Content-Type": "application/json"})
        elif asked := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(asked[1], asked[2], asked[3])
        elif asked := re.fullmatch(r"/beside/((?:datasets/)?[^/]+/[^/]+)/([^/]+)/(.+)", path):
            self.hub.asked.append((asked[3], self._begin()))
            self._send(self.hub.repositories[asked[1]].at(asked[2])[asked[3]], {}, may_break=True)
        else:
            self._refuse(404, "EntryNotFound", "Not found")

    do_HEAD = do_GET  # noqa: N815

    def _about(self, name: str, revision: str) -> None:
        repository = self._found(name, revision)
        if repository is None:
            return
        siblings = [_sibling(path, data) for path, data in repository.at(revision).items()]
        about = {"id": name, "sha": repository.commit(revision), "cardData": repository.card, "siblings": siblings}
        about["gated"] = repository.gated and "manual"
        self._send(json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, path: str) -> None:
        repository = self._found(name, revision)
        if repository is None:
            return
        if not self._may_read(name):
            return
        data, commit = repository.at(revision).get(path), repository.commit(revision)
        if data is None:
            self._refuse(404, "EntryNotFound", "Not found")
            return
        if len(data) < LFS_BYTES:
            self.hub.asked.append((path, self._begin()))
            self._send(data, {"X-Repo-Commit": commit, "ETag": f'"{_digest(data, "sha1")}"'})
            return
        self.send_response(302)
        self.send_header("Location", f"{self.hub.url}/beside/{name}/{commit}/{path}")
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("X-Linked-ETag", f'"{_digest(data, "sha256")}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _found(self, name: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self._may()):
            self._refuse(401, "RepoNotFound", "Invalid username or password.")
            return None
        if not repository.commit(revision):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository

    def _may_read(self, name: str) -> bool:
        if self.hub.repositories[name].gated and not self._may():
            self._refuse(401, "GatedRepo", "Access to this repository is restricted.")
            return False
        return True

    def _may(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {self.hub.token}"

    def _begin(self) -> int:
        asked = re.fullmatch(r"bytes=(\d+)-\d*", self.headers["Range"] or "")
        return int(asked[1]) if asked else 0

    def _refuse(self, status: int, code: str, words: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", words)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, data: bytes, headers: dict[str, str], *, may_break: bool = False) -> None:
        begin = self._begin()
        if may_break and self.hub.spoils:
            data = self.hub.spoils(data)
        end = begin + self.hub.breaks_at.pop(0) if may_break and self.hub.breaks_at else len(data)
        self.send_response(206 if begin else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(ConnectionError):  # whoever has asked is gone
            for start in range(begin, min(end, len(data)), CHUNK_BYTES):
                self.wfile.write(data[start : min(start + CHUNK_BYTES, end)])
                time.sleep(self.hub.seconds_a_piece if may_break else 0)
        if end < len(data):
            self.close_connection = True

    def log_message(self, *words: object) -> None:
        """To nobody."""


@cache
def _digest(data: bytes, kind: str) -> str:
    return hashlib.new(kind, data).hexdigest()


def _commit(revision: str, files: Mapping[str, bytes]) -> str:
    told = [revision, *((path, _digest(data, "sha1")) for path, data in files.items())]
    return _digest(repr(told).encode(), "sha1")


def _sibling(path: str, data: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": _digest(data, "sha1")}
    if len(data) >= LFS_BYTES:
        about["lfs"] = {"sha256": _digest(data, "sha256"), "size": len(data), "pointerSize": 134}
    return about


@pytest.fixture
def served_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub at its address, which stands in the environment for programs that are started."""
    hub = Hub()
    handler = type("Answering", (_Answering,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for key in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(key, raising=False)
        yield hub
        server.shutdown()


@pytest.fixture
def hub(served_hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """The same for this process, whose library has read its environment already; it may leave nothing at home."""
    from huggingface_hub import constants

    address = f"{served_hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", served_hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return served_hub
