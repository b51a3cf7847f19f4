"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from __future__ import annotations

from . import distributed
from .acceleration import compiled, give_back_memory, set_up, workers
from .capabilities import Ways, quiet, tried
from .collator import EXAMPLES, JOINS, OWNERS, TOKENS, batched
from .distributed import agree, backend
from .gpu_memory import free_memory, freed_afterwards
from .layer_patches import loras_in_fewer_passes
from .loss import Loss
from .loss_by_dataset import LossesApart
from .neftune import noisy
from .oom_retry import Halving, Piece, Work
from .packed_attention import text_by_text
from .peak_memory import begin_anew, resident
from .step_errors import (
    BreakdownError,
    broken_down,
    cannot_halve,
    does_not_fit,
    is_out_of_memory,
    memory_of,
    spoiled,
    told_where_memory_runs_out,
    why_unsound,
)
from .telemetry import MachineWatch
from .windows_vram import SPILLS, Spilling, kept_on_the_card

__all__ = [
    "EXAMPLES",
    "JOINS",
    "OWNERS",
    "SPILLS",
    "TOKENS",
    "BreakdownError",
    "Halving",
    "Loss",
    "LossesApart",
    "MachineWatch",
    "Piece",
    "Spilling",
    "Ways",
    "Work",
    "agree",
    "backend",
    "batched",
    "begin_anew",
    "broken_down",
    "cannot_halve",
    "compiled",
    "distributed",
    "does_not_fit",
    "free_memory",
    "freed_afterwards",
    "give_back_memory",
    "is_out_of_memory",
    "kept_on_the_card",
    "loras_in_fewer_passes",
    "memory_of",
    "noisy",
    "quiet",
    "resident",
    "set_up",
    "spoiled",
    "text_by_text",
    "told_where_memory_runs_out",
    "tried",
    "why_unsound",
    "workers",
]
