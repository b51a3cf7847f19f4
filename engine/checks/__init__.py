"""Requirements of model, machine and optimizer, checked before a run starts."""

from __future__ import annotations

from .optimizers import optimizer_problems
from .reporters import NO_REPORTER
from .run_checks import (
    attention_problems,
    check_run,
    check_run_folder,
    dora_problems,
    float16_problems,
    gpu_index_problems,
    is_offloaded,
    liger_problems,
    offloaded_problems,
    only_gpu_index,
    raise_problems,
    rounding_advice,
)

__all__ = [
    "NO_REPORTER",
    "attention_problems",
    "check_run",
    "check_run_folder",
    "dora_problems",
    "float16_problems",
    "gpu_index_problems",
    "is_offloaded",
    "liger_problems",
    "offloaded_problems",
    "only_gpu_index",
    "optimizer_problems",
    "raise_problems",
    "rounding_advice",
]
