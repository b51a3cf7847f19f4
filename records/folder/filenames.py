"""Names of the files and folders in a run folder. Nothing else in it is ever thinned or removed."""

from __future__ import annotations

from pathlib import Path

from ...core.files import PART as PART

LOG = "training_log.json"
GRAPH = "training_graph.json"
PICTURE = "training_graph.png"
PARAMETERS = "training_parameters.json"
TALKING = "training_prompt.json"
DATA_SAMPLE = "train_dataset_sample.json"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
NOTES = "notes.txt"
RECORDS = (LOG, PARAMETERS, DATA_SAMPLE, TALKING, SAMPLES, REPORT)
"""Written anew when a run is resumed; the graph is continued instead."""
WRITTEN = (*RECORDS, GRAPH, PICTURE, NOTES)

STATE = "run_state.json"
"""Its presence marks a checkpoint as ours and complete."""

TIMED = "backup"
EARLIER = "Backup-"
BEST, BY_HAND = "-best", "-user"
HIDDEN = "-np"
"""Suffix of folder names that neither the webui nor we list."""


def is_hidden(folder: Path) -> bool:
    return folder.name.endswith(HIDDEN)


def earlier(folder: Path) -> list[Path]:
    """Return the backups of what the run replaced in this folder."""
    return [path for path in folder.glob(f"{EARLIER}*") if path.is_dir()]


def run_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint or a timed backup."""
    return checkpoint.parent.parent if checkpoint.parent.name == TIMED else checkpoint.parent
