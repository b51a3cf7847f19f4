"""The packages of an environment: what pip would install, how large that is, their download, and the installation.

pip itself begins a download again that was stopped, and a build of torch for a GPU is gigabytes. So wheels are
downloaded here first, each from where it was stopped, and then pip installs the files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from ...core.errors import TrainingProError
from ...core.files import PART_SUFFIX, is_disk_full, move_atomically, says_disk_full
from ...core.jobs import DownloadMeter, Event, Stage

HEAD_SECONDS, READ_SECONDS = 5, 30
# Pauses before retries, which start over whenever data has arrived.
RETRY_PAUSES_SECONDS = (1, 2, 4, 8, 16)
PARTIAL_CONTENT, NOT_SATISFIABLE = 206, 416  # HTTP status: the rest of a file, and a file that has no rest
CHUNK_BYTES = 1 << 20
CERTIFICATES = "site-packages/pip/_vendor/certifi/cacert.pem"
# Installed packages take this many times the space of their wheels (measured: 1.5 GB of 420 MB; the libraries of
# CUDA 13 unpack from 2.3 GB to 3.6 GB).
UNPACKED, UNPACKED_NVIDIA = 3.7, 1.6
MAX_ERROR_LINES = 8
INSTALL_FAILED = (
    "pip could not install the packages; see the error above. Check your network connection and disk "
    "space, then start again to continue the installation. If that fails too, delete the environment first."
)

Emit = Callable[[Event], object]


class Wheel(NamedTuple):
    """A package that pip would install."""

    name: str
    version: str
    url: str
    sha256: str = ""
    is_direct: bool = False  # the user named its URL or path, so no index has it
    in_cache: bool = False  # of pip

    @property
    def file(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def is_remote(self) -> bool:
        return self.url.startswith("http") and not self.in_cache


def resolve_wheels(python: Path, arguments: Sequence[str]) -> list[Wheel]:
    """List what `pip install` with these arguments would install, including dependencies."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        output = run_pip(python, "--dry-run", "--report", str(report), *arguments)
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    # An index without separate metadata makes pip download a whole wheel to read what it requires.
    read = set(re.findall(r"(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) \(", output))
    cached = read if "PIP_NO_CACHE_DIR" not in os.environ else set()
    wheels = []
    for entry in entries:
        metadata, source = entry["metadata"], entry["download_info"]
        sha256 = source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
        wheel = Wheel(metadata["name"], metadata["version"], source["url"], sha256, entry.get("is_direct", False))
        wheels.append(wheel._replace(in_cache=wheel.file in cached))
    return wheels


