"""A virtual environment on disk: checks, makes, repairs and extends it with pip, and chooses the torch build."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ...core.errors import TrainingProError
from ...core.files import write_json

PINS = Path(__file__).resolve().parent / "pins"
MARKER_NAME = "training-pro.json"
LARGE_LIBRARIES = ("torch", "transformers", "peft")

# Code run by the interpreter of the environment; an exit code of 0 means that all is well.
FIND_CODE = "import sys, importlib.util as u; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))"
IMPORT_CODE = "import sys, importlib as i; [i.import_module(name) for name in sys.argv[1:]]"
STDERR = 2  # for pip's progress; standard output is for results
TIMEOUT_SECONDS = 5
MAX_ERROR_LINES = 8
INSTALL_FAILED = (
    "pip could not install the packages; see the error above. Check your network connection and disk "
    "space, then start again to continue the installation. If that fails too, delete the folder .venv first."
)
# PyPI has CUDA builds of torch for Linux and CPU builds for the other systems: a Linux machine without a GPU would
# download gigabytes for nothing, and the GPU of a Windows machine would stay unused. So where its build does not
# fit, that of PyTorch's own index is taken. A mirror may differ from PyPI, so it is asked.
PYTORCH_INDEX = "https://download.pytorch.org/whl"
NEW_CUDA_BUILD, OLD_CUDA_BUILD = "cu130", "cu126"  # torch 2.13 is built for both
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")


@dataclass(frozen=True)
class Marker:
    """Content of the marker file: the installed requirement lists, and the torch that the user chose."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    torch: str | None = None
    installing: bool = False  # while pip works; it stays if pip is killed


