"""Journal of a run folder: what a run is doing to it, written before it is done.

Whoever opens the folder after a kill reads it, and finishes or undoes what is begun (`run_folder.recover`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ...core.files import Count, read_record, write_json

JOURNAL = ".journal.json"


@dataclass(frozen=True)
class Journal:
    """The action under way, the step that the run began from, and the backup of what it replaces.

    begin    files are moved to the backup; undone after a kill
    run      the run trains, until its last record is written
    discard  the run's own files are removed; finished after a kill, and then undone like `begin`
    """

    action: Literal["begin", "run", "discard"]
    began_at_step: Count = 0
    backup: str = ""
    initial_lora: bool = False
    """The backup is a finished LoRA, and the run began with its weights."""


def read_journal(folder: Path) -> Journal | None:
    return read_record(folder / JOURNAL, Journal, None)


def write_journal(folder: Path, journal: Journal) -> None:
    write_json(folder / JOURNAL, asdict(journal))
