"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from __future__ import annotations

from . import distributed
from .acceleration import apply_machine_settings, compile_layers, count_workers, trim_memory
from .capabilities import ModelCapabilities, eval_mode, probe_model
from .collator import EXAMPLES, JOINS, OWNERS, TOKENS, collate
from .distributed import ddp_backend, sync_control
from .gpu_memory import free_memory, free_memory_afterwards
from .layer_patches import patch_lora_layers
from .loss import LossFunction
from .loss_by_dataset import LossByDataset
from .neftune import add_neftune_noise
from .oom_retry import BatchSplitter, MicroBatch, StepFns
from .packed_attention import use_packed_attention
from .step_errors import (
    DivergenceError,
    broken_weights_error,
    device_memory,
    divergence_error,
    explain_out_of_memory,
    find_divergence,
    is_out_of_memory,
    out_of_memory_error,
    unsplittable_batch_error,
)
from .telemetry import MachineMonitor, read_process_memory, reset_peak
from .windows_vram import SPILL_ADVICE, SpillDetector, limit_vram

__all__ = [
    "EXAMPLES",
    "JOINS",
    "OWNERS",
    "SPILL_ADVICE",
    "TOKENS",
    "BatchSplitter",
    "DivergenceError",
    "LossByDataset",
    "LossFunction",
    "MachineMonitor",
    "MicroBatch",
    "ModelCapabilities",
    "SpillDetector",
    "StepFns",
    "add_neftune_noise",
    "apply_machine_settings",
    "broken_weights_error",
    "collate",
    "compile_layers",
    "count_workers",
    "ddp_backend",
    "device_memory",
    "distributed",
    "divergence_error",
    "eval_mode",
    "explain_out_of_memory",
    "find_divergence",
    "free_memory",
    "free_memory_afterwards",
    "is_out_of_memory",
    "limit_vram",
    "out_of_memory_error",
    "patch_lora_layers",
    "probe_model",
    "read_process_memory",
    "reset_peak",
    "sync_control",
    "trim_memory",
    "unsplittable_batch_error",
    "use_packed_attention",
]
