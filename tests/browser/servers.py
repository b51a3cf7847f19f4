"""Pages to drive: our own programs on free ports, ended with the tests that wanted them, their words kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from training_pro.hosts.tiny import make_tiny

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "webui_standin" / "server.py"
TINY = "tiny"
LEFT = "left-there"
PATIENCE_SECONDS = 90
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


class Server:
    """A program that serves a page; `started_after` is how many seconds its first answer took."""

    running: list[Server] = []

    def __init__(self, *command: str, port: int, user_data: Path, env: Mapping[str, str] | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.user_data = user_data
        self.expected: set[str] = set()
        """Errors that a test caused on purpose, by their last lines."""
        self._log = user_data / f"server-{port}.log"
        user_data.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, **QUIET, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.running.append(self)
        self._wait_until_it_answers(begun + PATIENCE_SECONDS)
        self.started_after = time.monotonic() - begun

    @property
    def loras(self) -> Path:
        return self.user_data / "loras"

    def leave_form(self) -> None:
        """As if somebody had left the page with a name in its form: by that a page can be seen to be filled."""
        form = self.user_data / "training" / "form.json"
        form.parent.mkdir(parents=True, exist_ok=True)
        form.write_text(json.dumps({"name": LEFT}), encoding="utf-8")

    def words(self) -> str:
        """What it wrote to the console, and whether it is still there."""
        ended = self._process.poll()
        farewell = "" if ended is None else f"\n(it has ended, with {ended})"
        return self._log.read_text(encoding="utf-8", errors="replace") + farewell

    def stumbles(self) -> list[str]:
        """Errors in handlers, by their last lines; what a handler raises to be shown (gradio.Error) is none."""
        said = self.words()
        last = [re.search(r"^[\w.]+(?:Error|Exception)\b.*", part, re.M) for part in said.split("Traceback (")[1:]]
        stumbles = [found[0] for found in last if found and not found[0].startswith("gradio.exceptions.Error")]
        return [stumble for stumble in stumbles if stumble not in self.expected]

    def end(self) -> None:
        """With everything that it started."""
        self.running.remove(self)
        try:
            family = [*psutil.Process(self._process.pid).children(recursive=True), self._process]
        except psutil.NoSuchProcess:
            family = [self._process]
        for process in family:
            process.kill()
        self._process.communicate()

    def _wait_until_it_answers(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"it ended by itself:\n{self.words()}"
            try:
                with urllib.request.urlopen(self.url, timeout=5) as answer:
                    assert answer.status == 200
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"no answer in {PATIENCE_SECONDS} seconds:\n{self.words()}")


class Webui(Server):
    """The stand-in for the webui, which can be asked and told from here."""

    def ask(self, expression: str) -> Any:
        return self._said({"ask": expression})

    def tell(self, statement: str) -> None:
        self._said({"tell": statement})

    def _said(self, line: dict[str, str]) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]


@contextmanager
def demo(user_data: Path, *more: str) -> Iterator[Server]:
    """`script.py demo --tiny`, as a user starts it."""
    port = free_port()
    words = ("demo", "--tiny", "--no-browser", "--port", str(port), "--user-data", str(user_data), *more)
    with ended(Server(str(ROOT / "script.py"), *words, port=port, user_data=user_data)) as server:
        yield server


@contextmanager
def page(user_data: Path, hub: str) -> Iterator[Server]:
    """`script.py page`, for which that hub is the one there is."""
    port = free_port()
    words = ("page", "--no-browser", "--port", str(port), "--user-data", str(user_data))
    env = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}
    with ended(Server(str(ROOT / "script.py"), *words, port=port, user_data=user_data, env=env)) as server:
        yield server


@contextmanager
def webui(user_data: Path, *arguments: str, model: bool = True, extension: Path = ROOT) -> Iterator[Webui]:
    """The stand-in with Training PRO among its user's extensions, and the tiny model loaded or not."""
    port = free_port()
    put_in(extension, user_data)
    if model:
        make_tiny(user_data / "models" / TINY)
        arguments = (*arguments, "--model", TINY)
    own = ("--user-data-dir", str(user_data), "--extensions", "Training_PRO", "--cpu", "--listen-port", str(port))
    with ended(Webui(str(STANDIN), *own, *arguments, port=port, user_data=user_data)) as server:
        yield server


@contextmanager
def ended(server: Any) -> Iterator[Any]:
    try:
        yield server
    finally:
        server.end()


def put_in(extension: Path, user_data: Path) -> None:
    """As a link, so that nothing is compiled twice."""
    (user_data / "extensions").mkdir(parents=True, exist_ok=True)
    (user_data / "extensions" / "Training_PRO").symlink_to(extension, target_is_directory=True)


def copied(to: Path) -> Path:
    """A copy of all that ships, to be damaged."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".*", "tests", "user_data", "docs", "bench"))
    return to


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
