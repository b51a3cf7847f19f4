"""Memory of the devices, and limits for loading a model: from words to the `max_memory` of transformers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..core import dist_env
from ..core.errors import ModelError
from ..core.host import DeviceMemory
from ..train_utils import plural, size

# As transformers and accelerate read them: GB is decimal, GiB binary.
UNITS = {"mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}
LIMIT = re.compile(r"(?:(?P<device>cpu|\d+)=)?(?P<number>\d+(?:\.\d+)?)(?P<unit>[mg]i?b)", re.IGNORECASE)
EVERY_GPU = "every GPU"
CPU = "cpu"

Device = int | str
Limits = Mapping[Device, int]  # bytes by GPU index, "cpu" or EVERY_GPU


def parse_limits(words: Sequence[str]) -> Limits:
    """Read limits such as 20GB, 0=10GB or cpu=30GB; ModelError names the one that makes no sense."""
    limits: dict[Device, int] = {}
    for word in words:
        parts = LIMIT.fullmatch(word)
        if parts is None:
            example = "20GB or 20000MB for every GPU, 0=10GB for the first GPU, or cpu=30GB"
            raise ModelError(f"--max-memory: {word!r} is not a valid memory limit. Write {example}.")
        limit = int(float(parts["number"]) * UNITS[parts["unit"].lower()])
        if not limit:
            raise ModelError(
                f"--max-memory {word}: a limit must be above 0. To exclude a device, leave it out of --max-memory."
            )
        name = (parts["device"] or "").lower()
        limits[int(name) if name.isdecimal() else name or EVERY_GPU] = limit
    return limits


def device_limits(limits: Limits) -> dict[Device, int]:
    """The limits for the devices here, as `max_memory` of transformers; devices without a limit are not used."""
    if dist_env.world_size() > 1:
        raise ModelError(
            f"--max-memory spreads a model over the GPUs, but {dist_env.world_size()} processes train together, "
            "each on its own GPU. Omit --max-memory, or start only one process."
        )
    memory = _device_memory()
    gpus = [device for device in memory if device != CPU]
    if EVERY_GPU in limits and not gpus:
        raise ModelError(
            "--max-memory sets a limit for every GPU, but this machine has no GPU. Limit the CPU memory instead, "
            "for example cpu=30GB."
        )
    # The order matters: a limit for one GPU replaces that for every GPU.
    devices = {**dict.fromkeys(gpus, limits.get(EVERY_GPU, 0)), **limits}
    devices.pop(EVERY_GPU, None)
    used = {device: limit for device, limit in devices.items() if limit}
    for device, limit in used.items():
        if device not in memory:
            raise ModelError(
                f"--max-memory: there is no GPU {device}. This machine has {len(gpus)} {plural(len(gpus), 'GPU')}"
                f"{', numbered from 0' if gpus else ''}."
            )
        if 0 < memory[device] < limit:
            name = "the CPU" if device == CPU else f"GPU {device}"
            raise ModelError(
                f"--max-memory: {name} has {size(memory[device])}, so a limit of {size(limit)} has no effect. Use "
                "a lower limit, or omit it."
            )
    return used


def check_placement(model: Any, name: str) -> None:
    """Refuse a model with layers for which no device has room; they would be read from disk at each step."""
    placement = getattr(model, "hf_device_map", {})
    if not placement and any(weight.is_meta for weight in model.parameters()):
        placement = {"": "disk"}  # transformers 5.6 gives no map where there is no room for anything
    outside = sum(device == "disk" for device in placement.values())
    if outside:
        raise ModelError(
            f"{name} needs more memory than --max-memory allows: {outside} of its "
            f"{len(placement)} modules {plural(outside, 'does', 'do')} not fit. Raise a limit, add a limit for "
            "another device, load the model in 4-bit, or choose a smaller model."
        )


def _device_memory() -> dict[Device, int]:
    """Total memory of each GPU and of the CPU in bytes; 0 if unknown."""
    import psutil
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus: dict[Device, int] = {index: torch.cuda.mem_get_info(index)[1] for index in range(count)}
    return {**gpus, CPU: psutil.virtual_memory().total}


def read_memory(model: Any = None) -> DeviceMemory:
    """Memory of the GPUs of the model if torch is loaded and has any, else main memory; never imports torch."""
    cuda = _cuda()
    if cuda is not None and cuda.is_available():
        # Those with weights of the model; none without a model, or if another program runs it.
        weights = model.parameters() if hasattr(model, "parameters") else ()
        gpus = sorted({weight.device.index or 0 for weight in weights if weight.device.type == "cuda"})
        gpus = gpus or [dist_env.local_rank()]
        free, total = map(sum, zip(*map(cuda.mem_get_info, gpus), strict=True))
        names = ", ".join(map(cuda.get_device_name, gpus))
        return DeviceMemory(names, total - free, total, sum(map(cuda.memory_reserved, gpus)))
    if importlib.util.find_spec("psutil") is not None:
        import psutil

        ram, own = psutil.virtual_memory(), psutil.Process().memory_info()
        tensors = (*model.parameters(), *model.buffers()) if hasattr(model, "parameters") else ()
        # Weights that are mapped from a file count as available already.
        held = min(sum(t.numel() * t.element_size() for t in tensors), own.rss - getattr(own, "shared", 0))
        return DeviceMemory("CPU", ram.total - ram.available, ram.total, held)
    return DeviceMemory("CPU", 0, 0)


def uses_gpu() -> bool:
    """Whether models are loaded onto a GPU; judged by torch's build and nvidia-smi if torch is not loaded yet."""
    if (cuda := _cuda()) is not None:
        return bool(cuda.is_available())
    try:
        build = version("torch")
    except PackageNotFoundError:
        return False
    return "+rocm" in build or ("+cpu" not in build and shutil.which("nvidia-smi") is not None)


def _cuda() -> Any:
    """torch.cuda if torch is loaded, else None; another thread may be importing torch right now."""
    return getattr(sys.modules.get("torch"), "cuda", None)
