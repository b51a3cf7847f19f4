"""Optimizer groups for LoRA+ and modules_to_save."""

from __future__ import annotations

from typing import Any

import torch

from ...settings.definitions import LoraSettings, TrainingSettings
from ..plan import LR_SHARE_KEY

_LORA_B = ("lora_B", "lora_embedding_B")  # as in PEFT's parameter names; zero at the start
_MODULES_TO_SAVE = "modules_to_save"


def split_param_groups(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, settings: TrainingSettings
) -> None:
    """Split the groups of an optimizer by learning rate share; groups with the plain rate come first."""
    shares = {id(weight): _lr_share(name, settings.lora) for name, weight in model.named_parameters()}
    groups = [split for group in optimizer.param_groups for split in _split_group(group, shares)]
    optimizer.param_groups = sorted(groups, key=lambda group: bool(group[LR_SHARE_KEY] != 1))


def _lr_share(name: str, lora: LoraSettings) -> float:
    if _MODULES_TO_SAVE in name:
        return lora.head_rate
    return lora.lora_plus if any(part in name for part in _LORA_B) else 1.0


def _split_group(group: dict[str, Any], shares: dict[int, float]) -> list[dict[str, Any]]:
    """Split a group by share; an empty one stays, since transformers relies on its own two groups."""
    group_shares = sorted({shares[id(weight)] for weight in group["params"]}) or [1.0]
    return [
        {
            **group,
            "params": [weight for weight in group["params"] if shares[id(weight)] == share],
            "lr": group["lr"] * share,
            LR_SHARE_KEY: share,
        }
        for share in group_shares
    ]
