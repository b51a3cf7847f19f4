"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from __future__ import annotations

from . import distributed, failures
from .collator import Batch, collate
from .hf_private import TrainerHooks
from .layer_patches import patch_lora_layers, use_packed_attention
from .machine import MachineMonitor, apply_machine_settings, compile_layers, count_workers, measure_peak
from .objective import ModelCapabilities, Objective, StepSums, add_neftune_noise, make_objective, probe_model
from .packed_gguf import load_gguf, unpacked_to_generate

__all__ = [
    "Batch",
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
    "failures",
    "load_gguf",
    "make_objective",
    "measure_peak",
    "patch_lora_layers",
    "probe_model",
    "unpacked_to_generate",
    "use_packed_attention",
]
