"""Runs in another process or on another machine.

A run in another process is seen and controlled through small files beside its lock: a thread of the run takes
requests, each an empty file, and writes how far the run is. A run for another machine is written as a folder.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ..core import dist_env, files
from ..core.errors import BusyError, SavingError, SettingsError
from ..core.files import safe_paths
from ..core.host import Folders, ModelCard
from ..core.jobs import Job, Note, Request, progress
from ..core.version import VERSION
from ..settings.definitions import TrainingSettings
from ..settings.files import as_file
from .folder import is_in_progress

LOOK_SECONDS, WRITE_SECONDS = 0.25, 2.0
PROGRESS = "progress.json"


class RemoteRequest(NamedTuple):
    """What it asks of the run, None to resume it; and the sentence that confirms it."""

    request: Request | None
    words: str


REQUESTS: Mapping[str, RemoteRequest] = {
    "stop": RemoteRequest(Request.STOP, "stops after this step and saves the LoRA"),
    "pause": RemoteRequest(Request.PAUSE, "pauses after this step"),
    "resume": RemoteRequest(None, "resumes"),
    "save": RemoteRequest(Request.CHECKPOINT, "saves a checkpoint after this step"),
    "sample": RemoteRequest(Request.SAMPLE, "generates samples after this step"),
    "evaluate": RemoteRequest(Request.EVALUATE, "measures the validation loss after this step"),
    "wind-down": RemoteRequest(Request.WIND_DOWN, "lowers the learning rate to 0, then finishes"),
}


def _control_file(name: str, kind: str, folders: Folders) -> Path:
    """The file beside the lock of a run for a request, or for its progress."""
    return safe_paths.child(folders.training, f"{name}.{kind}", "Name")


def send_request(name: str, request: str, folders: Folders) -> None:
    """Leave a request for a run that is in progress in another process."""
    if request not in REQUESTS:
        raise SettingsError([f"Unknown request {request!r}. Choose one of: {', '.join(REQUESTS)}."])
    if not is_in_progress(name, folders):
        raise BusyError(f"{name!r} is not being trained now, so it can't receive requests.")
    path = _control_file(name, f"{request}.request", folders)
    try:
        files.with_retries(path.touch)
    except OSError as error:
        raise BusyError(f"{path} can't be written: {files.write_error_reason(error, path.parent)}.") from error


def is_waiting(name: str, request: str, folders: Folders) -> bool:
    """Whether the run has not taken the request yet."""
    return _control_file(name, f"{request}.request", folders).exists()


def read_progress(name: str, folders: Folders) -> progress.RunProgress:
    """Progress of a run that is in progress, as it was written last."""
    return files.read_record(_control_file(name, PROGRESS, folders), progress.RunProgress, progress.RunProgress())


@contextmanager
def remote_control(name: str, job: Job, folders: Folders) -> Iterator[None]:
    """Let other processes follow and control the run during the block, which holds the lock of the run."""
    if not dist_env.is_main_process():
        yield
        return
    progress_file = _control_file(name, PROGRESS, folders)
    own = [_control_file(name, f"{request}.request", folders) for request in REQUESTS]
    own += [progress_file, progress_file.with_name(progress_file.name + files.PART_SUFFIX)]
    ended = threading.Event()

    def serve() -> None:
        # A file of a few hundred bytes every two seconds at most, and only if something changed beside the time.
        reader, written, due = progress.follow_progress(job), progress.RunProgress(), 0.0
        while not ended.wait(LOOK_SECONDS):
            for word, asked in REQUESTS.items():
                with suppress(OSError):
                    _control_file(name, f"{word}.request", folders).unlink()
                    job.control.ask(asked.request) if asked.request else job.control.resume()
                    job.log.append(Note(text=f"Request from another program: {word}."))
            current = next(reader)
            if time.monotonic() >= due and replace(current, at=written.at) != written:
                with suppress(OSError, SavingError):  # a full disk must not end a run
                    files.write_json(progress_file, asdict(current))
                written, due = current, time.monotonic() + WRITE_SECONDS

    # A request that a crash left would stop or pause the next run of this name.
    _remove_files(own)
    thread = threading.Thread(target=serve, name="remote control", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _remove_files(own)


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


SETTINGS_FILE, REQUIREMENTS, README = "settings.json", "requirements.txt", "README.txt"
# What a run reads its data and trains with.
PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "safetensors", "bitsandbytes", "datasets", "pyarrow"),
    *("lxml", "pymupdf", "python-docx", "charset-normalizer", "jinja2", "filelock", "numpy"),
)
INSTRUCTIONS = """\
A training run for another machine
==================================

