"""Exact parameter counts of model and LoRA where config.json alone is not enough."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from ...core.host import ModelCard
from ...data.report import has_exact_size
from ...settings.definitions import TrainingSettings


def add_param_count(card: ModelCard, settings: TrainingSettings) -> ModelCard:
    """Add counts from a meta model to the card; unchanged if they are not needed or cannot be made."""
    if has_exact_size(card.config, settings.lora) or not find_spec("torch"):
        return card
    from .meta_model import count_weights

    return replace(card, param_counts=count_weights(settings.lora, card))
