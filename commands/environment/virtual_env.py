"""A virtual environment on disk: checks, makes, repairs and extends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ...core.errors import TrainingProError
from ...core.files import write_json
from .pip import describe_download, install, last_lines, resolve_wheels, say
from .torch_build import torch_arguments

PINS = Path(__file__).resolve().parent / "pins"
MARKER_NAME = "training-pro.json"
LARGE_LIBRARIES = ("torch", "transformers", "peft")

# Code run by the interpreter of the environment; an exit code of 0 means that all is well.
FIND_CODE = "import sys, importlib.util as u; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))"
IMPORT_CODE = "import sys, importlib as i; [i.import_module(name) for name in sys.argv[1:]]"


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