@dataclass(frozen=True)
class Environment:
    folder: Path
    modules: Sequence[str]
    torch_spec: str | None = None

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def is_running(self) -> bool:
        return Path(sys.prefix).resolve() == self.folder.resolve()

    @property
    def is_ours(self) -> bool:
        """Whether we made the environment, finished or not; one made by others is never deleted."""
        return (self.folder / MARKER_NAME).is_file()

    def has_lists(self, lists: Sequence[str]) -> bool:
        """Whether the marker says that these lists are installed in their present form."""
        noted = read_marker(self.folder)
        if self.torch_spec and self.torch_spec != noted.torch:
            return False
        return all(
            noted.lists.get(name) == read_pins(name) for name in lists if name != "torch" or not noted.torch
        )

    def finds_modules(self) -> bool:
        return not self._error_of(FIND_CODE, *self.modules)

    def make(self, lists: Sequence[str]) -> None:
        """Make, repair or extend the environment; the marker is written last."""
        try:
            marker = read_marker(self.folder)
            chosen_torch = self.torch_spec or marker.torch
            # A killed pip leaves packages with missing or truncated files that it later takes for installed. So
            # all are installed anew, most of them from pip's cache, by another Python than the damaged one.
            if marker.installing and self.is_running:
                raise TrainingProError(
                    f"Packages in {self.folder} are damaged. Delete that folder, then start again with the "
                    "system's Python."
                )
            if marker.installing or self._error_of("import pip"):
                if not self.is_ours and self.folder.exists():
                    raise TrainingProError(
                        f"{self.folder} is not a Training PRO environment (it has no pip, or was made on "
                        "another system). Rename that folder, then start again."
                    )
                say(
                    f"Creating an environment for Training PRO in {self.folder}. Other environments are not "
                    "changed."
                )
                self._create()
            installed = read_marker(self.folder).lists
            self._install(lists, chosen_torch)
            # These libraries need system libraries (a C++ runtime) that pip does not know.
            if error := self._error_of(IMPORT_CODE, *LARGE_LIBRARIES):
                raise TrainingProError(
                    f"{error}\n{', '.join(LARGE_LIBRARIES[:-1])} and {LARGE_LIBRARIES[-1]} are installed in "
                    f"{self.folder}, but this system can't load them. See the error above."
                )
            installed = {**installed, **{name: read_pins(name) for name in lists}}
            write_marker(self.folder, Marker(installed, chosen_torch))
        except KeyboardInterrupt:
            raise TrainingProError(
                f"Stopped. {self.folder} is not complete yet. Run the command again to continue."
            ) from None
        except OSError as error:
            raise TrainingProError(f"The environment {self.folder} can't be created: {error}") from error
        say(f"Environment ready: {self.folder}")

    def _create(self) -> None:
        """Make an empty environment that has our marker from the start."""
        if find_spec("venv") is None or find_spec("ensurepip") is None:
            version = "{}.{}".format(*sys.version_info[:2])
            raise TrainingProError(
                f"{sys.executable} can't create environments because its venv or ensurepip module is "
                f"missing. On Debian and Ubuntu, run:  sudo apt install python{version}-venv"
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_marker(self.folder, Marker())
        command = [sys.executable, "-m", "venv", str(self.folder)]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if process.returncode:
            raise TrainingProError(
                f"{last_lines(process.stdout + process.stderr)}\n{sys.executable} could not create "
                f"{self.folder}. See the error above."
            )

    def _install(self, lists: Sequence[str], chosen_torch: str | None) -> None:
        say(f"Asking pip which packages to install in {self.folder} ...")
        # A torch that the user chose earlier stays as it is: pip only has to see that there is one.
        has_chosen_torch = bool(read_marker(self.folder).torch) and not self.torch_spec
        pin, spec = ("torch", None) if has_chosen_torch else (read_pins("torch")[0], chosen_torch)
        arguments = torch_arguments(self.python, pin, spec)
        for name in lists:
            arguments += [] if name == "torch" else ["--requirement", str(PINS / f"{name}.txt")]
        if wheels := resolve_wheels(self.python, arguments):
            say(
                f"Download size for {self.folder}: {describe_download(wheels)}. Once installed, the packages take "
                "two to four times as much disk space."
            )
            marker, is_ours = read_marker(self.folder), self.is_ours
            if is_ours:
                write_marker(self.folder, Marker(torch=marker.torch, installing=True))
            install(self.python, arguments)
            if is_ours:  # the marker is what makes an environment ours, and one of others is never deleted
                write_marker(self.folder, Marker(torch=marker.torch))

    def _error_of(self, code: str, *words: str) -> str:
        """Run code in the environment; empty if it ends without an error."""
        command = [str(self.python), "-I", "-c", code, *words]
        try:
            process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            return str(error)
        return (last_lines(process.stderr) or "failed") if process.returncode else ""


def read_pins(name: str) -> list[str]:
    """Read a list of requirements, without comments."""
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_marker(folder: Path) -> Marker:
    try:
        content = json.loads((folder / MARKER_NAME).read_text(encoding="utf-8"))
        return Marker(dict(content["lists"]), content["torch"], content.get("installing", False))
    except (OSError, ValueError, TypeError, KeyError):
        return Marker()


def write_marker(folder: Path, note: Marker) -> None:
    """Write the marker atomically, so that a readable marker is complete."""
    write_json(folder / MARKER_NAME, asdict(note))


def torch_arguments(python: Path, pin: str, spec: str | None) -> list[str]:
    """Arguments of pip for torch; `spec` is the user's choice (`--torch`)."""
    if spec:
        first, *rest = shlex.split(spec, posix=os.name != "nt") or [""]  # backslashes of Windows stay
        if re.fullmatch(r"\d[\w.+]*", first):
            return [f"torch=={first}", *rest]
        if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", first):
            return _from_pytorch(pin, first) + rest
        if re.match(r"torch\b", first) or "://" in first or Path(first).is_file():
            return [first, *rest]
        raise TrainingProError(
            f"--torch {spec!r} is not valid. Use a version (2.12.0), a PyTorch build (cpu, cu126, rocm6.4), "
            "or anything else that pip accepts (the path or URL of a wheel, or 'torch==2.12.0 --index-url URL')."
        )
    wheels = resolve_wheels(python, [pin])
    if not any(wheel.name == "torch" for wheel in wheels):
        return [pin]  # already in the environment
    # What `pip install torch` would bring tells what build the registry has, without a download.
    # The major CUDA version that comes with the registry's torch: 0 if it can't be told, None without CUDA.
    cuda = [wheel for wheel in wheels if wheel.name.lower().startswith(CUDA_PACKAGES)]
    runtimes = [wheel for wheel in cuda if wheel.name.lower().startswith(CUDA_RUNTIMES)]
    offered = int(runtimes[0].version.split(".")[0]) if runtimes else 0 if cuda else None
    build = _build_for_this_machine()
    fitting = {"cpu": (None,), OLD_CUDA_BUILD: (0, 12), NEW_CUDA_BUILD: (0, 13)}
    if offered in fitting[build]:
        return [pin]
    arguments = _from_pytorch(pin, build)
    try:
        resolve_wheels(python, arguments)
    except TrainingProError as error:  # PyTorch's index is blocked: an unused CUDA is fine, an unused GPU is not
        if build != "cpu":
            raise TrainingProError(
                f"{error}\nThe torch build for this GPU is {arguments[0]}, from {arguments[-1]}. "
                f"To use the build from pip's default package index instead, add --torch {pin}."
            ) from error
        say(
            f"{arguments[-1]} can't be reached, or has no {arguments[0]} for this version of Python.\nUsing the "
            "build from pip's default package index instead. It includes CUDA, which this machine does not need."
        )
        return [pin]
    return arguments


def _build_for_this_machine() -> str:
    """`cpu` without an NVIDIA GPU, else the newest CUDA build for its driver and its compute capability."""
    program = shutil.which("nvidia-smi")
    overview = _output_of(program) if program else ""
    if not program or not overview:
        return "cpu"
    driver = _smallest_version(r"CUDA[^:|]*Version:\s*", overview)
    capability = _smallest_version("", _output_of(program, "--query-gpu=compute_cap", "--format=csv,noheader"))
    # CUDA 13 dropped GPUs before Turing (7.5), and CUDA 12.6 does not support Blackwell (10). (0, 0) is unknown.
    old_driver = (0, 0) < driver < (13, 0) and capability < (10, 0)
    old_card = (0, 0) < capability < (7, 5)
    return OLD_CUDA_BUILD if old_driver or old_card else NEW_CUDA_BUILD


def _output_of(*command: str) -> str:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # a hung driver
        return ""
    return process.stdout if process.returncode == 0 else ""


def _smallest_version(before: str, text: str) -> tuple[int, int]:
    """Smallest version such as `1.2` after the pattern `before`; (0, 0) if there is none."""
    versions = re.findall(before + r"(\d+)\.(\d+)", text)
    return min(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def _from_pytorch(pin: str, build: str) -> list[str]:
    """Arguments for a build of PyTorch; its name in the version excludes the registry's file of that version."""
    return [f"{pin}+{build}", "--extra-index-url", f"{PYTORCH_INDEX}/{build}"]


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
