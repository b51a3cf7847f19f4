"""Save a LoRA despite disk errors (retry, free space, another name or folder, or later), or a whole model."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from ...core.errors import SavingError
from ...core.files import is_disk_full, write_error_reason
from ...core.host import Folders
from ...core.jobs import Advice, EventLog, Job, Note, Request
from ...records.folder import RunFolder, loras

WriteFn = Callable[[Path], None]
SAVE_ATTEMPTS = 3
PAUSE_SECONDS = 1.0
RETRY_SECONDS = 10.0
RESCUE_FOLDER = "rescued"


def save_with_fallbacks(folder: RunFolder, folders: Folders, write: WriteFn, job: Job) -> RunFolder:
    """Save the LoRA and return its folder; SavingError only if the user gives it up."""
    while True:
        problems: list[str] = []
        for candidate in _candidate_folders(folder, folders):
            if _try_save(candidate, write, problems):
                if candidate is not folder:
                    job.log.append(Advice(text=f"{problems[0]} The LoRA was saved in {candidate.path} instead."))
                return candidate
        _wait(problems, job)


def _candidate_folders(folder: RunFolder, folders: Folders) -> Iterator[RunFolder]:
    """Folders to try: its own, several times; another name; another folder, perhaps on another disk."""
    for attempt in range(SAVE_ATTEMPTS):
        time.sleep(PAUSE_SECONDS if attempt else 0)
        yield folder
    yield replace(folder, path=folder.path.with_name(loras.free_name(folder.path.parent, folder.name)))
    for parent in (folders.user_data / RESCUE_FOLDER, Path(tempfile.gettempdir()) / RESCUE_FOLDER):
        exists = (parent / folder.name).exists()
        name = loras.free_name(parent, folder.name) if exists else folder.name
        yield replace(folder, path=parent / name)


def _try_save(candidate: RunFolder, write: WriteFn, problems: list[str]) -> bool:
    temporary = candidate.empty_weights_folder()
    existed = candidate.path.exists()
    try:
        write(temporary)
        candidate.move_into_place(temporary)
    except OSError as error:
        problems.append(f"{candidate.path} could not be written: {write_error_reason(error, candidate.path)}.")
        full = is_disk_full(error, candidate.path)  # checked before the incomplete files are removed
        shutil.rmtree(temporary if existed else candidate.path, ignore_errors=True)
        if full:
            loras.free_disk_space(candidate.path, candidate.start)
        return False
    return True


def _wait(problems: list[str], job: Job) -> None:
    """Wait for free space; the LoRA stays in memory until the user gives it up."""
    if job.control.asked(Request.DISCARD):
        raise SavingError("\n".join(["The LoRA could not be saved:", *dict.fromkeys(problems)]))
    job.log.append(
        Advice(
            text="The LoRA is finished but could not be saved anywhere: "
            + " ".join(dict.fromkeys(problems))
            + f" The LoRA stays in memory, and Training PRO tries to save it again every {RETRY_SECONDS:g} s. "
            "Free some space, or press 'Stop and discard' to discard the LoRA."
        )
    )
    time.sleep(RETRY_SECONDS)


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Save a model with its generation config as it is.

    transformers refuses to save values that have no effect without do_sample. Many published models have some, and
    the webui sets one in every generation config.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig(do_sample=True)
    try:
        model.save_pretrained(folder, **options)
    finally:
        model.generation_config = own
    own.to_json_file(folder / GENERATION_CONFIG_NAME)


def write_record(write: Callable[[], object], folder: Path, log: EventLog) -> None:
    """Write a record next to the LoRA; a failure is logged and the LoRA is kept."""
    try:
        write()
    except OSError as error:
        log.append(
            Note(text=f"A file in the LoRA's folder could not be saved: {write_error_reason(error, folder)}.")
        )
