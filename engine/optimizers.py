"""Optimizers by name: whether this one works here is answered before a run begins."""

from __future__ import annotations

import difflib
import importlib.util
from importlib.metadata import version

from transformers.training_args import OptimizerNames

from ..core.errors import SettingsError

_NEEDS = {
    "bitsandbytes": ("8bit", "paged_", "lion", "ademamix", "bnb"),
    "galore_torch": ("galore",),
    "lomo_optim": ("lomo",),
    "grokadamw": ("grokadamw",),
    "schedulefree": ("schedule_free",),
    "apollo_torch": ("apollo",),
    "optimi": ("stable_adamw",),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
}
_NOT_HERE = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend cards",
    "galore": "it replaces LoRA rather than training one",
    "apollo": "it replaces LoRA rather than training one",
    "lomo": "it steps while it goes backward, which accumulation and clipping do not survive",
}


def optimizer_name(asked: str) -> str:
    """The name as transformers has it; SettingsError where it is unknown or something is missing for it."""
    known = [name.value for name in OptimizerNames]
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(known)}."
        raise SettingsError([f"Optimizer: transformers knows no {asked!r}. {hint}"])
    for part, why in _NOT_HERE.items():
        if part in asked:
            raise SettingsError([f"Optimizer: {asked} does not work here: {why}. Choose adamw_torch."])
    if (package := _missing(asked)) is not None:
        raise SettingsError(
            [f"Optimizer: {asked} needs the package {package}. Install it, or choose adamw_torch."]
        )
    return asked


def _missing(asked: str) -> str | None:
    if asked in _NEEDS["torchao"]:
        return None if importlib.util.find_spec("torchao") else "torchao"
    for package, parts in _NEEDS.items():
        if any(part in asked for part in parts) and importlib.util.find_spec(package) is None:
            return package
    return None


def refuse_on_this_device(name: str, device: str) -> None:
    """bitsandbytes came to the processor later than to graphics cards."""
    if device != "cpu" or not any(part in name for part in _NEEDS["bitsandbytes"]) or name == "adamw_torch_8bit":
        return
    if "paged" in name or tuple(map(int, version("bitsandbytes").split(".")[:2])) < (0, 50):
        raise SettingsError([f"Optimizer: {name} wants a graphics card here. Choose adamw_torch or adafactor."])
