"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from __future__ import annotations

from . import distributed
from .collator import Batch, collate
from .failures import (
    BatchSplitter,
    DivergenceError,
    explain_out_of_memory,
    find_divergence,
    free_memory,
    is_finite_checkpoint,
    limit_vram,
    out_of_memory_error,
    undo_on_error,
)
from .hf_private import TrainerHooks
from .layer_patches import patch_lora_layers, use_packed_attention
from .machine import MachineMonitor, apply_machine_settings, compile_layers, count_workers, measure_peak
from .objective import ModelCapabilities, Objective, StepSums, add_neftune_noise, eval_mode, probe_model
from .packed_gguf import load_gguf, unpacked_to_generate

__all__ = [
    "Batch",
    "BatchSplitter",
    "DivergenceError",
    "MachineMonitor",
    "ModelCapabilities",
    "Objective",
    "StepSums",
    "TrainerHooks",
    "add_neftune_noise",
    "apply_machine_settings",
    "collate",
    "compile_layers",
    "count_workers",
    "distributed",
    "eval_mode",
    "explain_out_of_memory",
    "find_divergence",
    "free_memory",
    "is_finite_checkpoint",
    "limit_vram",
    "load_gguf",
    "measure_peak",
    "out_of_memory_error",
    "patch_lora_layers",
    "probe_model",
    "undo_on_error",
    "unpacked_to_generate",
    "use_packed_attention",
]
