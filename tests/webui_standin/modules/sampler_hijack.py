"""Replaces two functions of transformers, as the host's modules/sampler_hijack.py does when it loads a model."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.generation.logits_process import LogitsProcessorList

original_init = transformers.GenerationConfig.__init__
original_get_logits_processor = transformers.GenerationMixin._get_logits_processor
VALUES: dict[str, Any] = {
    **{"min_p": 0.0, "dynamic_temperature": False, "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_exponent": 1},
    **{"smoothing_factor": 0.0, "smoothing_curve": 1.0, "tfs": 1.0, "top_a": 0.0, "top_n_sigma": 0.0},
    **{"adaptive_target": 0.0, "adaptive_decay": 0.9, "mirostat_mode": 0, "mirostat_eta": 0.1, "mirostat_tau": 5},
    **{"repetition_penalty_range": 0, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0.0},
    **{"dry_base": 1.75, "dry_allowed_length": 2, "dry_sequence_breakers": '"\\n", ":", "\\"", "*"'},
    **{"xtc_threshold": 0.1, "xtc_probability": 0, "temperature_last": False, "sampler_priority": ["temperature"]},
}
"""What every generation config has then; min_p is a value that transformers does not save without do_sample."""


def generation_config_init_patch(self: Any, **kwargs: Any) -> None:
    original_init(self, **kwargs)
    for name, value in VALUES.items():
        setattr(self, name, kwargs.pop(name, value))


def get_logits_processor_patch(self: Any, **kwargs: Any) -> Any:
    """Arguments by keyword only; a config that was made without the values above is an AttributeError."""
    config = kwargs["generation_config"]
    if isinstance(config.temperature, int):
        config.temperature = float(config.temperature)
    assert all(hasattr(config, name) for name in VALUES), "a generation config from before the model was loaded"
    warpers = original_get_logits_processor(self, **kwargs)
    removed = "RepetitionPenaltyLogitsProcessor"  # the host has its own one
    return LogitsProcessorList(warper for warper in warpers if type(warper).__name__ != removed)


def hijack_samplers() -> None:
    transformers.GenerationMixin._get_logits_processor = get_logits_processor_patch
    transformers.GenerationConfig.__init__ = generation_config_init_patch
