"""A LoRA or the whole model: why not the latter, and where what is made is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ..core.host import Folders, Host
from ..settings.declared import TrainingSettings


class _AmongModels:
    """A host whose runs are kept among its models; all else is its own."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def folders(self) -> Folders:
        own = self._host.folders
        return replace(own, loras=own.models)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


def is_whole(settings: TrainingSettings) -> bool:
    return settings.lora.method == "full"


def keeping_place(settings: TrainingSettings, host: Host) -> Host:
    """Where a run is kept: a LoRA among the LoRAs, a whole model among the models."""
    return cast(Host, _AmongModels(host)) if is_whole(settings) else host


def problems(settings: TrainingSettings, host: Host) -> list[str]:
    """Why not the whole model, before anything is loaded."""
    if not is_whole(settings):
        return []
    if not host.own_process:
        return [
            "Method full: inside the webui the model is only lent, and would not come back as it was. Train a "
            "LoRA, or run it on its own: python3 script.py train --method full"
        ]
    card, found = host.card(), []
    if card.loading in ("8bit", "4bit"):
        found.append(f"Method full: a model in {card.loading} cannot be trained whole. Load it in 16 or 32 bits.")
    if card.name == settings.what.name:
        found.append(f"Name: {card.name!r} is the model that is trained. The new one needs another name.")
    if settings.lora.dora or settings.lora.rslora or settings.lora.train_head:
        found.append("Method full: rsLoRA, DoRA and Train Head are parts of a LoRA. Leave them off.")
    return found
