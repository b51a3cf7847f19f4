"""Requests to a run from another process: each is an empty file beside the lock of the run, taken by the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import BusyError, SettingsError
from ...core.files import safe_paths, with_retries, write_error_reason
from ...core.host import Folders
from ...core.jobs import Request, RunControl
from ..folder import is_in_progress


@dataclass(frozen=True)
class RemoteRequest:
    """What it does to the run, and the sentence that confirms it."""

    act: Callable[[RunControl[Any]], object]
    words: str


def _ask(request: Request, words: str) -> RemoteRequest:
    return RemoteRequest(lambda control: control.ask(request), words)


REQUESTS: Mapping[str, RemoteRequest] = {
    "stop": _ask(Request.STOP, "stops after this step and saves the LoRA"),
    "pause": _ask(Request.PAUSE, "pauses after this step"),
    "resume": RemoteRequest(lambda control: control.resume(), "resumes"),
    "save": _ask(Request.CHECKPOINT, "saves a checkpoint after this step"),
    "sample": _ask(Request.SAMPLE, "generates samples after this step"),
    "evaluate": _ask(Request.EVALUATE, "measures the validation loss after this step"),
    "wind-down": _ask(Request.WIND_DOWN, "lowers the learning rate to 0, then finishes"),
}


def send_request(name: str, request: str, folders: Folders) -> None:
    """Leave a request for a run that is in progress in another process."""
    if request not in REQUESTS:
        raise SettingsError([f"Unknown request {request!r}. Choose one of: {', '.join(REQUESTS)}."])
    if not is_in_progress(name, folders):
        raise BusyError(f"{name!r} is not being trained now, so it can't receive requests.")
    path = _path(name, request, folders)
    try:
        with_retries(path.touch)
    except OSError as error:
        raise BusyError(f"{path} can't be written: {write_error_reason(error, path.parent)}.") from error


def is_waiting(name: str, request: str, folders: Folders) -> bool:
    """Whether the run has not taken the request yet."""
    return _path(name, request, folders).exists()


def take_requests(name: str, folders: Folders) -> list[str]:
    """Return the requests that are waiting, and remove them."""
    return [request for request in REQUESTS if _take(_path(name, request, folders))]


def _take(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False


def _path(name: str, request: str, folders: Folders) -> Path:
    return safe_paths.child(folders.training, f"{name}.{request}.request", "Name")
