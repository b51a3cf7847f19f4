"""Save results: checkpoints, LoRAs, full models, merged models and GGUF files."""

from __future__ import annotations

from . import full_finetune, gguf_export, merging
from .checkpoints import (
    WRITE_ATTEMPTS,
    RunState,
    earlier_settings,
    finalize_checkpoint,
    is_write_error,
    load_run_state,
    refuse_changes,
)
from .safe_save import WriteFn, save_with_fallbacks, write_record

__all__ = [
    "WRITE_ATTEMPTS",
    "RunState",
    "WriteFn",
    "earlier_settings",
    "finalize_checkpoint",
    "full_finetune",
    "gguf_export",
    "is_write_error",
    "load_run_state",
    "merging",
    "refuse_changes",
    "save_with_fallbacks",
    "write_record",
]
