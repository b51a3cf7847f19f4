"""Resumable download of a model from the hub; it appears in the models folder only when it is complete."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Callable
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
    model: HubModel, models: Path, emit: EventSink, stopping: StopCheck = lambda: False
) -> JobEnded:
    """Download a model into the models folder; everything that can be refused is refused before writing."""
    folder = safe_paths.child(models, model.folder, "Model", refusal=ModelError)
    partial = safe_paths.child(models, f"{PARTIAL_PREFIX}{model.folder}", "Model", refusal=ModelError)
    _refuse_existing(folder)
    emit(Stage(text=f"Asking the hub for {model.words}"))
    plan = hub.plan_download(model)
    _refuse_full_disk(plan, partial)
    emit(Note(text=_start_message(plan, folder, _bytes_present(plan, partial))))
    started = time.monotonic()
    try:
        _download_all(plan, folder, partial, ProgressMeter(plan, partial, emit, stopping))
    except (KeyboardInterrupt, _StopRequested):
        return JobEnded(outcome="stopped", text=f"Stopped. {_rest_message(plan, partial)}")
    except ModelError as error:
        raise ModelError(f"{error} {_rest_message(plan, partial)}") from error
    except OSError as error:
        reason = f"{models} cannot be written: {write_error_reason(error, models)}."
        raise ModelError(f"{reason} {_rest_message(plan, partial)}") from error
    figures = f"{size(plan.size)}, {duration(time.monotonic() - started)}"
    return JobEnded(outcome="finished", text=f"{model.words} is in {folder} ({figures}).", folder=folder)


class ProgressMeter:
    """Counts the downloaded bytes, reports them, and checks for a request to stop."""

    def __init__(self, plan: DownloadPlan, partial: Path, emit: EventSink, stopping: StopCheck) -> None:
        self.emit, self._stopping = emit, stopping
        self._bytes_present = {part.name: _part_bytes(part, plan, partial) for part in plan.files}
        self._done, self._total = sum(self._bytes_present.values()), plan.size
        self._recent: deque[tuple[float, int]] = deque()
        self._last_report, self._last_done = float("-inf"), -1

    def record(self, part: HubFile, position: int) -> None:
        """Note that a file has been downloaded up to `position`."""
        self.check_stop()
        self._done += position - self._bytes_present[part.name]
        self._bytes_present[part.name] = position
        now = time.monotonic()
        if self._done == self._last_done or (
            now - self._last_report < REPORT_SECONDS and self._done < self._total
        ):
            return
        self._last_report, self._last_done = now, self._done
        self._recent.append((now, self._done))
        while now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()
        self.emit(DownloadProgress(done=self._done, total=self._total, speed=self._speed()))

    def check_stop(self) -> None:
        if self._stopping():
            raise _StopRequested

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.check_stop()
            time.sleep(min(0.1, remaining))

    def _speed(self) -> float:
        (first_time, first_bytes), (last_time, last_bytes) = self._recent[0], self._recent[-1]
        return (last_bytes - first_bytes) / (last_time - first_time) if last_time > first_time else 0.0


def _refuse_existing(folder: Path) -> None:
    if (folder / "config.json").is_file():
        raise ModelError(
            f"{folder.name} is there already, in {folder.parent}: choose it. To bring it anew, delete or rename "
            "that folder first."
        )
    if folder.exists():
        raise ModelError(f"{folder} is there but holds no model: delete or rename it, then try again.")


def _refuse_full_disk(plan: DownloadPlan, partial: Path) -> None:
    missing, free = plan.size - _bytes_present(plan, partial), free_bytes(partial)
    if missing > free:
        raise ModelError(
            f"{plan.model.words} needs {size(missing)} more on the disk of {partial.parent}, and {size(free)} "
            "are free: make room, or choose a smaller model."
        )


def _start_message(plan: DownloadPlan, folder: Path, present: int) -> str:
    license_note = f", licence {plan.license}" if plan.license else ""
    present_note = f" ({size(present)} are here already)" if present else ""
    return (
        f"{plan.model.words} at {plan.commit[:7]}: {plan.model_type}{license_note}, "
        f"{format_count(len(plan.files), 'file')}, {size(plan.size)}{present_note}, for {folder}; "
        f"{size(free_bytes(folder))} are free there."
    )


def _download_all(plan: DownloadPlan, folder: Path, partial: Path, meter: ProgressMeter) -> None:
    with lock(partial / LOCK_NAME) as acquired:
        if not acquired:
            raise BusyError(f"Another program is bringing {plan.model.words} just now. Wait until it is done.")
        for part in plan.files:
            if not _is_complete(part, plan, partial):
                _download_part(part, partial, plan, meter)
            meter.record(part, part.size)
        _assemble(plan, folder, partial)
    shutil.rmtree(partial, ignore_errors=True)


def _is_complete(part: HubFile, plan: DownloadPlan, partial: Path) -> bool:
    """Whether a file is completely downloaded."""
    return _complete_path(partial, part).is_file() or (_final_folder(partial, plan) / part.name).is_file()


def _final_folder(partial: Path, plan: DownloadPlan) -> Path:
    """Folder of the finished model before its move; named by the commit, so that a later try finds it."""
    return partial / plan.commit


def _complete_path(partial: Path, part: HubFile) -> Path:
    """Path of a complete file until all are; its name has its hash, because a branch may change meanwhile."""
    return partial / f"{part.name}.{part.digest[:16]}"


def _partial_path(partial: Path, part: HubFile) -> Path:
    complete = _complete_path(partial, part)
    return complete.with_name(complete.name + PART_SUFFIX)


def _download_part(part: HubFile, partial: Path, plan: DownloadPlan, meter: ProgressMeter) -> None:
    """Download the rest of a file; a lost connection is retried for a while."""
    file = _partial_path(partial, part)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    pauses = iter(RETRY_PAUSES_SECONDS)
    while (begin := file.stat().st_size) < part.size:
        try:
            _append_stream(file, begin, part, plan, meter)
            break
        except hub.hub_errors() as error:
            if file.stat().st_size > begin:
                pauses = iter(RETRY_PAUSES_SECONDS)
            pause = next(pauses, None) if hub.is_temporary(error) else None
            if pause is None:
                with hub.explain_hub_errors(plan.model):
                    raise
            meter.emit(Note(text=f"The line broke ({first_line(error).rstrip('.')}); trying again in {pause} s."))
            meter.wait(pause)
    _verify(part, file, meter)
    move_atomically(file, _complete_path(partial, part))


def _append_stream(file: Path, begin: int, part: HubFile, plan: DownloadPlan, meter: ProgressMeter) -> None:
    """Append from byte `begin` on; starts over if the hub does not support ranges."""
    with hub.open_stream(plan.model, plan.commit, part.name, begin=begin) as response:
        resumes = begin and response.status_code == PARTIAL_CONTENT
        with file.open("ab" if resumes else "wb") as output:
            for chunk in response.iter_bytes():
                output.write(chunk)
                meter.record(part, output.tell())


def _verify(part: HubFile, file: Path, meter: ProgressMeter) -> None:
    """Check the size of a file and, if the hub knows it, its SHA-256."""
    is_valid = file.stat().st_size == part.size
    if is_valid and part.is_sha256:
        meter.emit(Stage(text=f"Checking {part.name}"))
        with file.open("rb") as stream:
            is_valid = hashlib.file_digest(stream, "sha256").hexdigest() == part.digest
    if not is_valid:
        file.unlink()
        raise ModelError(f"{part.name} came damaged, and is thrown away.")


def _assemble(plan: DownloadPlan, folder: Path, partial: Path) -> None:
    final = _final_folder(partial, plan)
    for part in plan.files:
        if (complete := _complete_path(partial, part)).is_file():
            target = final / part.name
            target.parent.mkdir(parents=True, exist_ok=True)
            move_atomically(complete, target)
    move_new_folder(final, folder)


def _bytes_present(plan: DownloadPlan, partial: Path) -> int:
    """Bytes that are already downloaded."""
    return sum(_part_bytes(part, plan, partial) for part in plan.files)


def _part_bytes(part: HubFile, plan: DownloadPlan, partial: Path) -> int:
    paths = (
        _final_folder(partial, plan) / part.name,
        _complete_path(partial, part),
        _partial_path(partial, part),
    )
    return sum(file.stat().st_size for file in paths if file.is_file())


def _rest_message(plan: DownloadPlan, partial: Path) -> str:
    """Describe what is left of an unfinished download; removes the folder if that is nothing."""
    if not (present := _bytes_present(plan, partial)):
        shutil.rmtree(partial, ignore_errors=True)
        return "Nothing of it was kept."
    return (
        f"{size(present)} of {size(plan.size)} are here: asked for again, it goes on from there. To give it up, "
        f"delete {partial}."
    )
