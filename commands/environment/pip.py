"""pip, run as a program: what it would install, the size of that, and the installation."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import TrainingProError

STDERR = 2  # for pip's progress; standard output is for results
TIMEOUT_SECONDS = 5
MAX_ERROR_LINES = 8
INSTALL_FAILED = (
    "pip could not install the packages; see the error above. Check your network connection and disk "
    "space, then start again to continue the installation. If that fails too, delete the folder .venv first."
)


@dataclass(frozen=True)
class Wheel:
    """A package that pip would download."""

    name: str
    version: str
    url: str


@dataclass(frozen=True)
class DownloadSize:
    """Total bytes of the packages of known size, and the number of packages of unknown size."""

    known: int
    unknown: int
    packages: int

    def __str__(self) -> str:
        packages = f"{self.packages} package{'' if self.packages == 1 else 's'}"
        if self.unknown == self.packages:
            return f"{packages} of unknown size"
        if self.unknown:
            return f"{packages}, {format_bytes(self.known)} plus {self.unknown} of unknown size"
        return f"{packages}, {format_bytes(self.known)}"


def say(text: str) -> None:
    """Print to standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def format_bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def resolve_wheels(python: Path, arguments: Sequence[str]) -> list[Wheel]:
    """List what `pip install` with these arguments would install, including dependencies."""
    command = _pip(python, "install", "--dry-run", "--quiet", "--report", "-", *arguments)
    process = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", env=_environ(), check=False
    )
    if process.returncode:
        raise TrainingProError(f"{last_lines(process.stderr)}\n{INSTALL_FAILED}")
    return [_wheel(entry) for entry in json.loads(process.stdout)["install"]]


def install(python: Path, arguments: Sequence[str]) -> None:
    """Run `pip install`, with its progress shown to the user."""
    command = _pip(python, "install", *arguments)
    if subprocess.run(command, stdout=STDERR, env=_environ(), check=False).returncode:
        raise TrainingProError(INSTALL_FAILED)


def download_size(wheels: Sequence[Wheel]) -> DownloadSize:
    """Ask the servers of all files at once; files without a quick answer count as unknown."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        sizes = list(pool.map(_content_length, [wheel.url for wheel in wheels]))
    known = [size for size in sizes if size is not None]
    return DownloadSize(known=sum(known), unknown=len(sizes) - len(known), packages=len(sizes))


def last_lines(text: str) -> str:
    return "\n".join(line for line in text.strip().splitlines()[-MAX_ERROR_LINES:])


def _pip(python: Path, *words: str) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", *words]


def _environ() -> dict[str, str]:
    """Environment of pip: the user's settings, except the one that would install outside of the environment."""
    return {**os.environ, "PIP_USER": "0", "PYTHONUTF8": "1"}


def _wheel(entry: dict[str, dict[str, str]]) -> Wheel:
    return Wheel(entry["metadata"]["name"], entry["metadata"]["version"], entry["download_info"]["url"])


def _content_length(url: str) -> int | None:
    try:
        with urllib.request.urlopen(
            _head_request(url), timeout=TIMEOUT_SECONDS, context=_certificates()
        ) as response:
            length = response.headers.get("Content-Length")
    except (OSError, ValueError):
        return None
    return int(length) if length and length.isdigit() else None


def _head_request(url: str) -> urllib.request.Request:
    # For file: URLs, urllib also gives the file size as Content-Length.
    return urllib.request.Request(url, method="HEAD")


def _certificates() -> ssl.SSLContext:
    """Certificates that pip is configured to trust, or those of the system."""
    paths = (os.environ.get(name, "") for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE"))
    return ssl.create_default_context(cafile=next((path for path in paths if Path(path).is_file()), None))