class Downloads:
    """The folder with the wheels of an environment, until they are installed. Sizes are in bytes, if known."""

    def __init__(self, folder: Path, python: Path, wheels: Sequence[Wheel]) -> None:
        self._folder, self._python, self._wheels = folder, python, wheels
        # The certificates of the system, of pip (some builds of Python have no others), and of the user.
        self._tls = ssl.create_default_context()
        of_pip = (python.parent.parent.glob(f"{parents}/{CERTIFICATES}") for parents in ("*", "*/*"))
        for bundle in (*chain(*of_pip), os.environ.get("PIP_CERT"), os.environ.get("REQUESTS_CA_BUNDLE")):
            if bundle and Path(bundle).is_file():
                self._tls.load_verify_locations(bundle)
        with ThreadPoolExecutor(max_workers=32) as pool:
            sizes = dict(zip(wheels, pool.map(self._file_size, wheels), strict=True))
        factors = (UNPACKED_NVIDIA if wheel.name.startswith("nvidia-") else UNPACKED for wheel in wheels)
        self.size, self.unknown = sum(sizes.values()), [*sizes.values()].count(0)
        self.installed_size = round(
            sum(size * factor for size, factor in zip(sizes.values(), factors, strict=True))
        )
        # Of those that are downloaded here, how much there is and how much is on the disk.
        self.total = sum(size for wheel, size in sizes.items() if wheel.is_remote)
        there = (self._paths(wheel) for wheel in wheels if wheel.is_remote)
        self.done = sum(path.stat().st_size for path in chain(*there) if path.is_file())

    def fetch(self, emit: Emit) -> None:
        """Download the wheels, or what is missing of them; those that only pip can get are left to it."""
        meter = DownloadMeter(self.total, emit)
        meter.done = self.done
        for wheel in self._wheels:
            if wheel.is_remote:
                self._fetch(wheel, meter)

    def install(self, indexes: Sequence[str], emit: Emit) -> None:
        """Let pip install the files, and get the wheels that it has to get itself."""
        requirements = []
        for wheel in self._wheels:
            file, by_index = self._folder / wheel.file, f"{wheel.name}=={wheel.version}"
            requirements.append(str(file) if file.is_file() else wheel.url if wheel.is_direct else by_index)
        emit(Stage(text=f"Installing {len(requirements)} packages, which takes a few minutes"))
        # Without bytecode, which takes longer than all the rest. Python writes that of the modules that it loads.
        run_pip(self._python, "--no-deps", "--no-compile", *requirements, *indexes)

    def _paths(self, wheel: Wheel) -> tuple[Path, Path]:
        """Where a wheel lies when it is complete, and until then."""
        return self._folder / wheel.file, self._folder / (wheel.file + PART_SUFFIX)

    def _file_size(self, wheel: Wheel) -> int:
        request = urllib.request.Request(wheel.url, method="HEAD")
        try:
            # Also for file: URLs, urllib gives the size as Content-Length.
            with urllib.request.urlopen(request, timeout=HEAD_SECONDS, context=self._tls) as response:
                return int(response.headers.get("Content-Length") or 0)
        except (OSError, ValueError, HTTPException):  # such as an index that asks for a password
            return 0

    def _fetch(self, wheel: Wheel, meter: DownloadMeter) -> None:
        target, part = self._paths(wheel)
        pauses = iter(RETRY_PAUSES_SECONDS)
        while not target.is_file():
            begin = length = part.stat().st_size if part.exists() else 0
            request = urllib.request.Request(wheel.url, headers={"Range": f"bytes={begin}-"} if begin else {})
            try:
                with urllib.request.urlopen(request, timeout=READ_SECONDS, context=self._tls) as response:
                    # A server that does not support ranges sends the file from its beginning.
                    begin = begin if response.status == PARTIAL_CONTENT else 0
                    meter.done -= length - begin
                    length = begin + int(response.headers.get("Content-Length") or 0)
                    with part.open("ab" if begin else "wb") as output:
                        while chunk := response.read(CHUNK_BYTES):
                            output.write(chunk)
                            meter.add(len(chunk))
                            pauses = iter(RETRY_PAUSES_SECONDS)
            except (OSError, HTTPException) as error:
                if is_disk_full(error, self._folder):
                    raise
                status = error.code if isinstance(error, HTTPError) else 0
                if 400 <= status < 500 and status != NOT_SATISFIABLE:
                    return  # pip may know a password
                if status != NOT_SATISFIABLE:  # which means that the whole file is here
                    length = sys.maxsize
            # A connection that breaks may look like the end of the file.
            if part.exists() and part.stat().st_size >= length:
                with part.open("rb") as stream:
                    is_valid = wheel.sha256 in ("", hashlib.file_digest(stream, "sha256").hexdigest())
                if not is_valid:
                    part.unlink()
                    return
                move_atomically(part, target)
            elif (pause := next(pauses, None)) is not None:
                time.sleep(pause)
            else:
                return  # pip says what is wrong


def run_pip(python: Path, *arguments: str) -> str:
    """Run `pip install` with the user's settings, except the one that would install outside of the environment."""
    process = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        # Without PYTHONUTF8, pip's output on Windows has the encoding of the console.
        env={**os.environ, "PIP_USER": "0", "PYTHONUTF8": "1"},
        check=False,
    )
    if process.returncode:
        text = last_lines(process.stdout)
        if says_disk_full(OSError(text)):
            raise OSError(errno.ENOSPC, "pip")
        raise TrainingProError(f"{text}\n{INSTALL_FAILED}")
    return process.stdout


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-MAX_ERROR_LINES:])
