"""Run folders: LoRAs, checkpoints, locks, notes and trash."""

from __future__ import annotations

from . import crashed_runs, inventory, loras, run_files, trash
from .inventory import LoraEntry, LoraPart
from .outputs import choose_output, copy_as_lora, plan_upload
from .run_files import (
    EVIDENCE,
    LOG,
    PARAMETERS,
    REPORT,
    STATE,
    read_evidence,
    read_graph,
    read_log,
    read_recalls,
    read_samples,
    read_training_prompt,
    trained_steps,
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
    "EVIDENCE",
    "LOG",
    "PARAMETERS",
    "REPORT",
    "STATE",
    "LoraEntry",
    "LoraPart",
    "RunFolder",
    "choose_output",
    "choose_run_folder",
    "copy_as_lora",
    "crashed_runs",
    "hold_run_lock",
    "inventory",
    "is_in_progress",
    "loras",
    "plan_upload",
    "read_evidence",
    "read_graph",
    "read_journal",
    "read_log",
    "read_recalls",
    "read_samples",
    "read_training_prompt",
    "recover_interrupted",
    "refuse_in_progress",
    "run_files",
    "runs_in_progress",
    "trained_steps",
    "trash",
    "with_final_name",
]
