"""The environment for training in `training/environment`: its state on the disk.

`downloads/virtual_env` makes it, as it makes `.venv`. It lies in the working folder, so that a new version of the
webui or of Training PRO finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from . import files
from .errors import BusyError, SavingError, TrainingProError
from .files import PART_SUFFIX, lock, move_new_folder, read_record, remove_folder, write_error_reason, write_json
from .host import Folders
from .version import ROOT

PINS = ROOT / "commands" / "environment" / "pins"
MARKER_NAME = "training-pro.json"
# What a training process needs: modules, and the lists of requirements that have them.
TRAIN_MODULES, TRAIN_LISTS = ("torch", "transformers", "peft"), ("torch", "train")
# What is downloaded for an environment lies beside it, so that it outlives an installation that was killed.
DOWNLOADS_SUFFIX = ".downloads"
OLDEST, NEWEST = (3, 11), (3, 13)  # the Pythons for which all pinned packages have wheels
PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.executable, sep='\\n')"
PROBE_SECONDS = 20


class State(Enum):
    MISSING = auto()
    INCOMPLETE = auto()  # it is being made, or that was stopped
    BROKEN = auto()  # the Python that it was made with has gone
    OUTDATED = auto()  # made for other versions of the libraries; it can be used
    READY = auto()

    @property
    def can_train(self) -> bool:
        return self in (State.OUTDATED, State.READY)


@dataclass(frozen=True)
class Marker:
    """Content of the marker file: the installed requirement lists, and the torch that the user chose."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    torch: str | None = None
    installing: bool = False  # while pip works; it stays if pip is killed
    size: int = 0  # bytes of the complete environment

    def has(self, lists: Sequence[str]) -> bool:
        """Whether these lists are installed in their present form; a torch that the user chose stays."""
        return all(self.lists.get(name) == read_pins(name) for name in lists if name != "torch" or not self.torch)


@dataclass(frozen=True)
class OwnEnvironment:
    folder: Path
    python: Path
    state: State

    @property
    def size(self) -> int:
        """Bytes on the disk, with downloads; those of a complete one are noted, others are counted."""
        downloads = files.folder_size(self.folder.with_name(self.folder.name + DOWNLOADS_SUFFIX))
        return downloads + (read_marker(self.folder).size or files.folder_size(self.folder))


def own_environment(folders: Folders) -> OwnEnvironment:
    """Look at the environment; this reads four small files and starts no process."""
    folder = folders.environment
    marker, state = read_marker(folder), State.READY
    if not (folder / MARKER_NAME).is_file():
        state = State.MISSING
    elif marker.installing or not marker.lists:
        state = State.INCOMPLETE
    elif not has_python(folder):
        state = State.BROKEN
    elif not marker.has(TRAIN_LISTS):
        state = State.OUTDATED
    return OwnEnvironment(folder, python_of(folder), state)


def remove_environment(folders: Folders) -> str:
    """Remove the environment and its downloads from the disk; returns a message."""
    folder = folders.environment
    downloads = folder.with_name(folder.name + DOWNLOADS_SUFFIX)
    try:
        with lock(downloads / "lock") as held:
            if not held:
                raise BusyError("The training environment is being set up. Stop that first.")
            discard(folder)
        remove_folder(downloads)
    except OSError as error:
        reason = write_error_reason(error, folder)
        raise SavingError(
            f"{folder} can't be removed: {reason}. If a run uses it, stop the run, then try again."
        ) from error
    return "Removed the training environment. Your models, LoRAs and datasets are unchanged."


def discard(folder: Path) -> None:
    """Remove an environment of ours; a kill leaves none without its marker, which nobody would remove."""
    removed = folder.with_name(folder.name + PART_SUFFIX)
    if removed.exists():
        remove_folder(removed)
    if (folder / MARKER_NAME).is_file():
        remove_folder(move_new_folder(folder, removed))


def python_of(folder: Path) -> Path:
    """The interpreter of an environment, whether it is there or not."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def has_python(folder: Path) -> bool:
    """Whether an environment has its interpreter, and the Python that it was made with is still there."""
    config = read_config(folder)
    base = config.get("executable") or config.get("home", "")
    return python_of(folder).exists() and bool(base) and Path(base).exists()


def read_config(folder: Path) -> dict[str, str]:
    """The values of an environment's pyvenv.cfg; empty if it cannot be read."""
    try:
        lines = (folder / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def read_pins(name: str) -> list[str]:
    """Read a list of requirements, without comments."""
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_marker(folder: Path) -> Marker:
    return read_record(folder / MARKER_NAME, Marker, Marker())


def write_marker(folder: Path, note: Marker) -> None:
    """Write the marker atomically, so that a readable marker is complete."""
    write_json(folder / MARKER_NAME, asdict(note))


class Python(NamedTuple):
    """A Python that can create environments."""

    path: Path
    version: str  # 3.12


def probe_python(*command: str | Path) -> Python | None:
    """The Python that a command starts; None if there is none, or if venv or ensurepip is missing."""
    try:
        # -I ignores PYTHONUTF8, and a path in the encoding of Windows could not be read here.
        probe = [*command, "-I", "-X", "utf8", "-c", PROBE]
        done = subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS, check=False)
        major, minor, path = os.fsdecode(done.stdout).splitlines()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Python(Path(path), f"{major}.{minor}")


def find_python(version: str = "") -> Path:
    """A Python that can make the environment, ours or one on the path; first, one that was `version` (3.12.1)."""
    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    commands = [[sys.executable], *([f"python3.{minor}"] for minor in minors), ["python3"], ["python"]]
    if os.name == "nt":
        commands += [["py", f"-3.{minor}"] for minor in minors]
    found = []
    for command in commands:
        python = probe_python(*command)
        if python is not None and OLDEST <= tuple(map(int, python.version.split("."))) <= NEWEST:
            found.append(python.path)
            if version.startswith(f"{python.version}.") or not version:
                return python.path
    if found:
        return found[0]
    versions = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    raise TrainingProError(
        f"No Python {versions} that can create environments was found. Install one from python.org (on Debian and "
        "Ubuntu: sudo apt install python3-venv), then try again. To use one that is not on the path, run it in a "
        f'terminal:  PYTHON "{ROOT / "script.py"}" setup'
    )
