"""Variables of the environment of distributed training, which torchrun or accelerate sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables of `accelerate launch` that ask for a model that is divided among the processes.
SHARDING: Mapping[str, str] = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor or context parallelism",
}


def _read_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


def world_size() -> int:
    """Number of processes that train together; 1 without a launcher."""
    return max(1, _read_int("WORLD_SIZE", 1))


def rank() -> int:
    """Rank of this process; only the process with rank 0 writes files."""
    return _read_int("RANK", 0)


def local_rank() -> int:
    """Rank among the processes on this machine: the index of its GPU."""
    return _read_int("LOCAL_RANK", 0)


def is_main_process() -> bool:
    return rank() == 0


def sharding() -> str:
    """What is to divide the model among the processes; empty for data parallel training."""
    names = (name for variable, name in SHARDING.items() if os.environ.get(variable, "").lower() in ("true", "1"))
    return next(names, "")
