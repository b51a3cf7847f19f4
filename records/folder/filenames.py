"""What lies in the folder of a run, by name: this is ours, and nothing else in it is ever thinned or removed."""

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
"""Of one part of a run; the curve goes through all of them."""
WRITTEN = (*RECORDS, GRAPH, PICTURE, NOTES)

STATE = "run_state.json"
"""What makes a checkpoint one of ours, and whole."""

TIMED = "backup"
EARLIER = "Backup-"
BEST, BY_HAND = "-best", "-user"
HIDDEN = "-np"
"""Behind a name: the webui lists no such folder, and neither do we."""


def is_hidden(folder: Path) -> bool:
    return folder.name.endswith(HIDDEN)


def earlier(folder: Path) -> list[Path]:
    """What stood here before, in its backups."""
    return [path for path in folder.glob(f"{EARLIER}*") if path.is_dir()]


def run_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint or a timed backup lies in."""
    return checkpoint.parent.parent if checkpoint.parent.name == TIMED else checkpoint.parent
