"""Servers for the browser tests: programs on free ports that end with their test, with their console output."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from training_pro.core.errors import BusyError
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import make_tiny
from training_pro.records.folder import runs_in_progress
from training_pro.records.remote import send_request
from training_pro.tests.browser.console_errors import unexpected_errors

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "webui_standin" / "server.py"
TINY = "tiny"
LEFT = "left-there"
PATIENCE_SECONDS = 300  # a server may start beside much other work
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


class Server:
    """A program that serves a page; `started_after` is the time to its first response in seconds."""

    running: list[Server] = []

    def __init__(self, *command: str, port: int, user_data: Path, env: Mapping[str, str] | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.user_data = user_data
        self.expected: set[str] = set()
        """Errors that a test causes on purpose, as the last lines of their tracebacks."""
        self._log = user_data / f"server-{port}.log"
        user_data.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
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
        self._wait_for_response(started + PATIENCE_SECONDS)
        self.started_after = time.monotonic() - started

    @property
    def loras(self) -> Path:
        return self.user_data / "loras"

    def leave_form(self) -> None:
        """Save a form with a name, by which a test sees that a page has restored it, and with few samples."""
        form = self.user_data / "training" / "form.json"
        form.parent.mkdir(parents=True, exist_ok=True)
        form.write_text(json.dumps({"name": LEFT, "sample_every": "500"}), encoding="utf-8")

    def words(self) -> str:
        """The console output, and the exit code of an ended process."""
        exit_code = self._process.poll()
        note = "" if exit_code is None else f"\n(it has ended, with {exit_code})"
        return self._log.read_text(encoding="utf-8", errors="replace") + note

    def stumbles(self) -> list[str]:
        """Errors in handlers that no test caused on purpose, as the last lines of their tracebacks."""
        return [error for error in unexpected_errors(self.words()) if error not in self.expected]

    def end_runs(self) -> None:
        """Stop the runs that a test left going, whatever its pages show by then."""
        folders, deadline = standalone_folders(self.user_data), time.monotonic() + PATIENCE_SECONDS
        while names := runs_in_progress(folders):
            assert time.monotonic() < deadline, f"still training: {names}\n{self.words()}"
            for name in names:
                with suppress(BusyError):  # it has ended by now
                    send_request(name, "stop", folders)
            time.sleep(0.5)

    def end(self) -> None:
        """Kill the process and its children."""
        self.running.remove(self)
        try:
            processes = [*psutil.Process(self._process.pid).children(recursive=True), self._process]
        except psutil.NoSuchProcess:
            processes = [self._process]
        for process in processes:
            process.kill()
        self._process.communicate()

    def _wait_for_response(self, deadline: float) -> None:
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
    """The stand-in for the webui; tests evaluate and execute Python code in it."""

    def ask(self, expression: str) -> Any:
        return self._request({"ask": expression})

    def tell(self, statement: str) -> None:
        self._request({"tell": statement})

    def _request(self, line: dict[str, str]) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]


@contextmanager
def demo(user_data: Path, *more: str) -> Iterator[Server]:
    """Run `script.py demo --tiny`."""
    port = free_port()
    arguments = ("demo", "--tiny", "--no-browser", "--port", str(port), "--user-data", str(user_data), *more)
    with ended(Server(str(ROOT / "script.py"), *arguments, port=port, user_data=user_data)) as server:
        yield server


@contextmanager
def page(user_data: Path, hub: str) -> Iterator[Server]:
    """Run `script.py page` with this address as the hub."""
    port = free_port()
    arguments = ("page", "--no-browser", "--port", str(port), "--user-data", str(user_data))
    env = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}
    with ended(Server(str(ROOT / "script.py"), *arguments, port=port, user_data=user_data, env=env)) as server:
        yield server


@contextmanager
def webui(user_data: Path, *arguments: str, model: bool = True, extension: Path = ROOT) -> Iterator[Webui]:
    """Run the stand-in with Training PRO as a user extension, with or without the tiny model loaded."""
    port = free_port()
    put_in(extension, user_data)
    if model:
        make_tiny(user_data / "models" / TINY)
        arguments = (*arguments, "--model", TINY)
    own_arguments = (
        "--user-data-dir",
        str(user_data),
        "--extensions",
        "Training_PRO",
        "--cpu",
        "--listen-port",
        str(port),
    )
    with ended(Webui(str(STANDIN), *own_arguments, *arguments, port=port, user_data=user_data)) as server:
        yield server


@contextmanager
def ended(server: Any) -> Iterator[Any]:
    try:
        yield server
    finally:
        server.end()


def put_in(extension: Path, user_data: Path) -> None:
    """Install the extension as a link, so that nothing is compiled twice."""
    (user_data / "extensions").mkdir(parents=True, exist_ok=True)
    (user_data / "extensions" / "Training_PRO").symlink_to(extension, target_is_directory=True)


def copied(to: Path) -> Path:
    """Make a copy of the extension that a test can damage."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".*", "tests", "user_data", "docs", "bench"))
    return to


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
