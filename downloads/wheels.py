"""The packages of an environment: what pip would install, how large that is, their download, and the installation.

pip itself begins a download again that was stopped, and a build of torch for a GPU is gigabytes. So wheels are
downloaded here first, each from where it was stopped, and then pip installs the files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from ..core.errors import StoppedError, TrainingProError
from ..core.files import PART_SUFFIX, is_disk_full, move_atomically, says_disk_full
from ..core.jobs import DownloadMeter
from .fetching import Emit, IsStopped, fetch_rest, is_intact

HEAD_SECONDS, READ_SECONDS = 5, 30
PIECE_BYTES = 1 << 20
CERTIFICATES = "site-packages/pip/_vendor/certifi/cacert.pem"
# Installed packages take this many times the space of their wheels (measured: 1.5 GB of 420 MB; the libraries of
# CUDA 13 unpack from 2.3 GB to 3.6 GB).
UNPACKED, UNPACKED_NVIDIA = 3.7, 1.6
LOST = (OSError, HTTPException)
POLL_SECONDS = 0.2
MAX_ERROR_LINES = 8
INSTALL_FAILED = (
    "pip could not install the packages; see the error above. Check your network connection and disk "
    "space, then start again to continue the installation. If that fails too, delete the environment first."
)


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


@dataclass(frozen=True)
class Pip:
    """The pip of an environment."""

    python: Path
    is_stopped: IsStopped = lambda: False

    def install(self, *arguments: str) -> str:
        """Run `pip install` with the user's settings, and return what it prints."""
        options = ["--disable-pip-version-check", "install", "--progress-bar", "off"]
        code, output = run_program([self.python, "-m", "pip", *options, *arguments], self.is_stopped)
        if code:
            if says_disk_full(OSError(output)):
                raise OSError(errno.ENOSPC, "pip")
            raise TrainingProError(f"{output}\n{INSTALL_FAILED}")
        return output

    def resolve(self, *arguments: str) -> list[Wheel]:
        """List what `pip install` with these arguments would install, including dependencies."""
        with TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            output = self.install("--dry-run", "--report", str(report), *arguments)
            entries = json.loads(report.read_text(encoding="utf-8"))["install"]
        # An index without separate metadata makes pip download a whole wheel to read what it requires.
        read = set(re.findall(r"(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) \(", output))
        cached = read if "PIP_NO_CACHE_DIR" not in os.environ else set()
        wheels = []
        for entry in entries:
            metadata, source = entry["metadata"], entry["download_info"]
            sha256 = source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
            is_direct = entry.get("is_direct", False)
            wheel = Wheel(metadata["name"], metadata["version"], source["url"], sha256, is_direct)
            wheels.append(wheel._replace(in_cache=wheel.file in cached))
        return wheels


def run_program(command: Sequence[str | Path], is_stopped: IsStopped) -> tuple[int, str]:
    """Run a program; returns its exit code and what it printed, of which only the end if it failed."""
    # Not the user's setting that would install outside of the environment, and nothing for another Python, which a
    # portable program may have set. Without PYTHONUTF8, pip's output on Windows has the encoding of the console.
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    variables |= {"PIP_USER": "0", "PYTHONUTF8": "1"}
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "env": variables}
    options["creationflags"] = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    with TemporaryFile() as output, subprocess.Popen(command, stdout=output, **options) as process:
        try:
            while process.poll() is None:
                if is_stopped():
                    raise StoppedError("Stopped.")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            if process.returncode and is_stopped():  # Ctrl+C ends it, too
                raise StoppedError("Stopped.")
        except BaseException:  # on Windows, Ctrl+C does not reach a program that has no console
            process.kill()
            raise
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if process.returncode:
        text = "\n".join(text.strip().splitlines()[-MAX_ERROR_LINES:])
    return process.returncode, text


class WheelDownloads:
    """The folder with the wheels of an environment, until they are installed. Sizes are in bytes, if known."""

    def __init__(self, folder: Path, python: Path, wheels: Sequence[Wheel]) -> None:
        self._folder, self._wheels = folder, wheels
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
        # Those that are downloaded here, and how much of them is on the disk; pip gets the others.
        remote = [wheel for wheel in wheels if wheel.url.startswith("http") and not wheel.in_cache]
        self._remote = {wheel: sizes[wheel] for wheel in remote if sizes[wheel]}
        self.total = sum(self._remote.values())
        there = (path for wheel in self._remote for path in self._paths(wheel))
        self.done = sum(path.stat().st_size for path in there if path.is_file())

    def fetch(self, emit: Emit, is_stopped: IsStopped) -> None:
        """Download the wheels, or what is missing of them; those that only pip can get are left to it."""
        meter = DownloadMeter(self.total, emit, self.done)

        def may_retry(error: Exception) -> bool:
            is_refused = isinstance(error, HTTPError) and error.code < 500
            return isinstance(error, LOST) and not is_refused and not is_disk_full(error, self._folder)

        for wheel, size in self._remote.items():
            target, part = self._paths(wheel)
            if target.is_file():
                continue
            try:
                fetch_rest(part, size, partial(self._open, wheel), meter, may_retry, emit, is_stopped)
            except LOST as error:
                if is_disk_full(error, self._folder):
                    raise
                continue  # pip may know a password, or says what is wrong
            if is_intact(part, size, wheel.sha256):
                move_atomically(part, target)
            else:
                part.unlink()

    def requirements(self) -> list[str]:
        """What pip has to install: the files that are here, and what it has to get itself."""
        words = []
        for wheel in self._wheels:
            file, by_index = self._folder / wheel.file, f"{wheel.name}=={wheel.version}"
            words.append(str(file) if file.is_file() else wheel.url if wheel.is_direct else by_index)
        return words

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

    @contextmanager
    def _open(self, wheel: Wheel, begin: int) -> Iterator[tuple[int, Iterable[bytes]]]:
        request = urllib.request.Request(wheel.url, headers={"Range": f"bytes={begin}-"} if begin else {})
        with urllib.request.urlopen(request, timeout=READ_SECONDS, context=self._tls) as response:
            yield response.status, iter(partial(response.read, PIECE_BYTES), b"")
