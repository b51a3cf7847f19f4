"""LoRA adapters on a model: loading, saving, target layers, parameter counts and state guards."""

from __future__ import annotations

from . import adapter
from .meta_model import add_param_count, build_meta_model, lora_problems
from .peft_private import adapted_layers
from .state_guards import (
    HALF_PRECISION,
    autocast_model,
    compute_dtype,
    evaluation_context,
    is_tf32_enabled,
    model_device,
    pause_training_mode,
    preserve_rng,
    restore_methods,
    slow_dtype_advice,
)
from .targets import choose_targets, count_layer_names, tied_layer_notes

__all__ = [
    "HALF_PRECISION",
    "adapted_layers",
    "adapter",
    "add_param_count",
    "autocast_model",
    "build_meta_model",
    "choose_targets",
    "compute_dtype",
    "count_layer_names",
    "evaluation_context",
    "is_tf32_enabled",
    "lora_problems",
    "model_device",
    "pause_training_mode",
    "preserve_rng",
    "restore_methods",
    "slow_dtype_advice",
    "tied_layer_notes",
]
