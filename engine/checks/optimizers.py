"""Check by name, before a run starts, whether an optimizer works here."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from ...core.findings import Finding, problem
from ...settings.definitions import SETTINGS

_BITSANDBYTES = ("8bit", "paged_", "lion", "ademamix", "bnb")
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),  # before bitsandbytes, whose patterns also match them
    "bitsandbytes": _BITSANDBYTES,
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
    "torchdistx": ("adamw_anyprecision",),
    "apex": ("adamw_apex_fused",),
}
_INSTALL_HINTS = {
    "optimi": "pip install torch-optimi",
    "torchao": 'pip install "torchao<0.18", because torchao 0.18 does not work with the webui\'s PEFT 0.18',
    "torchdistx": "not on PyPI: https://github.com/pytorch/torchdistx",
    "apex": "from NVIDIA, not on PyPI: https://github.com/NVIDIA/apex",
}
_UNSUPPORTED = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend NPUs",
    "galore": "it is an alternative to LoRA and can't train a LoRA",
    "apollo": "it is an alternative to LoRA and can't train a LoRA",
    "schedule_free": "it averages the weights over many steps, but a checkpoint stores the weights of one step",
    "lomo": "it updates the weights during the backward pass, so gradients can't be accumulated or clipped",
}


def optimizer_problems(name: str, device: str) -> Iterator[Finding]:
    """Yield why an optimizer does not work on a device ('cpu' or 'cuda'), with the remedy; at most one reason."""
    package = _required_package(name)
    message = ""
    if name not in SETTINGS["optimizer"].choices and (unknown := _unknown_name_message(name)):
        message = unknown
    elif reason := next((reason for pattern, reason in _UNSUPPORTED.items() if pattern in name), ""):
        message = f"{name} does not work here: {reason}. Choose adamw_torch."
    elif package and importlib.util.find_spec(package) is None:
        hint = _INSTALL_HINTS.get(package, f"pip install {package}")
        message = f"{name} needs the {package} package ({hint}). Install it, or choose adamw_torch."
    elif package == "bitsandbytes" and device == "cpu" and not _runs_on_cpu(name):
        message = f"{name} needs a GPU. Choose adamw_torch or adafactor."
    if message:
        yield problem("optimizer", f"Optimizer: {message}")


def _unknown_name_message(optimizer: str) -> str:
    # This import takes seconds, so only for a name that is not among the choices
    from transformers.training_args import OptimizerNames

    names = [name.value for name in OptimizerNames]
    if optimizer in names:
        return ""
    matches = difflib.get_close_matches(optimizer, names, n=1)
    hint = f"Did you mean {matches[0]}?" if matches else f"Available: {', '.join(names)}."
    return f"transformers has no optimizer called {optimizer!r}. {hint}"


def _required_package(optimizer: str) -> str:
    """Package that the optimizer needs; empty if transformers and torch suffice."""
    return next(
        (package for package, patterns in _PACKAGES.items() if any(pattern in optimizer for pattern in patterns)),
        "",
    )


def _runs_on_cpu(optimizer: str) -> bool:
    """Whether bitsandbytes runs the optimizer on the CPU, which it supports from version 0.50."""
    return "paged" not in optimizer and tuple(map(int, version("bitsandbytes").split(".")[:2])) >= (0, 50)
