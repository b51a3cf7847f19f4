"""Naming rules for LoRAs, presets and models: names that the webui, PEFT and every operating system accept."""

from __future__ import annotations

import re

from ..core.files import name_fault

LORA = "LoRA"
MAX_NAME_LENGTH = 60
# A dataset and how much of it to use, as in notes.md:50. The only colon of chats:9 is a part of the name.
NAME_AND_PERCENT = re.compile(r"(?!chats:[^:]*$)(?P<name>.*[^\s:])\s*:\s*(?P<per_cent>[\d.,]+)\s*%?")
# Names of devices on Windows.
_RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|com\d|lpt\d)$")
# Attribute names of torch modules: the webui's Model tab cannot load a LoRA with such a name.
TORCH_ATTRIBUTES = re.compile(
    "apply|bfloat16|buffers|children|clear|compile|copy|cpu|cuda|double|eval|float|forward|fromkeys|get|half|ipu|"
    "items|keys|modules|mtia|parameters|pop|popitem|setdefault|to|train|training|type|update|values|xpu"
)


def name_problem(name: str, of: str = LORA) -> str:
    """Return what is wrong with a name of a LoRA or 'preset', and what to do about it, or an empty string."""
    if not name.strip():
        return f"this field is empty. Enter a name for the {of}, for example 'my-story'."
    if len(name) > MAX_NAME_LENGTH:
        return f"this name has {len(name)} characters; the limit is {MAX_NAME_LENGTH}. Choose a shorter name."
    if ".." in name or re.search(r"[/\\]|^[A-Za-z]:", name):
        hint = ". The LoRA is always saved in the LoRA folder" if of == LORA else " without a folder"
        return f"{name!r} is a path. Enter only a name{hint}."
    if of == LORA and "." in name:
        return f"{name!r} contains a dot, and a LoRA with a dot in its name can't be attached. Use - or _ instead."
    if match := re.search(r'[<>:"|?*\x00-\x1f]', name):
        return f"{name!r} contains {match[0]!r}, which some systems don't allow in names. Remove this character."
    if name != name.strip() or name.endswith(".") or _RESERVED.match(name):
        return f"{name!r} is not a valid name on Windows. Choose another name."
    if name.endswith("-np"):
        return f"{name!r} ends in -np, and the webui hides such folders. Choose another name."
    if of == LORA and TORCH_ATTRIBUTES.fullmatch(name):
        return f"{name!r} is a name that PyTorch uses, so the webui can't load it. Try {name + '-1'!r}."
    if name.startswith("."):
        return f"{name!r} starts with a dot, so it would be hidden. Choose another name."
    if name.startswith("-"):
        return f"{name!r} starts with -, which looks like a command-line flag. Choose another name."
    return f"{name!r} {reason}. Choose another name." if (reason := name_fault(name)) else ""


def shard_size_problem(text: str) -> str:
    """Return what is wrong with a file size, or an empty string."""
    if re.fullmatch(r"[1-9][0-9]*(KB|MB|GB)", text):
        return ""
    return f"{text!r} is not a file size. Enter a size such as 500MB or 5GB."


def layers_problem(text: str) -> str:
    """Return what is wrong with a list of layers, or an empty string."""
    if not re.fullmatch(r"\s*|\s*\d{1,4}\s*(-\s*\d{1,4}\s*)?(,\s*\d{1,4}\s*(-\s*\d{1,4}\s*)?)*", text):
        return f"{text!r} is not a list of layers. Enter a list such as 0-7,12."
    ranges = [part.split("-") for part in text.split(",") if "-" in part]
    backward = [f"{first.strip()}-{last.strip()}" for first, last in ranges if int(first) > int(last)]
    return f"{backward[0]} goes backward. Write the lower number first." if backward else ""
