"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from __future__ import annotations

from . import distributed
from .acceleration import apply_machine_settings, compile_layers, count_workers
from .capabilities import ModelCapabilities, eval_mode, probe_model
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
from .layer_patches import patch_lora_layers
from .objective import Objective, StepSums, add_neftune_noise
from .packed_attention import use_packed_attention
from .packed_gguf import load_gguf, unpacked_to_generate
from .telemetry import MachineMonitor, measure_peak

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
