"""What learns faster or slower than the rest: the second half of each pair, and embeddings with output layer."""

from __future__ import annotations

from typing import Any

import torch

from ...settings.definitions import Lora, TrainingSettings
from ..plan import SHARE

_SECOND_HALF = ("lora_B", "lora_embedding_B")  # in PEFT's names of weights; empty at the start
_HEAD = "modules_to_save"


def set_apart(optimizer: torch.optim.Optimizer, model: torch.nn.Module, settings: TrainingSettings) -> None:
    """Groups of their own for them, before the first step; those of the plain rate first, as they were."""
    shares = {id(weight): _share(name, settings.lora) for name, weight in model.named_parameters()}
    groups = [part for group in optimizer.param_groups for part in _parts(group, shares)]
    optimizer.param_groups = sorted(groups, key=lambda group: bool(group[SHARE] != 1))


def _share(name: str, lora: Lora) -> float:
    if _HEAD in name:
        return lora.head_rate
    return lora.lora_plus if any(half in name for half in _SECOND_HALF) else 1.0


def _parts(group: dict[str, Any], shares: dict[int, float]) -> list[dict[str, Any]]:
    """A group as one for each share; one that is empty stays, since HF counts on its own two."""
    found = sorted({shares[id(weight)] for weight in group["params"]}) or [1.0]
    return [
        {
            **group,
            "params": [weight for weight in group["params"] if shares[id(weight)] == share],
            "lr": group["lr"] * share,
            SHARE: share,
        }
        for share in found
    ]
