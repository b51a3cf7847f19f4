"""A finished LoRA trained further: its weights are where the new run begins; one of another shape is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file

from ...core.errors import SavingError, SettingsError, first_line
from ...settings.definitions import Lora
from .adapter import CONFIG, WEIGHTS

OLD_WEIGHTS = "adapter_model.bin"


def refuse_other_shape(lora: Lora, folder: Path) -> None:
    """SettingsError with everything in which the LoRA and what is asked for differ; before anything is loaded."""
    config = _config(folder)
    pairs = (
        ("LoRA Rank", config.get("r"), lora.rank),
        ("LoRA Alpha", config.get("lora_alpha"), lora.alpha),
        ("DoRA", bool(config.get("use_dora")), lora.dora),
        ("rsLoRA", bool(config.get("use_rslora")), lora.rslora),
        ("Train Head", bool(config.get("modules_to_save")), lora.train_head),
    )
    problems = [
        f"{label}: the LoRA {folder.name!r} has {_plain(there)}, asked for is {_plain(asked)}. To train it "
        f"further use {_plain(there)}."
        for label, there, asked in pairs
        if there is not None and there != asked
    ]
    if problems:
        raise SettingsError(problems)


def begin_with(model: PeftModel, folder: Path) -> None:
    """Give the fresh LoRA the weights of one on disk; every one of them, or a SavingError."""
    state = _weights(folder)
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        found = set_peft_model_state_dict(model, state)
    except (RuntimeError, KeyError, ValueError) as error:
        raise _does_not_fit(folder, first_line(error)) from error
    missing = wanted & set(found.missing_keys)
    if missing or found.unexpected_keys:
        layers = sorted(
            {name.split(".lora_")[0].rpartition(".")[2] for name in (*missing, *found.unexpected_keys)}
        )
        raise _does_not_fit(folder, f"the layers differ ({', '.join(layers[:8])})")


def _does_not_fit(folder: Path, why: str) -> SavingError:
    return SavingError(
        f"The LoRA {folder.name!r} cannot be trained further with these settings: {why}. Choose the layers that "
        "it was trained on (Which layers), and the model it was made for."
    )


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SavingError(
            f"{folder / CONFIG} cannot be read: {error}. The LoRA cannot be trained further."
        ) from error
    return config if isinstance(config, dict) else {}


def _weights(folder: Path) -> dict[str, Any]:
    """Of either kind; an old .bin is read as weights only, so that it can run nothing."""
    try:
        if (folder / WEIGHTS).is_file():
            return dict(load_file(folder / WEIGHTS))
        return dict(torch.load(folder / OLD_WEIGHTS, map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, _pickle_error()) as error:
        raise SavingError(f"The weights in {folder} cannot be read: {error}. Choose another LoRA.") from error


def _pickle_error() -> type[Exception]:
    from pickle import UnpicklingError

    return UnpicklingError


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
