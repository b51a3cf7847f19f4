"""Choice of the torch build: from PyPI if it fits this machine, else from PyTorch's index.

PyPI has CUDA builds for Linux and CPU builds for the other systems. So a Linux machine without a GPU would
download gigabytes of CUDA for nothing, and the GPU of a Windows machine would stay unused. The registry is asked
what it has, because a mirror may differ from PyPI.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import TrainingProError
from .pip import Wheel, resolve_wheels, say

PYTORCH_INDEX = "https://download.pytorch.org/whl"
NEW_CUDA_BUILD, OLD_CUDA_BUILD = "cu130", "cu126"  # torch 2.13 is built for both
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")


@dataclass(frozen=True)
class Gpu:
    """What limits the CUDA version: the newest one the driver supports, and the oldest compute capability."""

    driver: tuple[int, int]
    capability: tuple[int, int]

    @property
    def build(self) -> str:
        """CUDA build: CUDA 13 dropped GPUs before Turing (7.5), and CUDA 12.6 does not support Blackwell (10)."""
        old_driver = (0, 0) < self.driver < (13, 0) and self.capability < (10, 0)
        old_card = (0, 0) < self.capability < (7, 5)
        return OLD_CUDA_BUILD if old_driver or old_card else NEW_CUDA_BUILD


def torch_arguments(python: Path, pin: str, spec: str | None) -> list[str]:
    """Arguments of pip for torch; `spec` is the user's choice (`--torch`)."""
    if spec:
        return _user_arguments(pin, spec)
    wheels = resolve_wheels(python, [pin])
    if not any(wheel.name == "torch" for wheel in wheels):
        return [pin]  # already in the environment
    card = find_gpu()
    arguments = _matching_arguments(pin, cuda_version_of(wheels), card)
    return arguments if arguments == [pin] else _with_fallback(python, pin, arguments, card)


def find_gpu() -> Gpu | None:
    """Query the NVIDIA GPUs of this machine; None without `nvidia-smi`."""
    if not (program := shutil.which("nvidia-smi")):
        return None
    overview = _output_of([program])
    if not overview:
        return None
    capabilities = _output_of([program, "--query-gpu=compute_cap", "--format=csv,noheader"])
    return Gpu(
        driver=_find_version(r"CUDA[^:|]*Version:\s*", overview), capability=_find_version("", capabilities)
    )


def cuda_version_of(wheels: Sequence[Wheel]) -> int | None:
    """Major CUDA version that comes with the wheels (0 if unknown), or None for a build without CUDA."""
    cuda = [wheel for wheel in wheels if wheel.name.lower().startswith(CUDA_PACKAGES)]
    if not cuda:
        return None
    runtimes = [wheel for wheel in cuda if wheel.name.lower().startswith(CUDA_RUNTIMES)]
    return int(runtimes[0].version.split(".")[0]) if runtimes else 0


def _matching_arguments(pin: str, cuda: int | None, card: Gpu | None) -> list[str]:
    if card is None:
        return [pin] if cuda is None else _from_pytorch(pin, "cpu")
    cuda_version = 12 if card.build == OLD_CUDA_BUILD else 13
    return [pin] if cuda in (0, cuda_version) else _from_pytorch(pin, card.build)


def _with_fallback(python: Path, pin: str, arguments: list[str], card: Gpu | None) -> list[str]:
    """Fall back to the registry if PyTorch's index fails: an unused CUDA is fine, an unused GPU is an error."""
    try:
        resolve_wheels(python, arguments)
    except TrainingProError as error:
        if card is not None:
            raise TrainingProError(
                f"{error}\nThe torch build for this GPU is {arguments[0]}, from {arguments[-1]}. "
                f"To use the build from pip's default package index instead, add --torch {pin}."
            ) from error
        say(f"{arguments[-1]} can't be reached, or has no {arguments[0]} for this version of Python.")
        say(
            "Using the build from pip's default package index instead. It includes CUDA, which this machine "
            "does not need."
        )
        return [pin]
    return arguments


def _from_pytorch(pin: str, build: str) -> list[str]:
    """Arguments for a build of PyTorch; its name in the version excludes the registry's file of that version."""
    return [f"{pin}+{build}", "--extra-index-url", f"{PYTORCH_INDEX}/{build}"]


def _user_arguments(pin: str, spec: str) -> list[str]:
    first, *rest = shlex.split(spec, posix=os.name != "nt") or [""]
    if re.fullmatch(r"\d[\w.+]*", first):
        return [f"torch=={first}", *rest]
    if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", first):
        return _from_pytorch(pin, first) + rest
    if re.match(r"torch\b", first) or "://" in first or Path(first).is_file():
        return [first, *rest]
    raise TrainingProError(
        f"--torch {spec!r} is not valid. Use a version (2.12.0), a PyTorch build (cpu, cu126, rocm6.4), "
        "or anything else that pip accepts (the path or URL of a wheel, or 'torch==2.12.0 --index-url URL')."
    )


def _output_of(command: Sequence[str]) -> str:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


def _find_version(before: str, text: str) -> tuple[int, int]:
    """Smallest version such as `1.2` after the pattern `before`; (0, 0) if there is none."""
    versions = re.findall(before + r"(\d+)\.(\d+)", text)
    return min(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
