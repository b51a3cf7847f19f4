"""An environment on disk: whether it is whole, making it, mending it, adding what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ...core.errors import TrainingProError
from ...core.files import write_json
from .pip import install, last_lines, say, size_of, would_install
from .torch_build import torch_arguments

PINS = Path(__file__).resolve().parent / "pins"
MARKER = "training-pro.json"
LARGE = ("torch", "transformers", "peft")

# Run by the environment's own interpreter; each says by its exit code whether all is well.
NOTHING = "pass"
FIND = "import sys, importlib.util as u; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))"
IMPORT = "import sys, importlib as i; [i.import_module(name) for name in sys.argv[1:]]"
# A killed pip leaves packages that it later takes for installed: files missing, cut short, or no
# list of files at all. Compiled files may go at any time, and scripts carry the path they were made for.
INTACT = """
import sys, importlib.metadata as m
def torn(file):
    if str(file).endswith(".pyc") or str(file).startswith(".."):
        return False
    path = file.locate()
    return not path.is_file() or (file.size is not None and path.stat().st_size != file.size)
sys.exit(any(found.files is None or any(map(torn, found.files)) for found in m.distributions()))
"""


@dataclass(frozen=True)
class Note:
    """What the marker says is in: the lists as they were, and the torch that the user asked for."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    torch: str | None = None


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
        """Begun by us, whether finished or not; what somebody else made is not cleared away."""
        return (self.folder / MARKER).is_file()

    def has_noted(self, lists: Sequence[str]) -> bool:
        """Whether the marker says that these lists are in, as they read today; it looks no further."""
        noted = read_note(self.folder)
        if self.torch_spec and self.torch_spec != noted.torch:
            return False
        return all(noted.lists.get(name) == pins(name) for name in lists if name != "torch" or not noted.torch)

    def finds_modules(self) -> bool:
        return self._answers(FIND, *self.modules)

    def make(self, lists: Sequence[str]) -> None:
        """Make it, or mend it, or add what is missing; the marker comes last."""
        with _told_plainly(self.folder):
            noted = read_note(self.folder)
            self._create_if_dead()
            self._install(lists)
            if not self._answers(INTACT):
                self._begin_again(lists)
            self._check_imports()
            together = {**noted.lists, **{name: pins(name) for name in lists}}
            write_note(self.folder, Note(together, self.torch_spec or noted.torch))
        say(f"The environment is ready: {self.folder}")

    def _create_if_dead(self) -> None:
        if self._answers(NOTHING) and self._answers("import pip"):
            return
        foreign = self.folder / ("bin" if os.name == "nt" else "Scripts")
        if not self.is_ours and (self._answers(NOTHING) or foreign.exists()):
            raise TrainingProError(
                f"{self.folder} belongs to something else (it has no pip, or is of another system): "
                "rename that folder, then start again."
            )
        say(f"Training PRO makes an environment of its own and touches no other: {self.folder}")
        create(self.folder)

    def _install(self, lists: Sequence[str]) -> None:
        say(f"Asking pip what has to come into {self.folder} ...")
        arguments = torch_arguments(self.python, self._torch_pin(), self.torch_spec)
        for name in lists:
            arguments += [] if name == "torch" else ["--requirement", str(PINS / f"{name}.txt")]
        if wheels := would_install(self.python, arguments):
            say(f"To load into {self.folder}: {size_of(wheels)} (unpacked two to four times that).")
            if self.is_ours:
                write_note(self.folder, Note(torch=read_note(self.folder).torch))
            install(self.python, arguments)

    def _begin_again(self, lists: Sequence[str]) -> None:
        if not self.is_ours or self.is_running:
            raise TrainingProError(
                f"Packages in {self.folder} are damaged. Delete that folder, then start again "
                "with the Python of the system."
            )
        say(f"{self.folder} was left half made and is begun again.")
        create(self.folder)
        self._install(lists)

    def _check_imports(self) -> None:
        """Large libraries lean on the system's own (a C++ runtime, say), which pip knows nothing of."""
        command = [str(self.python), "-I", "-c", IMPORT, *LARGE]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise TrainingProError(
                f"{last_lines(done.stderr)}\n{', '.join(LARGE)} are in {self.folder}, "
                "but this system cannot load them: the reason stands above."
            )

    def _torch_pin(self) -> str:
        """An environment with a torch of the user's choice in it keeps that one."""
        if read_note(self.folder).torch and not self.torch_spec:
            return "torch"
        return pins("torch")[0]

    def _answers(self, code: str, *words: str) -> bool:
        try:
            command = [str(self.python), "-I", "-c", code, *words]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def create(folder: Path) -> None:
    """An empty environment, marked as ours from its first moment."""
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        version = "{}.{}".format(*sys.version_info[:2])
        raise TrainingProError(
            f"{sys.executable} cannot make environments: its venv or ensurepip module is missing. "
            f"On Debian and Ubuntu: sudo apt install python{version}-venv"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_note(folder, Note())
    command = [sys.executable, "-m", "venv", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise TrainingProError(
            f"{last_lines(done.stdout + done.stderr)}\n{sys.executable} could not make {folder}: see above."
        )


def pins(name: str) -> list[str]:
    """One list of requirements, without its comments."""
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_note(folder: Path) -> Note:
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return Note(dict(found["lists"]), found["torch"])
    except (OSError, ValueError, TypeError, KeyError):
        return Note()


def write_note(folder: Path, note: Note) -> None:
    """A marker that can be read is a marker that holds: it is written whole."""
    write_json(folder / MARKER, {"lists": note.lists, "torch": note.torch})


@contextmanager
def _told_plainly(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise TrainingProError(f"Stopped; {folder} is not whole yet. The next start goes on there.") from None
    except OSError as error:
        raise TrainingProError(f"The environment {folder} cannot be made: {error}") from error
