"""Remote control of a run: a thread takes requests of other processes and writes how far the run is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from ...core import dist_env
from ...core.errors import SavingError
from ...core.files import PART_SUFFIX, read_record, safe_paths, write_json
from ...core.host import Folders
from ...core.jobs import Job, Note, ProgressReader, RunProgress
from .requests import REQUESTS, take_requests

PROGRESS_SUFFIX = ".progress.json"
LOOK_SECONDS = 0.25
WRITE_SECONDS = 2.0


@contextmanager
def remote_control(name: str, job: Job, folders: Folders) -> Iterator[None]:
    """Let other processes follow and control the run during the block, which holds the lock of the run."""
    if not dist_env.is_main_process():
        yield
        return
    _clean_up(name, folders)  # what a crash left
    ended = threading.Event()
    thread = threading.Thread(target=_serve, args=(name, job, folders, ended), name="remote control", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _clean_up(name, folders)


def read_progress(name: str, folders: Folders) -> RunProgress:
    """Progress of a run that is in progress, as it was written last."""
    return read_record(_progress_file(name, folders), RunProgress, RunProgress())


def _serve(name: str, job: Job, folders: Folders, ended: threading.Event) -> None:
    reader, written, due = ProgressReader(job), RunProgress(), 0.0
    while not ended.wait(LOOK_SECONDS):
        for request in take_requests(name, folders):
            REQUESTS[request].act(job.control)
            job.log.append(Note(text=f"Request from another program: {request}."))
        progress = reader.read()
        if time.monotonic() >= due and replace(progress, at=written.at) != written:
            with suppress(OSError, SavingError):  # a full disk must not end a run
                write_json(_progress_file(name, folders), asdict(progress))
            written, due = progress, time.monotonic() + WRITE_SECONDS


def _clean_up(name: str, folders: Folders) -> None:
    """Remove the requests and the progress of a run, also progress whose writing was interrupted by a kill."""
    take_requests(name, folders)
    progress = _progress_file(name, folders)
    for path in (progress, progress.with_name(progress.name + PART_SUFFIX)):
        with suppress(OSError):
            path.unlink()


def _progress_file(name: str, folders: Folders) -> Path:
    return safe_paths.child(folders.training, f"{name}{PROGRESS_SUFFIX}", "Name")
