"""Names of the files and folders in a run folder. Nothing else in it is ever thinned or removed."""

from __future__ import annotations

from pathlib import Path

from ...core.files import usable_entries

LOG = "training_log.json"
GRAPH = "training_graph.json"
GRAPH_IMAGE = "training_graph.png"
PARAMETERS = "training_parameters.json"
TRAINING_PROMPT = "training_prompt.json"
DATA_SAMPLE = "train_dataset_sample.json"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
NOTES = "notes.txt"
RECALL = "recall.json"
EVIDENCE = "evidence.json"
RECORDS = (LOG, PARAMETERS, DATA_SAMPLE, TRAINING_PROMPT, SAMPLES, REPORT, RECALL, EVIDENCE)
"""Written anew when a run is resumed; the graph is continued instead."""
RUN_FILES = (*RECORDS, GRAPH, GRAPH_IMAGE, NOTES)

STATE = "run_state.json"
"""Its presence marks a checkpoint as ours and complete."""

BACKUP_FOLDER = "backup"
REPLACED_PREFIX = "Backup-"
BEST_SUFFIX, MANUAL_SUFFIX = "-best", "-user"
HIDDEN_SUFFIX = "-np"
"""Suffix of folder names that neither the webui nor we list."""


def is_hidden(folder: Path) -> bool:
    return folder.name.endswith(HIDDEN_SUFFIX)


def replaced_folders(folder: Path) -> list[Path]:
    """Return the backups of what the run replaced in this folder."""
    return [path for path in usable_entries(folder) if path.name.startswith(REPLACED_PREFIX) and path.is_dir()]


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint or a timed backup."""
    return checkpoint.parent.parent if checkpoint.parent.name == BACKUP_FOLDER else checkpoint.parent
