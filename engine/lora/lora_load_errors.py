"""Explain in one sentence why a LoRA does not fit a model."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError

from ...core.errors import first_line
from ...core.files import read_json
from ...train_utils import format_count, plural

_SIZE_MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]+)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([\d, ]+)\]\)"
)
OTHER_MODEL_HINT = "The LoRA was probably made for another model."
_PEFT_AFFIXES = re.compile(r"^base_model\.model\.|\.(lora_|modules_to_save).*$")


def explain_load_error(error: Exception, folder: Path, base: torch.nn.Module) -> str:
    """Reduce an error of PEFT or torch, which may fill pages, to its cause; by default to its first line."""
    return _unreadable(error) or _size_mismatch(error) or _missing_layers(folder, base) or first_line(error)


def _unreadable(error: Exception) -> str:
    if not isinstance(error, SafetensorError):
        return ""
    message = first_line(error).removeprefix("Error while deserializing header: ")
    remedy = "Copy or download it again."
    return f"{SAFETENSORS_WEIGHTS_NAME} is damaged or incomplete ({message}). {remedy}"


def _size_mismatch(error: Exception) -> str:
    mismatches = {
        _PEFT_AFFIXES.sub("", name): (actual, expected)
        for name, actual, expected in reversed(_SIZE_MISMATCH.findall(str(error)))
    }
    if not mismatches:
        return ""
    layer, (actual, expected) = mismatches.popitem()
    differ = plural(len(mismatches), "differs", "differ")
    others = f", and {format_count(len(mismatches), 'more layer')} {differ}" if mismatches else ""
    return (
        f"its weights for {layer} are {_dimensions(actual)}, but this model needs "
        f"{_dimensions(expected)}{others}. {OTHER_MODEL_HINT}"
    )


def _dimensions(shape: str) -> str:
    return shape.replace(", ", " x ")


def _missing_layers(folder: Path, base: torch.nn.Module) -> str:
    targets = read_json(folder / CONFIG_NAME, {}).get("target_modules")
    if not isinstance(targets, list):
        return ""
    existing = [f".{name}" for name, _ in base.named_modules()]
    missing = sorted(target for target in targets if not any(name.endswith(f".{target}") for name in existing))
    if not missing:
        return ""
    first = ", ".join(missing[:3]) + (" and more" if missing[3:] else "")
    return (
        f"{len(missing)} of its {len(targets)} target modules {plural(len(missing), 'is', 'are')} not in this "
        f"model ({first}). {OTHER_MODEL_HINT}"
    )
