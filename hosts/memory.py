"""How much memory the device in use has, and how much of it is taken."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..core import dist_env
from ..core.host import Memory


def memory(model: Any = None) -> Memory:
    """The card's, where torch is loaded and has one; else the machine's own. Never loads torch for it.

    A model that is spread over several cards has all of them together.
    """
    cuda = _cuda()
    if cuda is not None and cuda.is_available():
        cards = _cards_of(model) or [dist_env.local_rank()]
        free, total = map(sum, zip(*map(cuda.mem_get_info, cards), strict=True))
        names = ", ".join(map(cuda.get_device_name, cards))
        return Memory(names, total - free, total, sum(map(cuda.memory_reserved, cards)))
    if importlib.util.find_spec("psutil") is not None:
        import psutil

        whole = psutil.virtual_memory()
        return Memory("CPU", whole.total - whole.available, whole.total)
    return Memory("CPU", 0, 0)


def _cards_of(model: Any) -> list[int]:
    """The cards that its weights lie on; none where there is no model, or one that another program runs."""
    weights = model.parameters() if hasattr(model, "parameters") else ()
    return sorted({weight.device.index or 0 for weight in weights if weight.device.type == "cuda"})


def on_card() -> bool:
    """Whether models go onto a graphics card; by torch's build and NVIDIA's tool where torch is not loaded yet."""
    if (cuda := _cuda()) is not None:
        return bool(cuda.is_available())
    try:
        build = version("torch")
    except PackageNotFoundError:
        return False
    return "+rocm" in build or ("+cpu" not in build and shutil.which("nvidia-smi") is not None)


def _cuda() -> Any:
    """torch's part for NVIDIA's cards, where torch is loaded; another thread may be at that just now."""
    return getattr(sys.modules.get("torch"), "cuda", None)


def weights_size(model_folder: Path) -> int:
    """The bytes of a model's weight files: about what it takes in memory, loaded as it is."""
    for pattern in ("*.safetensors", "*.gguf", "*.bin"):
        if files := list(model_folder.glob(pattern)):
            return sum(f.stat().st_size for f in files)
    return 0
