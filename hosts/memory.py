"""Total and used memory of the device."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..core import dist_env
from ..core.host import DeviceMemory


def read_memory(model: Any = None) -> DeviceMemory:
    """Memory of the GPU if torch is loaded and has one, else main memory; never imports torch.

    For a model on several GPUs, the sum over them.
    """
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

        ram = psutil.virtual_memory()
        return DeviceMemory("CPU", ram.total - ram.available, ram.total)
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
