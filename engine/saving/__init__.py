"""Save results: checkpoints, LoRAs, full models, merged models and GGUF files."""

from __future__ import annotations

from . import gguf_export, merging, safe_save
from .checkpoints import (
    WRITE_ATTEMPTS,
    RunState,
    earlier_settings,
    finalize_checkpoint,
    is_write_error,
    load_run_state,
    refuse_changes,
)

__all__ = [
    "WRITE_ATTEMPTS",
    "RunState",
    "earlier_settings",
    "finalize_checkpoint",
    "gguf_export",
    "is_write_error",
    "load_run_state",
    "merging",
    "refuse_changes",
    "safe_save",
]
