"""Run folders: LoRAs, checkpoints, locks, notes and trash."""

from __future__ import annotations

from . import inventory, loras, run_files, trash
from .inventory import LoraEntry
from .outputs import choose_output, copy_as_lora, plan_upload
from .run_files import (
    LOG,
    PARAMETERS,
    REPORT,
    STATE,
    read_graph,
    read_log,
    read_samples,
)
from .run_folder import (
    RunFolder,
    choose_run_folder,
    hold_run_lock,
    is_in_progress,
    read_journal,
    recover_interrupted,
    refuse_in_progress,
    runs_in_progress,
    with_final_name,
)

__all__ = [
    "LOG",
    "PARAMETERS",
    "REPORT",
    "STATE",
    "LoraEntry",
    "RunFolder",
    "choose_output",
    "choose_run_folder",
    "copy_as_lora",
    "hold_run_lock",
    "inventory",
    "is_in_progress",
    "loras",
    "plan_upload",
    "read_graph",
    "read_journal",
    "read_log",
    "read_samples",
    "recover_interrupted",
    "refuse_in_progress",
    "run_files",
    "runs_in_progress",
    "trash",
    "with_final_name",
]
