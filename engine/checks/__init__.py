"""Requirements of model, machine and optimizer, checked before a run starts."""

from __future__ import annotations

from .bf16_rounding import host_rounding_advice, rounding_advice
from .optimizers import optimizer_problems
from .requirements import (
    attention_problems,
    dora_problems,
    float16_problems,
    gpu_index_problems,
    is_offloaded,
    liger_problems,
    offloaded_problems,
    only_gpu_index,
    raise_problems,
    raise_run_problems,
    run_problems,
)

__all__ = [
    "attention_problems",
    "dora_problems",
    "float16_problems",
    "gpu_index_problems",
    "host_rounding_advice",
    "is_offloaded",
    "liger_problems",
    "offloaded_problems",
    "only_gpu_index",
    "optimizer_problems",
    "raise_problems",
    "raise_run_problems",
    "rounding_advice",
    "run_problems",
]
