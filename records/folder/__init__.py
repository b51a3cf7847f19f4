"""Run folders: LoRAs, checkpoints, locks, notes and trash."""

from __future__ import annotations

from . import crashed_runs, inventory, loras, notes, retention, samples, training_log, trash
from .crashed_runs import CutOff
from .filenames import DATA_SAMPLE, GRAPH, LOG, PARAMETERS, PICTURE, REPORT, STATE, TALKING, is_hidden, run_of
from .heartbeat import Pulse
from .inventory import Kept
from .promote_checkpoint import as_lora
from .prompt_file import how_to_talk
from .run_folder import RunFolder, choose_run_folder, under_its_name
from .run_lock import in_progress, is_in_progress, refuse_in_progress
from .samples import read_samples

__all__ = [
    "DATA_SAMPLE",
    "GRAPH",
    "LOG",
    "PARAMETERS",
    "PICTURE",
    "REPORT",
    "STATE",
    "TALKING",
    "CutOff",
    "Kept",
    "Pulse",
    "RunFolder",
    "as_lora",
    "choose_run_folder",
    "crashed_runs",
    "how_to_talk",
    "in_progress",
    "inventory",
    "is_hidden",
    "is_in_progress",
    "loras",
    "notes",
    "read_samples",
    "refuse_in_progress",
    "retention",
    "run_of",
    "samples",
    "training_log",
    "trash",
    "under_its_name",
]
