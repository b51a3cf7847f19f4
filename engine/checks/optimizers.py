"""Optimizers by name: whether this one works here is answered before a run begins."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from ...settings.definitions import SETTINGS

_BITSANDBYTES = ("8bit", "paged_", "lion", "ademamix", "bnb")
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),  # before those of bitsandbytes, whose sign they bear
    "bitsandbytes": _BITSANDBYTES,
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
    "torchdistx": ("adamw_anyprecision",),
    "apex": ("adamw_apex_fused",),
}
_GOT_BY = {
    "optimi": "pip install torch-optimi",
    "torchao": "pip install torchao; but PEFT 0.18, which the webui has, fails on torchao 0.18",
    "torchdistx": "pip has none: https://github.com/pytorch/torchdistx",
    "apex": "NVIDIA's, not pip's: https://github.com/NVIDIA/apex",
}
_NOT_HERE = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend cards",
    "galore": "it replaces LoRA rather than training one",
    "apollo": "it replaces LoRA rather than training one",
    "schedule_free": "what it would keep is its own average of the weights, and what is saved are those of a step",
    "lomo": "it steps while it goes backward, which accumulation and clipping do not survive",
}


def optimizer_problems(asked: str, device: str) -> Iterator[str]:
    """Why this one cannot step on such a device ('cpu', 'cuda'), with the remedy; at most one sentence."""
    package = _package(asked)
    if asked not in SETTINGS["optimizer"].choices and (unknown := _unknown(asked)):
        yield unknown
    elif why := next((why for part, why in _NOT_HERE.items() if part in asked), ""):
        yield f"Optimizer: {asked} does not work here: {why}. Choose adamw_torch."
    elif package and importlib.util.find_spec(package) is None:
        how = _GOT_BY.get(package, f"pip install {package}")
        yield f"Optimizer: {asked} needs the package {package} ({how}). Install it, or choose adamw_torch."
    elif package == "bitsandbytes" and device == "cpu" and not _steps_on_a_cpu(asked):
        yield f"Optimizer: {asked} wants a graphics card here. Choose adamw_torch or adafactor."


def _unknown(asked: str) -> str:
    from transformers.training_args import OptimizerNames  # seconds: only for a name that is not declared

    known = [name.value for name in OptimizerNames]
    if asked in known:
        return ""
    near = difflib.get_close_matches(asked, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(known)}."
    return f"Optimizer: transformers knows no {asked!r}. {hint}"


def _package(asked: str) -> str:
    """The module that it is imported from; empty where transformers and torch have it."""
    return next((name for name, parts in _NEEDS.items() if any(part in asked for part in parts)), "")


def _steps_on_a_cpu(asked: str) -> bool:
    """bitsandbytes came to the processor later than to graphics cards."""
    return "paged" not in asked and tuple(map(int, version("bitsandbytes").split(".")[:2])) >= (0, 50)
