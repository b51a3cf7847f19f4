"""Runs in another process or on another machine.

A run writes its events to a file and takes requests from files beside it, one a request. So every process can
follow and control it, whichever process trains. A run for another machine is written as a folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ..core import dist_env, files, gguf_header
from ..core.errors import BusyError, SavingError, SettingsError
from ..core.files import safe_paths
from ..core.host import Folders, ModelCard
from ..core.jobs import (
    Event,
    Job,
    JobEnded,
    LiveSettingsChanged,
    Note,
    Request,
    RequestsChanged,
    RunPlanned,
    RunProgress,
    event_file,
    progress_of,
)
from ..core.version import VERSION
from ..settings.definitions import TrainingSettings
from ..settings.files import as_file
from ..settings.live_settings import RATE_FACTOR, LiveSettings
from .folder import RunFolder, is_in_progress, loras, refuse_in_progress

LOOK_SECONDS = 0.25
REQUEST_SUFFIX = ".request"
# Requests that are no `Request`: they change what was asked for before.
RESUME, LIVE = "RESUME", "LIVE"
# An environment variable of a run whose end another process waits for.
FOLLOWED = "TRAINING_PRO_FOLLOWED"
NOT_TRAINED = "{!r} is not being trained now, so it can't receive requests."


class RemoteRequest(NamedTuple):
    """What it asks of the run, and the sentence that confirms it."""

    request: str
    words: str
    at_once: bool = False  # also during a pause


REQUESTS: Mapping[str, RemoteRequest] = {
    "stop": RemoteRequest(Request.STOP.name, "stops after this step and saves the LoRA", at_once=True),
    "pause": RemoteRequest(Request.PAUSE.name, "pauses after this step", at_once=True),
    "resume": RemoteRequest(RESUME, "resumes", at_once=True),
    "save": RemoteRequest(Request.CHECKPOINT.name, "saves a checkpoint after this step", at_once=True),
    "sample": RemoteRequest(Request.SAMPLE.name, "generates samples after this step"),
    "evaluate": RemoteRequest(Request.EVALUATE.name, "measures the validation loss after this step"),
    "wind-down": RemoteRequest(Request.WIND_DOWN.name, "lowers the learning rate to 0, then finishes"),
}


def running_folder(name: str, folders: Folders) -> Path:
    """The folder of a run in progress: its requests, and its events until the first step is done."""
    return safe_paths.child(folders.running, name, "Name")


def send_request(name: str, word: str, folders: Folders) -> Path:
    """Leave a request for a run that is in progress in another process; the run removes the file."""
    if word not in REQUESTS:
        raise SettingsError([f"Unknown request {word!r}. Choose one of: {', '.join(REQUESTS)}."])
    if not is_in_progress(name, folders):
        raise BusyError(NOT_TRAINED.format(name))
    return _write_request(name, folders, {"request": REQUESTS[word].request, "word": word})


def confirm_request(name: str, word: str, folders: Folders) -> str:
    """The sentence that confirms a request."""
    waits = not REQUESTS[word].at_once and read_progress(name, folders).paused
    pause = " It is paused, so this waits until you tell it to resume." if waits else ""
    return f"{name} {REQUESTS[word].words}.{pause}"


def _write_request(name: str, folders: Folders, values: Mapping[str, Any]) -> Path:
    # Named by the clock, so that requests are taken in their order.
    path = running_folder(name, folders) / f"{time.time_ns()}{REQUEST_SUFFIX}"
    try:
        files.write_json(path, values)
    except OSError as error:
        raise BusyError(f"{path} can't be written: {files.write_error_reason(error, path.parent)}.") from error
    return path


def read_progress(name: str, folders: Folders) -> RunProgress:
    """Progress of a run that is in progress, by the last events in its file."""
    places = (running_folder(name, folders), folders.loras / name, folders.models / name)
    return progress_of(next(filter(None, map(event_file.read_first_and_last, places)), []))


@contextmanager
def remote_control(folder: RunFolder, job: Job, folders: Folders) -> Iterator[None]:
    """Let other processes follow and control the run during the block, which holds the lock of the run."""
    if not dist_env.is_main_process():
        yield
        return
    running = running_folder(folder.name, folders)
    is_followed = FOLLOWED in os.environ
    if not is_followed:  # a request that a crash left would stop or pause the next run of this name
        shutil.rmtree(running, ignore_errors=True)
    file = event_file.EventFile(running, folder.path, continues=folder.start is not None, is_followed=is_followed)
    job.log.write_to(file)
    ended = threading.Event()

    def serve() -> None:
        pending: frozenset[Request] = frozenset()
        while not ended.wait(LOOK_SECONDS):
            requests = sorted(running.glob(f"*{REQUEST_SUFFIX}"))
            for path in requests:
                with suppress(OSError):
                    values = files.read_json(path, {})
                    path.unlink()  # first, so that no request is carried out twice
                    _carry_out(values, job)
            if requests or pending != job.control.pending:
                pending = job.control.pending
                job.log.append(RequestsChanged(pending=tuple(sorted(request.name for request in pending))))

    thread = threading.Thread(target=serve, name="remote control", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            for path in running.glob(f"*{REQUEST_SUFFIX}*"):
                path.unlink()
            running.rmdir()  # unless it holds the events of a run that ended before its first step
        file.close()


def _carry_out(values: Mapping[str, Any], job: Job) -> None:
    request, value = str(values.get("request")), values.get("value")
    with suppress(SettingsError, AttributeError, TypeError, ValueError):  # of a damaged file
        if request == RESUME:
            job.control.resume()
        elif request == LIVE and job.control.live is not None:
            job.control.live = job.control.live.changed(value)
        elif request == Request.MORE_EPOCHS.name:
            job.control.extend(float(value))  # type: ignore[arg-type]
        elif request in Request.__members__:
            job.control.ask(Request[request])
    if word := values.get("word"):
        job.log.append(Note(text=f"Request from another program: {word}."))


def follow_run(
    folder: Path, job: Job, folders: Folders, is_alive: Callable[[], bool], started_at: float
) -> JobEnded | None:
    """Repeat the events of a run of another process in `job` and pass its requests on, until the run has ended.

    Returns the end of the run, or None if its process has ended without one.
    """
    earlier: list[Event] = []  # of a run that is resumed
    reader = event_file.EventReader(running_folder(folder.name, folders), folder)
    sent: dict[Path, Request] = {}
    live: dict[str, Any] = {}

    def forward(request: str, value: Any) -> None:
        if not is_alive():
            raise BusyError(NOT_TRAINED.format(folder.name))
        path = _write_request(folder.name, folders, {"request": request, "value": value})
        if request in Request.__members__:
            sent[path] = Request[request]

    job.control.forward = forward
    with suppress(BusyError):  # what was asked while the process was being started
        if epochs := job.control.take_epochs():
            job.control.extend(epochs)
        for request in job.control.pending - {Request.MORE_EPOCHS}:
            job.control.ask(request)
    while True:
        was_alive = is_alive()  # before the look, so that the last events are not missed
        for event in reader.read():
            if event.at < started_at:
                earlier.append(event)
                continue
            if isinstance(event, JobEnded):
                return event
            if isinstance(event, RunPlanned) and event.first_step:
                event = replace(event, earlier=event_file.events_before(earlier, event.first_step))
            job.log.append(event)
            if isinstance(event, RunPlanned):
                live = {**event.settings, RATE_FACTOR: event.rate_factor}
            elif isinstance(event, LiveSettingsChanged):
                live |= {key: new for key, (_, new) in event.changes.items()}
            elif isinstance(event, RequestsChanged):
                waiting = {request for path, request in sent.items() if path.exists()}
                job.control.follow({Request[name] for name in event.pending} | waiting)
            if isinstance(event, (RunPlanned, LiveSettingsChanged)):
                known = LiveSettings().values().keys() & live.keys()
                job.control.follow(live=LiveSettings().changed({key: live[key] for key in known}))
        if not was_alive:
            return None
        time.sleep(LOOK_SECONDS)


SETTINGS_FILE, REQUIREMENTS, README = "settings.json", "requirements.txt", "README.txt"
# What a run reads its data and trains with.
PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "safetensors", "bitsandbytes", "datasets", "pyarrow"),
    *("lxml", "pymupdf", "python-docx", "charset-normalizer", "jinja2", "filelock", "numpy", "gguf"),
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
5. Copy {home}/{name} from this folder into the {home} folder of the first machine. If that has a folder of this
   name already, rename one of them first: copied into each other, two runs would be mixed.
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
    for name, path in datasets.items():
        if path.is_relative_to(folders.chats):  # TextGen's own chats, and the character, whose context they have
            sources[path.relative_to(folders.user_data)] = sources.pop(data / name)
            for file in (folders.user_data / "characters").glob("*"):
                if file.stem == path.name:
                    sources[file.relative_to(folders.user_data)] = file
    format_file = f"{settings.rows.format}.json"
    own_format = folders.formats / format_file
    if not safe_paths.name_fault(format_file) and own_format.is_file():
        sources[own_format.relative_to(folders.user_data)] = own_format
    if settings.preferences.compares and folders.pairs.is_file():
        sources[folders.pairs.relative_to(folders.user_data)] = folders.pairs
    if settings.what.if_exists == "continue":
        run = folders.output_folder(full_finetune=settings.lora.whole_model) / settings.what.name
        refuse_in_progress(run.name, folders)
        # As a run here would: from the finished LoRA, or else from its checkpoints.
        is_done = loras.has_lora(run) and loras.run_status(run) == "finished"
        for item in run.glob("adapter_*" if is_done else "*"):
            if not item.name.endswith(files.PART_SUFFIX):
                place = Path("models" if settings.lora.whole_model else "loras", run.name, item.name)
                sources[place] = item

    requirements = ""
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # an optional one
            # A torch built for one kind of device has a suffix that the index does not know.
            requirements += f"{package}=={version(package).partition('+')[0]}\n"
    gguf = Path(card.given_name).name if card.given_name.endswith(".gguf") else ""
    models = {"model": gguf or card.name}  # what to copy, by what it holds
    copied = f"the folder of the model {card.name!r}"
    if gguf:
        copied = f"the file {gguf!r}{' and its other parts' if gguf_header.PART.search(gguf) else ''}"
    if tokenizer := Path(card.tokenizer_name).name:
        models["tokenizer"] = tokenizer
        copied += f" and the folder of the tokenizer {tokenizer!r}"
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
        models=copied,
        home="models" if settings.lora.whole_model else "loras",
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
