"""Run folders: LoRAs, checkpoints, locks, notes and trash."""

from __future__ import annotations

from . import crashed_runs, inventory, loras, retention, run_files, trash
from .crashed_runs import CrashedRun
from .filenames import (
    DATA_SAMPLE,
    EVIDENCE,
    GRAPH,
    GRAPH_IMAGE,
    LOG,
    MANUAL_SUFFIX,
    PARAMETERS,
    RECALL,
    REPORT,
    STATE,
    TRAINING_PROMPT,
    is_hidden,
    run_folder_of,
)
from .heartbeat import Heartbeat
from .hub_upload import plan_upload
from .inventory import LoraEntry, LoraPart
from .journal import read_journal
from .output_place import choose_output
from .promote_checkpoint import copy_as_lora
from .run_files import read_samples, read_training_prompt
from .run_folder import RunFolder, choose_run_folder, recover_interrupted, with_final_name
from .run_lock import hold_run_lock, is_in_progress, refuse_in_progress, runs_in_progress
from .run_records import (
    GraphRecord,
    LiveChange,
    RunLog,
    StateRecord,
    describe_damage,
    read_evidence,
    read_graph,
    read_log,
    read_parameters,
    read_prompt,
    read_recalls,
    read_state,
    trained_steps,
)

__all__ = [
    "DATA_SAMPLE",
    "EVIDENCE",
    "GRAPH",
    "GRAPH_IMAGE",
    "LOG",
    "MANUAL_SUFFIX",
    "PARAMETERS",
    "RECALL",
    "REPORT",
    "STATE",
    "TRAINING_PROMPT",
    "CrashedRun",
    "GraphRecord",
    "Heartbeat",
    "LiveChange",
    "LoraEntry",
    "LoraPart",
    "RunFolder",
    "RunLog",
    "StateRecord",
    "choose_output",
    "choose_run_folder",
    "copy_as_lora",
    "crashed_runs",
    "describe_damage",
    "hold_run_lock",
    "inventory",
    "is_hidden",
    "is_in_progress",
    "loras",
    "plan_upload",
    "read_evidence",
    "read_graph",
    "read_journal",
    "read_log",
    "read_parameters",
    "read_prompt",
    "read_recalls",
    "read_samples",
    "read_state",
    "read_training_prompt",
    "recover_interrupted",
    "refuse_in_progress",
    "retention",
    "run_files",
    "run_folder_of",
    "runs_in_progress",
    "trained_steps",
    "trash",
    "with_final_name",
]
