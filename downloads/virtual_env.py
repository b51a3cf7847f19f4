"""A virtual environment on disk: checks, makes, repairs and extends it, and chooses the build of torch."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core import own_environment
from ..core.errors import BusyError, SavingError, StoppedError, TrainingProError
from ..core.files import folder_size, free_bytes, is_disk_full, lock, write_error_reason
from ..core.host import Folders
from ..core.jobs import Job, JobEnded, JobFn, Note, Request, Stage
from ..core.own_environment import Marker, read_config, read_marker, read_pins, write_marker
from ..train_utils import format_count, size
from .fetching import Emit, IsStopped
from .wheels import Pip, WheelDownloads, run_program

# Code run by the interpreter of the environment; an exit code of 0 means that all is well.
FIND_CODE = "import sys, importlib.util as u; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))"
IMPORT_CODE = "import sys, importlib as i; [i.import_module(name) for name in sys.argv[1:]]"
# Full memory is no fault: the model of a chat may have it.
GPU_CODE = """
import sys, torch
try:
    torch.version.cuda and torch.ones(1, device="cuda")
except Exception as error:
    sys.exit(0 if "out of memory" in str(error) else str(error))
"""
# A dry run of earlier versions downloads the packages: a CUDA build of torch where only its name is asked for.
METADATA_PIP = "pip>=26"
# PyPI has CUDA builds of torch for Linux and CPU builds for the other systems: a Linux machine without a GPU would
# download gigabytes for nothing, and the GPU of a Windows machine would stay unused. So where its build does not
# fit, that of PyTorch's own index is taken. A mirror may differ from PyPI, so it is asked.
PYTORCH_INDEX = "https://download.pytorch.org/whl"
NEW_CUDA_BUILD, OLD_CUDA_BUILD = "cu130", "cu126"  # torch 2.13 is built for both
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")
# Below site-packages, of torch 2.13.0+cu130: a license. Windows takes paths of 259 characters.
LONGEST_OF_TORCH, LONGEST_ON_WINDOWS = 173, 259
AMD_DRIVER = Path("/dev/kfd")
# See docs/benchmarks.md: the demo model, on two cores.
CPU_NOTE = (
    "No NVIDIA GPU was found, so models are trained on the CPU, which is slow. On two cores, a model with 135 "
    "million parameters trained at about 300 tokens per second: 7 minutes for each epoch of a book of 100,000 "
    "words. A model with ten times as many parameters takes about ten times as long."
)
AMD_NOTE = "This computer has an AMD GPU. To train on it, choose a ROCm build of torch (see pytorch.org)."


@dataclass(frozen=True)
class Environment:
    folder: Path
    torch_spec: str | None = None
    emit: Emit = lambda event: None
    is_stopped: IsStopped = lambda: False
    base: Path = Path(sys.executable)  # the Python that it is made with
    free: Callable[[], object] = lambda: None  # ends what uses the packages before they are replaced, or refuses

    @property
    def python(self) -> Path:
        return own_environment.python_of(self.folder)

    @property
    def is_running(self) -> bool:
        return Path(sys.prefix).resolve() == self.folder.resolve()

    @property
    def is_ours(self) -> bool:
        """Whether we made the environment, finished or not; one made by others is never deleted."""
        return (self.folder / own_environment.MARKER_NAME).is_file()

    def has_lists(self, lists: Sequence[str]) -> bool:
        """Whether the marker says that these lists are installed in their present form."""
        noted = read_marker(self.folder)
        return (not self.torch_spec or self.torch_spec == noted.torch) and noted.has(lists)

    def has_modules(self, names: Sequence[str]) -> bool:
        return not self._error_of(FIND_CODE, *names)

    def make(self, lists: Sequence[str], *, plan: bool = False) -> str:
        """Make, repair or extend the environment and return a message; as a plan, it is left without packages."""
        self._refuse_long_path()
        downloads_folder = self.folder.with_name(self.folder.name + own_environment.DOWNLOADS_SUFFIX)
        try:
            with lock(downloads_folder / "lock") as held:
                if not held:
                    raise BusyError(f"{self.folder} is being set up by another program. Wait until it is done.")
                self._prepare()
                marker = read_marker(self.folder)
                torch = self.torch_spec or marker.torch
                self._tell(f"Asking pip which packages to install in {self.folder}")
                # A torch that the user chose earlier stays as it is: pip only has to see that there is one.
                keeps_torch = bool(marker.torch) and not self.torch_spec
                pin, spec = ("torch", None) if keeps_torch else (read_pins("torch")[0], torch)
                pip = Pip(self.python, self.is_stopped)
                required, *indexes = torch_arguments(pip, pin, spec, self.emit)
                files = [own_environment.PINS / f"{name}.txt" for name in lists if name != "torch"]
                others = [word for file in files for word in ("--requirement", str(file))]
                if wheels := pip.resolve(required, *indexes, *others):
                    downloads = WheelDownloads(downloads_folder, self.python, wheels)
                    words = self._check_disk(downloads, len(wheels))
                    if plan:
                        is_cpu = (torch or _build_for_this_machine()) == "cpu"
                        notes = [CPU_NOTE] * is_cpu + [AMD_NOTE] * (is_cpu and AMD_DRIVER.exists())
                        return "\n".join([words, *notes])
                    self.emit(Note(text=words))
                    downloads.fetch(self.emit, self.is_stopped)
                    self.free()
                    # A killed pip leaves truncated files that it later takes for installed.
                    if self.is_ours:  # the marker is what makes an environment ours
                        write_marker(self.folder, Marker(marker.lists, marker.torch, installing=True))
                    self._tell(f"Installing {format_count(len(wheels), 'package')}, which takes a few minutes")
                    # Without bytecode, which takes longer than all the rest. Python writes that of the modules
                    # that it loads.
                    pip.install("--no-deps", "--no-compile", *downloads.requirements(), *indexes)
                # These libraries need system libraries (a C++ runtime) that pip does not know.
                self._tell("Loading torch, transformers and PEFT for a test")
                if error := self._error_of(IMPORT_CODE, *own_environment.TRAIN_MODULES):
                    raise TrainingProError(
                        f"{error}\nThe packages are installed in {self.folder}, but this system can't load them. "
                        "See the error above."
                    )
                if _build_for_this_machine() != "cpu" and (error := self._error_of(GPU_CODE)):
                    raise TrainingProError(
                        f"{error}\nThe packages are installed in {self.folder}, but torch can't use this "
                        "computer's GPU. Update the NVIDIA driver (to 580 or newer), then try again. To train on "
                        "the CPU, choose the build cpu of torch."
                    )
                installed = {**marker.lists, **{name: read_pins(name) for name in lists}}
                taken = folder_size(self.folder)
                write_marker(self.folder, Marker(installed, torch, size=taken))
            shutil.rmtree(downloads_folder, ignore_errors=True)
        except KeyboardInterrupt:
            raise TrainingProError(
                f"Stopped. {self.folder} is not complete yet. Run the command again to continue."
            ) from None
        except OSError as error:
            reason = write_error_reason(error, self.folder)
            raise SavingError(f"The environment {self.folder} can't be made: {reason}.") from error
        return f"Environment ready: {self.folder} ({size(taken)})"

    def _refuse_long_path(self) -> None:
        """Raise an error, before the download, on a Windows without long paths where torch's would be too long."""
        if sys.platform != "win32":
            return
        import winreg

        with suppress(OSError):
            place = r"SYSTEM\CurrentControlSet\Control\FileSystem"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
                if winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1:
                    return
        length = len(str(self.folder / "Lib" / "site-packages")) + 1 + LONGEST_OF_TORCH
        if length > LONGEST_ON_WINDOWS:
            raise SavingError(
                f"The path {self.folder} is too long: a file of torch in it would have {length} characters in its "
                f"path, and Windows allows {LONGEST_ON_WINDOWS}. Move the program to a shorter path, such as "
                "C:\\textgen, or enable long paths: see https://pip.pypa.io/warnings/enable-long-paths"
            )

    def _prepare(self) -> None:
        """Leave an environment with a Python and pip: as it is, with a new Python, or made anew."""
        marker = read_marker(self.folder)
        if marker.installing and self.is_running:
            raise TrainingProError(
                f"Packages in {self.folder} are damaged. Delete that folder, then start again with the "
                "system's Python."
            )
        if not marker.installing and not self._error_of("import pip"):
            return
        if not self.is_ours and self.folder.exists():
            raise TrainingProError(
                f"{self.folder} is not a Training PRO environment (it has no pip, or was made on "
                "another system). Rename that folder, then start again."
            )
        python = own_environment.probe_python(self.base)
        if python is None:
            package = "python{}.{}-venv".format(*sys.version_info[:2])
            raise TrainingProError(
                f"{self.base} can't create environments because its venv or ensurepip module is missing. On "
                f"Debian and Ubuntu, run:  sudo apt install {package}"
            )
        # The packages of an environment whose Python has gone, such as that of an earlier version of the webui,
        # work with another Python of the same version.
        made_with = read_config(self.folder).get("version", "")
        if not marker.installing and made_with.startswith(f"{python.version}."):
            self._tell(f"Repairing {self.folder} with {self.base}")
            for link in self.python.parent.glob("python*"):
                link.unlink()  # venv would keep a link that leads nowhere
            self._run_venv("--without-pip")
            if not self._error_of("import pip"):
                return
        self._tell(
            f"Creating an environment for Training PRO in {self.folder}. Other environments are not changed"
        )
        own_environment.discard(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_marker(self.folder, Marker(torch=marker.torch))  # from the start
        self._run_venv()
        with suppress(TrainingProError):  # without a network, an older pip reads the packages of a folder as well
            Pip(self.python, self.is_stopped).install(METADATA_PIP)

    def _run_venv(self, *options: str) -> None:
        code, output = run_program([self.base, "-m", "venv", *options, self.folder], self.is_stopped)
        if code and is_disk_full(OSError(output), self.folder):
            raise OSError(errno.ENOSPC, "venv")
        if code:
            raise TrainingProError(f"{output}\n{self.base} could not create {self.folder}. See the error above.")

    def _check_disk(self, downloads: WheelDownloads, count: int) -> str:
        """Describe what will be downloaded and the space that it needs; raises an error if that is not free."""
        rest, free = downloads.total - downloads.done, free_bytes(self.folder)
        needs = f"{size(rest + downloads.installed_size)} is needed on the disk that holds {self.folder}"
        if rest + downloads.installed_size > free:
            raise SavingError(f"About {needs}, but only {size(free)} is free. Free some space, then try again.")
        unknown = f" plus {downloads.unknown} of unknown size" if downloads.unknown else ""
        done = f", {size(downloads.done)} of it is here already" if downloads.done else ""
        return (
            f"To install: {format_count(count, 'package')}, {size(downloads.size)}{unknown}{done}. During the "
            f"setup, about {needs} ({size(free)} free), and about {size(downloads.installed_size)} afterwards."
        )

    def _tell(self, text: str) -> None:
        self.emit(Stage(text=text))

    def _error_of(self, code: str, *words: str) -> str:
        """Run code in the environment; empty if it ends without an error."""
        try:
            exit_code, output = run_program([self.python, "-I", "-c", code, *words], self.is_stopped)
        except OSError as error:
            return str(error)
        return (output or "failed") if exit_code else ""


def set_up(folders: Folders, free: Callable[[], object], *, torch: str = "", plan: bool = False) -> JobFn:
    """A job that sets up the environment of training processes, or only says what would be downloaded."""

    def work(job: Job) -> JobEnded:
        job.log.append(Stage(text="Looking for a Python"))
        # An environment whose Python has gone needs one of the same version to keep its packages.
        base = own_environment.find_python(read_config(folders.environment).get("version", ""))
        is_stopped = lambda: job.control.asked(Request.STOP)  # noqa: E731
        environment = Environment(folders.environment, torch, job.log.append, is_stopped, base, free)
        try:
            text = environment.make(own_environment.TRAIN_LISTS, plan=plan)
        except StoppedError:
            text = "Stopped. What was downloaded is kept, and the next setup continues with it."
            return JobEnded(outcome="stopped", text=text)
        return JobEnded(outcome="finished", text=text)

    return work


def torch_arguments(pip: Pip, pin: str, spec: str | None, emit: Emit = lambda event: None) -> list[str]:
    """Arguments of pip for torch, first what is required; `spec` is the user's choice (`--torch`)."""
    if spec:
        first, *rest = shlex.split(spec, posix=os.name != "nt") or [""]  # backslashes of Windows stay
        if re.fullmatch(r"\d[\w.+]*", first):
            return [f"torch=={first}", *rest]
        if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", first):
            return _from_pytorch(pin, first) + rest
        if re.match(r"torch\b", first) or "://" in first or Path(first).is_file():
            return [first, *rest]
        raise TrainingProError(
            f"--torch {spec!r} is not valid. Use a version (2.12.0), a PyTorch build (cpu, cu126), "
            "or anything else that pip accepts (the path or URL of a wheel, or 'torch==2.12.0 --index-url URL')."
        )
    wheels = pip.resolve(pin)
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
        pip.resolve(*arguments)
    except TrainingProError as error:  # PyTorch's index is blocked: an unused CUDA is fine, an unused GPU is not
        if build != "cpu":
            raise TrainingProError(
                f"{error}\nThe torch build for this GPU is {arguments[0]}, from {arguments[-1]}. "
                f"To use the build from pip's default package index instead, add --torch {pin}."
            ) from error
        text = (
            f"{arguments[-1]} can't be reached, or has no {arguments[0]} for this version of Python.\nUsing the "
            "build from pip's default package index instead. It includes CUDA, which this machine does not need."
        )
        emit(Note(text=text))
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
