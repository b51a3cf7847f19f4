"""pip, run as a program: what it would install, the size of that, and the installation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from ...core.errors import TrainingProError

STDERR = 2  # for pip's progress; standard output is for results
TIMEOUT_SECONDS = 5
MAX_ERROR_LINES = 8
INSTALL_FAILED = (
    "pip could not install the packages; see the error above. Check your network connection and disk "
    "space, then start again to continue the installation. If that fails too, delete the folder .venv first."
)


class Wheel(NamedTuple):
    """A package that pip would download."""

    name: str
    version: str
    url: str


def say(text: str) -> None:
    """Print to standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def resolve_wheels(python: Path, arguments: Sequence[str]) -> list[Wheel]:
    """List what `pip install` with these arguments would install, including dependencies."""
    process = _run_pip(python, "--dry-run", "--quiet", "--report", "-", *arguments, captured=True)
    if process.returncode:
        raise TrainingProError(f"{last_lines(process.stderr)}\n{INSTALL_FAILED}")
    return [
        Wheel(entry["metadata"]["name"], entry["metadata"]["version"], entry["download_info"]["url"])
        for entry in json.loads(process.stdout)["install"]
    ]


def install(python: Path, arguments: Sequence[str]) -> None:
    """Run `pip install`, with its progress shown to the user."""
    if _run_pip(python, *arguments, captured=False).returncode:
        raise TrainingProError(INSTALL_FAILED)


def describe_download(wheels: Sequence[Wheel]) -> str:
    """The number of packages and their size; servers that do not answer quickly leave sizes unknown."""

    def file_size(wheel: Wheel) -> int:
        request = urllib.request.Request(wheel.url, method="HEAD")
        try:
            # Also for file: URLs, urllib gives the size as Content-Length.
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return int(response.headers.get("Content-Length") or 0)
        except (OSError, ValueError, HTTPException):
            # Such as a company's proxy whose certificate only pip knows (PIP_CERT, REQUESTS_CA_BUNDLE).
            return 0

    with ThreadPoolExecutor(max_workers=32) as pool:
        sizes = list(pool.map(file_size, wheels))
    packages = f"{len(wheels)} package{'' if len(wheels) == 1 else 's'}"
    known, unknown = sum(sizes), sizes.count(0)
    if not known:
        return f"{packages} of unknown size"
    total = f"{known / 1e9:.1f} GB" if known >= 1e9 else f"{known / 1e6:.0f} MB"
    return f"{packages}, {total}" + (f" plus {unknown} of unknown size" if unknown else "")


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-MAX_ERROR_LINES:])


def _run_pip(python: Path, *arguments: str, captured: bool) -> subprocess.CompletedProcess[str]:
    """Run `pip install` with the user's settings, except the one that would install outside of the environment."""
    return subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", "install", *arguments],
        stdout=subprocess.PIPE if captured else STDERR,
        stderr=subprocess.PIPE if captured else None,
        encoding="utf-8",
        errors="replace",
        # Without PYTHONUTF8, pip's output on Windows has the encoding of the console.
        env={**os.environ, "PIP_USER": "0", "PYTHONUTF8": "1"},
        check=False,
    )
