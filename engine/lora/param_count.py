"""The weights of a model and of the LoRA on it, counted where arithmetic from config.json does not know them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from ...core.host import ModelCard
from ...data.report import is_known
from ...settings.definitions import TrainingSettings


def counted(card: ModelCard, settings: TrainingSettings) -> ModelCard:
    """The card with what a skeleton says; as it was where that is not needed, or none can be made."""
    if is_known(card.config, settings.lora.targets) or not find_spec("torch"):
        return card
    from .meta_model import weights

    return replace(card, counted=weights(settings.lora, card))
