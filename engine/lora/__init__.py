"""LoRA adapters on a model: loading, saving, target layers, parameter counts and state guards."""

from __future__ import annotations

from . import adapter
from .adapter import injected, loaded_onto, lora_config, lora_folder, take_out, weights_written, without_loras
from .adapter_snapshot import laid_aside, off
from .dtypes import HALF, computing_type, device, in_its_type, rounds_to_tf32, slow_type_advice
from .meta_model import lora_problems, skeleton
from .param_count import counted
from .state_guards import as_it_was, same_chance, undisturbed
from .targets import adapted, kinds, refuse_if_elsewhere, resolved
from .warm_start import begin_with, refuse_other_shape

__all__ = [
    "HALF",
    "adapted",
    "adapter",
    "as_it_was",
    "begin_with",
    "computing_type",
    "counted",
    "device",
    "in_its_type",
    "injected",
    "kinds",
    "laid_aside",
    "loaded_onto",
    "lora_config",
    "lora_folder",
    "lora_problems",
    "off",
    "refuse_if_elsewhere",
    "refuse_other_shape",
    "resolved",
    "rounds_to_tf32",
    "same_chance",
    "skeleton",
    "slow_type_advice",
    "take_out",
    "undisturbed",
    "weights_written",
    "without_loras",
]
