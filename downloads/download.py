"""Resumable download of a model from the hub; it appears in the models folder only when it is complete.

`hf_hub_download` is not used: huggingface_hub 2.4 deletes a file that a stop or a lost connection cut short
(https://github.com/huggingface/huggingface_hub/pull/4228), and a model can be a single file of gigabytes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..core import files
from ..core.errors import BusyError, ModelError, StoppedError
from ..core.jobs import DownloadMeter, JobEnded, Note, Stage
from ..train_utils import duration, format_count, size
from . import hub_models
from .fetching import Emit, IsStopped, fetch_rest, is_intact
from .hub_models import DownloadPlan, HubFile, HubModel

# Not in the list of models, because its config.json has a hash in its name until all files are there.
PARTIAL_PREFIX = ".getting-"


def download_model(
    model: HubModel,
    models: Path,
    refuse_type: Callable[[str, str], str],
    emit: Emit,
    stopping: IsStopped = lambda: False,
) -> JobEnded:
    """Download a model into the models folder; everything that can be refused is refused before writing."""
    folder = files.safe_paths.child(models, model.folder, "Model", refusal=ModelError)
    partial_folder = files.safe_paths.child(models, f"{PARTIAL_PREFIX}{model.folder}", "Model", refusal=ModelError)
    if (folder / "config.json").is_file():
        raise ModelError(
            f"{folder.name} already exists in {models}. Use it, or delete or rename that folder to download the "
            "model again."
        )
    if folder.exists():
        raise ModelError(f"{folder} exists but contains no model. Delete or rename it, then try again.")
    emit(Stage(text=f"Asking the Hub for {model.words}"))
    plan = hub_models.plan_download(model, refuse_type)
    download = _PartialDownload(plan, partial_folder, emit, stopping)
    begin, free = download.meter.done, files.free_bytes(partial_folder)
    if plan.size - begin > free:
        raise ModelError(
            f"{model.words} still needs {size(plan.size - begin)} on the disk that holds {models}, but only "
            f"{size(free)} is free. Free some space, or choose a smaller model."
        )
    license_note = f", license {plan.license}" if plan.license else ""
    present_note = f" ({size(begin)} already downloaded)" if begin else ""
    emit(
        Note(
            text=f"{model.words} at commit {plan.commit[:7]}: {plan.model_type}{license_note}, "
            f"{format_count(len(plan.files), 'file')}, {size(plan.size)}{present_note}. Downloading to {folder} "
            f"({size(free)} free)."
        )
    )
    started = time.monotonic()
    try:
        with files.lock(partial_folder / "lock") as acquired:
            if not acquired:
                raise BusyError(f"Another program is downloading {model.words}. Wait until it is done.")
            for file in plan.files:
                download.fetch(file)
            download.move_to(folder)
        shutil.rmtree(partial_folder, ignore_errors=True)
    except (KeyboardInterrupt, StoppedError):
        return JobEnded(outcome="stopped", text=f"Stopped. {download.describe_rest()}")
    except ModelError as error:
        raise ModelError(f"{error} {download.describe_rest()}") from error
    except OSError as error:
        reason = f"{models} can't be written: {files.write_error_reason(error, models)}."
        raise ModelError(f"{reason} {download.describe_rest()}") from error
    figures = f"{size(plan.size)}, {duration(time.monotonic() - started)}"
    return JobEnded(outcome="finished", text=f"{model.words} is in {folder} ({figures}).", folder=folder)


class _PartialDownload:
    """The folder of a download until it is complete, and the reports of its progress."""

    def __init__(self, plan: DownloadPlan, folder: Path, emit: Emit, stopping: IsStopped) -> None:
        self._plan, self._folder, self._emit, self._stopping = plan, folder, emit, stopping
        # Named by the commit, so that an interrupted move goes on only with files of the same commit.
        self._final = folder / plan.commit
        self.meter = DownloadMeter(plan.size, emit, self._bytes_on_disk())

    def fetch(self, file: HubFile) -> None:
        """Download what is missing of a file, and check it."""
        complete, part = self._path(file), self._path(file, files.PART_SUFFIX)
        if complete.is_file() or (self._final / file.name).is_file():
            self.meter.report()
            return
        plan, may_retry, emit = self._plan, hub_models.may_retry, self._emit
        with hub_models.explain_hub_errors(plan.model):
            open_file = partial(hub_models.open_stream, plan.model, plan.commit, file.name)
            fetch_rest(part, file.size, open_file, self.meter, may_retry, emit, self._stopping)
        # The hash finds what arrived complete but damaged. The Hub has none for small files, which are in git.
        if file.is_sha256:
            self._emit(Stage(text=f"Checking {file.name}"))
        if not is_intact(part, file.size, file.digest if file.is_sha256 else ""):
            part.unlink()
            raise ModelError(f"{file.name} was damaged during the download and was deleted.")
        files.move_atomically(part, complete)
        self.meter.report()

    def move_to(self, folder: Path) -> None:
        """Give all files their names, then show the complete model in one move."""
        for file in self._plan.files:
            if self._path(file).is_file():
                target = self._final / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                files.move_atomically(self._path(file), target)
        files.move_new_folder(self._final, folder)

    def describe_rest(self) -> str:
        """Describe what is left of an unfinished download; removes the folder if that is nothing."""
        kept = self._bytes_on_disk()
        if not kept:
            shutil.rmtree(self._folder, ignore_errors=True)
            return "Nothing was kept."
        return (
            f"{size(kept)} of {size(self._plan.size)} downloaded so far. Start the download "
            f"again to continue. To cancel, delete {self._folder}."
        )

    def _path(self, file: HubFile, suffix: str = "") -> Path:
        # The hash keeps a resumed download from mixing two versions of a file, because a branch may move on.
        return self._folder / f"{file.name}.{file.digest[:16]}{suffix}"

    def _bytes_on_disk(self) -> int:
        paths = (
            path
            for file in self._plan.files
            for path in (self._final / file.name, self._path(file), self._path(file, files.PART_SUFFIX))
        )
        return sum(path.stat().st_size for path in paths if path.is_file())