This folder was made by Training PRO {version} with Python {python}. It is a working folder that contains the
settings ({settings_file}) and the data ({data_folder}) of the run {name!r}. It does not contain the base model.

1. Copy this folder to the other machine, and install Training PRO {version} there.
2. Optional: install the torch build for your GPU, and then the package versions that this folder was made with:
       pip install -r {requirements}
   If you skip this step, Training PRO creates its own environment the first time you run it.
3. Copy {models} into "models" inside this folder, or download the model:
       python3 script.py get OWNER/NAME --user-data FOLDER
4. Train: run these commands in the folder that contains script.py. FOLDER stands for this folder. On Windows,
   write py instead of python3.
       python3 script.py check FOLDER/{settings_file} --user-data FOLDER {arguments}
       python3 script.py train FOLDER/{settings_file} --user-data FOLDER {arguments}
   With two GPUs:
       torchrun --nproc_per_node 2 script.py train FOLDER/{settings_file} --user-data FOLDER {arguments}
   To resume after Ctrl+C or a crash, add --resume to the same command.
5. Copy loras/{name} from this folder into the loras folder of the first machine. The Runs tab then shows
   the LoRA with its curve, its checkpoints and its report.
"""


def write_portable_run(
    settings: TrainingSettings, datasets: Mapping[str, Path], card: ModelCard, folders: Folders, out: Path
) -> None:
    """Write a run to train elsewhere to a new folder, with these datasets; it appears only when it is complete."""
    if out.exists():
        raise SavingError(f"{out} already exists. Choose another folder, or delete this one.")
    # Each file or folder that the run reads, by its place in a working folder.
    data = folders.datasets.relative_to(folders.user_data)
    sources = {data / name: path for name, path in datasets.items()}
    format_file = f"{settings.rows.format}.json"
    own_format = folders.formats / format_file
    if not safe_paths.name_fault(format_file) and own_format.is_file():
        sources[own_format.relative_to(folders.user_data)] = own_format
    if settings.what.if_exists == "continue":
        for adapter in (folders.loras / settings.what.name).glob("adapter_*"):
            sources[Path("loras", settings.what.name, adapter.name)] = adapter

    requirements = ""
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # an optional one
            # A torch built for one kind of device has a suffix that the index does not know.
            requirements += f"{package}=={version(package).partition('+')[0]}\n"
    models = {"model": card.name}  # the folders to copy, by what they hold
    if tokenizer := Path(card.tokenizer_name).name:
        models["tokenizer"] = tokenizer
    # The model is loaded as here, except for memory limits: the other machine has its own.
    words = [word for what, name in models.items() for word in (f"--{what}", name)]
    words += ["--load", card.loading] if card.loading != "auto" else []
    instructions = INSTRUCTIONS.format(
        version=VERSION,
        python=".".join(map(str, sys.version_info[:3])),
        settings_file=SETTINGS_FILE,
        data_folder=data.as_posix(),
        requirements=REQUIREMENTS,
        name=settings.what.name,
        models=" and ".join(f"the folder of the {what} {name!r}" for what, name in models.items()),
        arguments=" ".join(f'"{word}"' if " " in word else word for word in words),
    )
    try:
        with files.staging_folder(out) as scratch:
            folder = scratch / out.name
            for place, source in sources.items():
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                # What links lead to is copied, too, as a run reads it.
                shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
            (folder / "models").mkdir(parents=True, exist_ok=True)
            files.write_json(folder / SETTINGS_FILE, as_file(settings))
            files.write_text(folder / REQUIREMENTS, requirements)
            files.write_text(folder / README, instructions)
            files.move_new_folder(folder, out)
    except OSError as error:
        raise SavingError(f"{out} can't be written: {files.write_error_reason(error, out)}") from error
