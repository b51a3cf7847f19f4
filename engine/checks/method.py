"""Requirements of full fine-tuning."""

from __future__ import annotations

from ...core.host import Host
from ...core.launcher import launcher
from ...settings.definitions import TrainingSettings


def problems(settings: TrainingSettings, host: Host) -> list[str]:
    """Problems with full fine-tuning, known before anything is loaded."""
    if not settings.lora.whole_model:
        return []
    if not host.own_process:
        return [
            "Method full: inside the webui the model is only lent, and would not come back as it was. Train a "
            f"LoRA, or run it on its own: {launcher()} train --method full"
        ]
    card, messages = host.card(), []
    if card.loading in ("8bit", "4bit"):
        messages.append(
            f"Method full: a model in {card.loading} cannot be trained whole. Load it in 16 or 32 bits."
        )
    if card.name == settings.what.name:
        messages.append(f"Name: {card.name!r} is the model that is trained. The new one needs another name.")
    lora = settings.lora
    if lora.dora or lora.rslora or lora.train_head or lora.lora_plus != 1:
        messages.append("Method full: rsLoRA, DoRA, LoRA+ and Train Head are parts of a LoRA. Leave them off.")
    return messages
