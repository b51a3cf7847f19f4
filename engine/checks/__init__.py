"""Requirements of model, machine and optimizer, checked before a run starts."""

from __future__ import annotations

from .bf16_rounding import advice, rounding_advice
from .optimizers import optimizer_problems
from .requirements import (
    attention_problems,
    card_problems,
    dora_problems,
    float16_problems,
    is_offloaded,
    liger_problems,
    offloaded_problems,
    only_card,
    problems,
    refuse,
    refuse_for,
)

__all__ = [
    "advice",
    "attention_problems",
    "card_problems",
    "dora_problems",
    "float16_problems",
    "is_offloaded",
    "liger_problems",
    "offloaded_problems",
    "only_card",
    "optimizer_problems",
    "problems",
    "refuse",
    "refuse_for",
    "rounding_advice",
]
