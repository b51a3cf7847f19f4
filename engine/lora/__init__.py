"""LoRA adapters on a model: loading, saving, target layers, parameter counts and state guards."""

from __future__ import annotations

from . import adapter
from .adapter import (
    KEPT_BIASES,
    disable_lora,
    inject_lora,
    load_initial_weights,
    load_lora,
    loaded_lora,
    lora_folder,
    read_weights,
    refuse_shape_mismatch,
    remove_peft_layers,
    removed_message,
    snapshot_adapters,
    translate_write_errors,
    unused_bias_advice,
    without_loras,
)
from .meta_model import add_param_count, build_meta_model, lora_problems
from .peft_private import adapted_layers
from .state_guards import (
    HALF_PRECISION,
    autocast_model,
    compute_dtype,
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
    "KEPT_BIASES",
    "adapted_layers",
    "adapter",
    "add_param_count",
    "autocast_model",
    "build_meta_model",
    "choose_targets",
    "compute_dtype",
    "count_layer_names",
    "disable_lora",
    "inject_lora",
    "is_tf32_enabled",
    "load_initial_weights",
    "load_lora",
    "loaded_lora",
    "lora_folder",
    "lora_problems",
    "model_device",
    "pause_training_mode",
    "preserve_rng",
    "read_weights",
    "refuse_shape_mismatch",
    "remove_peft_layers",
    "removed_message",
    "restore_methods",
    "slow_dtype_advice",
    "snapshot_adapters",
    "tied_layer_notes",
    "translate_write_errors",
    "unused_bias_advice",
    "without_loras",
]
