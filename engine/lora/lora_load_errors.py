"""Why a LoRA does not fit on a model: the first real difference, in words."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError

from ...core.errors import first_line
from ...core.files import read_json
from ...train_utils import several

_SIZE = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]+)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([\d, ]+)\]\)"
)
ELSEWHERE = "It seems to be one of another model."
_OF_PEFT = re.compile(r"^base_model\.model\.|\.(lora_|modules_to_save).*$")


def why(error: Exception, folder: Path, base: torch.nn.Module) -> str:
    """What PEFT and torch say goes over pages; where it tells of nothing else, its first line."""
    return _unreadable(error) or _sizes(error) or _lacking(folder, base) or first_line(error)


def _unreadable(error: Exception) -> str:
    if not isinstance(error, SafetensorError):
        return ""
    said = first_line(error).removeprefix("Error while deserializing header: ")
    remedy = "it is broken or not whole. Copy or download it anew."
    return f"{SAFETENSORS_WEIGHTS_NAME} cannot be read ({said}): {remedy}"


def _sizes(error: Exception) -> str:
    found = {_OF_PEFT.sub("", name): (own, here) for name, own, here in reversed(_SIZE.findall(str(error)))}
    if not found:
        return ""
    layer, (own, here) = found.popitem()
    more = f", and {several(len(found), 'more layer')} differ" if found else ""
    return f"for {layer} it has weights of {_times(own)}, and here they must be {_times(here)}{more}. {ELSEWHERE}"


def _times(shape: str) -> str:
    return shape.replace(", ", " x ")


def _lacking(folder: Path, base: torch.nn.Module) -> str:
    wanted = read_json(folder / CONFIG_NAME, {}).get("target_modules")
    if not isinstance(wanted, list):
        return ""
    there = [f".{name}" for name, _ in base.named_modules()]
    lacks = sorted(one for one in wanted if not any(name.endswith(f".{one}") for name in there))
    if not lacks:
        return ""
    some = ", ".join(lacks[:3]) + (" and more" if lacks[3:] else "")
    return (
        f"of the layers that it sits on, {len(lacks)} of {len(wanted)} are not in this model ({some}). {ELSEWHERE}"
    )
