"""Puts LoRAs on the loaded model, the webui's way."""  # noqa: N999 - the webui's own name

from __future__ import annotations

from pathlib import Path

from modules import shared


def add_lora_to_model(lora_names: list[str]) -> None:
    """Exactly these are on afterwards; the model is halved on the way, as the webui does it."""
    from peft import PeftModel

    if shared.lora_names:
        shared.model = shared.model.unload()
        shared.lora_names = []
    for name in lora_names:
        folder = Path(shared.args.lora_dir) / name
        if isinstance(shared.model, PeftModel):
            shared.model.load_adapter(folder, name)
        else:
            shared.model = PeftModel.from_pretrained(shared.model, folder, adapter_name=name)
    shared.lora_names = list(lora_names)
    if lora_names and not shared.args.load_in_8bit and not shared.args.cpu:
        shared.model.half()
