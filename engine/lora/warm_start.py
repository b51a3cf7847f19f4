"""Start a run from the weights of a finished LoRA; a LoRA of another shape is refused."""

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
from ...core.files import read_small_file
from ...settings.definitions import LoraSettings
from .adapter import CONFIG, WEIGHTS

BIN_WEIGHTS = "adapter_model.bin"


def refuse_shape_mismatch(lora: LoraSettings, folder: Path) -> None:
    """SettingsError with all differences between the LoRA and the settings, before anything is loaded."""
    config = _load_config(folder)
    fields = (
        ("LoRA Rank", config.get("r"), lora.rank),
        ("LoRA Alpha", config.get("lora_alpha"), lora.effective_alpha),
        ("DoRA", bool(config.get("use_dora")), lora.dora),
        ("rsLoRA", bool(config.get("use_rslora")), lora.rslora),
        ("Bias", config.get("bias", "none"), lora.bias),
        (
            "Modules to save" if lora.saved_modules else "Train Head",
            bool(config.get("modules_to_save")),
            lora.train_head or bool(lora.saved_modules),
        ),
    )
    problems = [
        f"{label} is {_as_text(trained)} in the LoRA {folder.name!r}, but {_as_text(requested)} in the settings. "
        f"To continue training this LoRA, set {label} to {_as_text(trained)}."
        for label, trained, requested in fields
        if trained is not None and trained != requested
    ]
    if problems:
        raise SettingsError(problems)


def load_initial_weights(model: PeftModel, folder: Path) -> None:
    """Load the weights of a LoRA on disk into the new one; SavingError unless all of them match."""
    state = _load_weights(folder)
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        result = set_peft_model_state_dict(model, state)
    except (RuntimeError, KeyError, ValueError) as error:
        raise _mismatch_error(folder, first_line(error)) from error
    missing = trainable & set(result.missing_keys)
    if missing or result.unexpected_keys:
        layers = sorted(
            {name.split(".lora_")[0].rpartition(".")[2] for name in (*missing, *result.unexpected_keys)}
        )
        raise _mismatch_error(folder, f"its layers differ from those of this run ({', '.join(layers[:8])})")


def _mismatch_error(folder: Path, reason: str) -> SavingError:
    return SavingError(
        f"The LoRA {folder.name!r} can't be trained further with these settings: {reason}. Set Target "
        "modules to the layers that it was trained on, and choose the model that it was made for."
    )


def _load_config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(read_small_file(folder / CONFIG))
    except (OSError, ValueError) as error:
        raise SavingError(
            f"{folder / CONFIG} can't be read: {error}. The LoRA can't be trained further. Choose another LoRA."
        ) from error
    return config if isinstance(config, dict) else {}


def _load_weights(folder: Path) -> dict[str, Any]:
    """Load safetensors or an old .bin; the latter as weights only, so that no code in it runs."""
    try:
        if (folder / WEIGHTS).is_file():
            return dict(load_file(folder / WEIGHTS))
        return dict(torch.load(folder / BIN_WEIGHTS, map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, _unpickling_error()) as error:
        raise SavingError(f"The weights in {folder} can't be read: {error}. Choose another LoRA.") from error


def _unpickling_error() -> type[Exception]:
    from pickle import UnpicklingError

    return UnpicklingError


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
