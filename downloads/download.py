"""Resumable download of a model from the hub; it appears in the models folder only when it is complete."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BusyError, ModelError, first_line
from ..core.files import (
    PART_SUFFIX,
    free_bytes,
    lock,
    move_atomically,
    move_new_folder,
    safe_paths,
    write_error_reason,
)
from ..core.jobs import DownloadProgress, Event, JobEnded, Note, Stage
from ..train_utils import duration, format_count, size
from . import hub
from .hub_models import DownloadPlan, HubFile, HubModel

PARTIAL_PREFIX = ".getting-"
LOCK_NAME = "lock"
PARTIAL_CONTENT = 206
REPORT_SECONDS = 1.0
SPEED_SECONDS = 10.0  # the speed is measured over this time
RETRY_PAUSES_SECONDS = (1, 2, 4, 8, 16)
"""Pauses before retries; they start over whenever data has arrived."""

EventSink = Callable[[Event], object]
StopCheck = Callable[[], bool]


class _StopRequested(Exception):  # noqa: N818 - no error
    """The user asked to stop."""


def download_model(
    model: HubModel,
    models: Path,
    refuse_type: hub.TypeRefusal,
    emit: EventSink,
    stopping: StopCheck = lambda: False,
) -> JobEnded:
    """Download a model into the models folder; everything that can be refused is refused before writing."""
    folder = safe_paths.child(models, model.folder, "Model", refusal=ModelError)
    partial_folder = safe_paths.child(models, f"{PARTIAL_PREFIX}{model.folder}", "Model", refusal=ModelError)
    _refuse_existing(folder)
    emit(Stage(text=f"Asking the Hub for {model.words}"))
    partial = PartialDownload(hub.plan_download(model, refuse_type), partial_folder)
    _refuse_full_disk(partial)
    emit(Note(text=_start_message(partial, folder)))
    started = time.monotonic()
    try:
        _download_all(partial, folder, ProgressMeter(partial, emit, stopping))
    except (KeyboardInterrupt, _StopRequested):
        return JobEnded(outcome="stopped", text=f"Stopped. {_rest_message(partial)}")
    except ModelError as error:
        raise ModelError(f"{error} {_rest_message(partial)}") from error
    except OSError as error:
        reason = f"{models} can't be written: {write_error_reason(error, models)}."
        raise ModelError(f"{reason} {_rest_message(partial)}") from error
    figures = f"{size(partial.plan.size)}, {duration(time.monotonic() - started)}"
    return JobEnded(outcome="finished", text=f"{model.words} is in {folder} ({figures}).", folder=folder)


@dataclass(frozen=True)
class PartialDownload:
    """The folder of a download until it is complete."""

    plan: DownloadPlan
    folder: Path

    @property
    def final_folder(self) -> Path:
        """Folder of the finished model before its move; named by the commit, so that a later try finds it."""
        return self.folder / self.plan.commit

    def complete_path(self, file: HubFile) -> Path:
        """Path of a complete file until all are; its name has its hash, because a branch may change meanwhile."""
        return self.folder / f"{file.name}.{file.digest[:16]}"

    def partial_path(self, file: HubFile) -> Path:
        return self.folder / f"{file.name}.{file.digest[:16]}{PART_SUFFIX}"

    def has_all_of(self, file: HubFile) -> bool:
        return self.complete_path(file).is_file() or (self.final_folder / file.name).is_file()

    def bytes_of(self, file: HubFile) -> int:
        paths = (self.final_folder / file.name, self.complete_path(file), self.partial_path(file))
        return sum(path.stat().st_size for path in paths if path.is_file())

    @property
    def size(self) -> int:
        """Bytes that are already downloaded."""
        return sum(map(self.bytes_of, self.plan.files))


class ProgressMeter:
    """Counts the downloaded bytes, reports them, and checks for a request to stop."""

    def __init__(self, partial: PartialDownload, emit: EventSink, stopping: StopCheck) -> None:
        self.emit, self._stopping = emit, stopping
        self._positions = {file.name: partial.bytes_of(file) for file in partial.plan.files}
        self._total = partial.plan.size
        self._recent: deque[tuple[float, int]] = deque()
        self._last_report, self._last_done = float("-inf"), -1

    def record(self, file: HubFile, position: int) -> None:
        """Note that a file has been downloaded up to `position`."""
        self.check_stop()
        self._positions[file.name] = position
        now, done = time.monotonic(), sum(self._positions.values())
        if done == self._last_done or (now - self._last_report < REPORT_SECONDS and done < self._total):
            return
        self._last_report, self._last_done = now, done
        self._recent.append((now, done))
        while now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()
        first_time, first_done = self._recent[0]
        speed = (done - first_done) / (now - first_time) if now > first_time else 0.0
        self.emit(DownloadProgress(done=done, total=self._total, speed=speed))

    def check_stop(self) -> None:
        if self._stopping():
            raise _StopRequested

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.check_stop()
            time.sleep(min(0.1, remaining))


def _refuse_existing(folder: Path) -> None:
    if (folder / "config.json").is_file():
        raise ModelError(
            f"{folder.name} already exists in {folder.parent}. Use it, or delete or rename that "
            "folder to download the model again."
        )
    if folder.exists():
        raise ModelError(f"{folder} exists but contains no model. Delete or rename it, then try again.")


def _refuse_full_disk(partial: PartialDownload) -> None:
    missing, free = partial.plan.size - partial.size, free_bytes(partial.folder)
    if missing > free:
        raise ModelError(
            f"{partial.plan.model.words} still needs {size(missing)} on the disk that holds "
            f"{partial.folder.parent}, but only {size(free)} is free. Free some space, or choose a "
            "smaller model."
        )


def _start_message(partial: PartialDownload, folder: Path) -> str:
    plan = partial.plan
    license_note = f", license {plan.license}" if plan.license else ""
    present_note = f" ({size(partial.size)} already downloaded)" if partial.size else ""
    return (
        f"{plan.model.words} at commit {plan.commit[:7]}: {plan.model_type}{license_note}, "
        f"{format_count(len(plan.files), 'file')}, {size(plan.size)}{present_note}. Downloading to {folder} "
        f"({size(free_bytes(folder))} free)."
    )


def _download_all(partial: PartialDownload, folder: Path, meter: ProgressMeter) -> None:
    with lock(partial.folder / LOCK_NAME) as acquired:
        if not acquired:
            raise BusyError(f"Another program is downloading {partial.plan.model.words}. Wait until it is done.")
        for file in partial.plan.files:
            if not partial.has_all_of(file):
                _download_file(file, partial, meter)
            meter.record(file, file.size)
        _assemble(partial, folder)
    shutil.rmtree(partial.folder, ignore_errors=True)


def _download_file(file: HubFile, partial: PartialDownload, meter: ProgressMeter) -> None:
    """Download the rest of a file; a lost connection is retried for a while."""
    path = partial.partial_path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    pauses = iter(RETRY_PAUSES_SECONDS)
    while (begin := path.stat().st_size) < file.size:
        try:
            _append_stream(path, begin, file, partial.plan, meter)
            break
        except hub.hub_errors() as error:
            if path.stat().st_size > begin:
                pauses = iter(RETRY_PAUSES_SECONDS)
            pause = next(pauses, None) if hub.is_temporary(error) else None
            if pause is None:
                with hub.explain_hub_errors(partial.plan.model):
                    raise
            meter.emit(
                Note(text=f"The connection broke ({first_line(error).rstrip('.')}); trying again in {pause} s.")
            )
            meter.wait(pause)
    _verify(file, path, meter)
    move_atomically(path, partial.complete_path(file))


def _append_stream(path: Path, begin: int, file: HubFile, plan: DownloadPlan, meter: ProgressMeter) -> None:
    """Append from byte `begin` on; starts over if the hub does not support ranges."""
    with hub.open_stream(plan.model, plan.commit, file.name, begin=begin) as response:
        resumes = begin and response.status_code == PARTIAL_CONTENT
        with path.open("ab" if resumes else "wb") as output:
            for chunk in response.iter_bytes():
                output.write(chunk)
                meter.record(file, output.tell())


def _verify(file: HubFile, path: Path, meter: ProgressMeter) -> None:
    """Check the size of a file and, if the hub knows it, its SHA-256."""
    is_valid = path.stat().st_size == file.size
    if is_valid and file.is_sha256:
        meter.emit(Stage(text=f"Checking {file.name}"))
        with path.open("rb") as stream:
            is_valid = hashlib.file_digest(stream, "sha256").hexdigest() == file.digest
    if not is_valid:
        path.unlink()
        raise ModelError(f"{file.name} was damaged during the download and was deleted.")


def _assemble(partial: PartialDownload, folder: Path) -> None:
    for file in partial.plan.files:
        if (complete := partial.complete_path(file)).is_file():
            target = partial.final_folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            move_atomically(complete, target)
    move_new_folder(partial.final_folder, folder)


def _rest_message(partial: PartialDownload) -> str:
    """Describe what is left of an unfinished download; removes the folder if that is nothing."""
    if not partial.size:
        shutil.rmtree(partial.folder, ignore_errors=True)
        return "Nothing was kept."
    return (
        f"{size(partial.size)} of {size(partial.plan.size)} downloaded so far. Start the download "
        f"again to continue. To cancel, delete {partial.folder}."
    )
