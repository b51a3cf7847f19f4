"""Save results: checkpoints, LoRAs, full models, merged models and GGUF files."""

from __future__ import annotations

from . import full_finetune, gguf_export, merging
from .checkpoints import TRIES, RunState, is_about_files, refuse_changes, sealed, state_of
from .safe_save import Write, placed, record

__all__ = [
    "TRIES",
    "RunState",
    "Write",
    "full_finetune",
    "gguf_export",
    "is_about_files",
    "merging",
    "placed",
    "record",
    "refuse_changes",
    "sealed",
    "state_of",
]
