"""A LoRA put on disk come what may: tried again, with room made, under another name, elsewhere, or later."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ...core.errors import SavingError
from ...core.files import is_full, why_not_written
from ...core.host import Folders
from ...core.jobs import Advice, EventLog, Job, Note
from ...records.folder import RunFolder, loras, retention

Write = Callable[[Path], None]
TRIES = 3
PAUSE_SECONDS = 1.0
LATER_SECONDS = 10.0
RESCUED = "rescued"


def placed(folder: RunFolder, folders: Folders, write: Write, job: Job) -> RunFolder:
    """The folder that the LoRA is in now; SavingError only where the user gives it up."""
    while True:
        problems: list[str] = []
        for place in _places(folder, folders):
            if _is_placed(place, write, problems):
                if place is not folder:
                    job.log.append(Advice(text=f"{problems[0]} The LoRA is in {place.path} instead."))
                return place
        _wait(problems, job)


def _places(folder: RunFolder, folders: Folders) -> Iterator[RunFolder]:
    """Its own folder, some times; another name; another folder, perhaps on another disk."""
    for number in range(TRIES):
        time.sleep(PAUSE_SECONDS if number else 0)
        yield folder
    yield replace(folder, path=folder.path.with_name(loras.free_name(folder.path.parent, folder.name)))
    for elsewhere in (folders.user_data / RESCUED, Path(tempfile.gettempdir()) / RESCUED):
        there = (elsewhere / folder.name).exists()
        name = loras.free_name(elsewhere, folder.name) if there else folder.name
        yield replace(folder, path=elsewhere / name)


def _is_placed(place: RunFolder, write: Write, problems: list[str]) -> bool:
    written = place.aside / "lora"
    there = place.path.exists()
    try:
        write(written)
        place.keep(written)
    except OSError as error:
        problems.append(f"{place.path} could not be written: {why_not_written(error, place.path)}.")
        full = is_full(error, place.path)  # asked before what is half written goes
        shutil.rmtree(written if there else place.path, ignore_errors=True)
        if full:
            retention.make_room(place.path, place.start)
        return False
    return True


def _wait(problems: list[str], job: Job) -> None:
    """Until there may be room; the LoRA is in memory for as long as the user does not give it up."""
    if job.control.throwing_away:
        raise SavingError("\n".join(["The LoRA could not be saved:", *dict.fromkeys(problems)]))
    job.log.append(
        Advice(
            text="The LoRA is done and could not be saved anywhere: "
            + " ".join(dict.fromkeys(problems))
            + f" It is kept in memory and tried again every {LATER_SECONDS:g} s: free some space. 'Stop and throw "
            "away' gives it up."
        )
    )
    time.sleep(LATER_SECONDS)


def record(write: Callable[[], object], folder: Path, log: EventLog) -> None:
    """Write what is beside the LoRA; where that fails it is said, and the LoRA is kept all the same."""
    try:
        write()
    except OSError as error:
        log.append(Note(text=f"A record beside the LoRA is missing: {why_not_written(error, folder)}."))
