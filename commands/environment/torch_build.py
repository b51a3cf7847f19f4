"""Choice of the torch build: from PyPI if it fits this machine, else from PyTorch's index.

PyPI has CUDA builds for Linux and CPU builds for the other systems: a Linux machine without a GPU would download
gigabytes for nothing, and the GPU of a Windows machine would stay unused. A mirror may differ, so it is asked.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from ...core.errors import TrainingProError
from .pip import resolve_wheels, say

PYTORCH_INDEX = "https://download.pytorch.org/whl"
NEW_CUDA_BUILD, OLD_CUDA_BUILD = "cu130", "cu126"  # torch 2.13 is built for both
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")


def torch_arguments(python: Path, pin: str, spec: str | None) -> list[str]:
    """Arguments of pip for torch; `spec` is the user's choice (`--torch`)."""
    if spec:
        first, *rest = shlex.split(spec, posix=os.name != "nt") or [""]  # backslashes of Windows stay
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
    wheels = resolve_wheels(python, [pin])
    if not any(wheel.name == "torch" for wheel in wheels):
        return [pin]  # already in the environment
    # What `pip install torch` would bring tells what build the registry has, without a download.
    # The major CUDA version that comes with the registry's torch: 0 if it can't be told, None without CUDA.
    cuda = [wheel for wheel in wheels if wheel.name.lower().startswith(CUDA_PACKAGES)]
    runtimes = [wheel for wheel in cuda if wheel.name.lower().startswith(CUDA_RUNTIMES)]
    offered = int(runtimes[0].version.split(".")[0]) if runtimes else 0 if cuda else None
    build = _build_for_this_machine()
    fitting = {"cpu": (None,), OLD_CUDA_BUILD: (0, 12), NEW_CUDA_BUILD: (0, 13)}
    if offered in fitting[build]:
        return [pin]
    arguments = _from_pytorch(pin, build)
    try:
        resolve_wheels(python, arguments)
    except TrainingProError as error:  # PyTorch's index is blocked: an unused CUDA is fine, an unused GPU is not
        if build != "cpu":
            raise TrainingProError(
                f"{error}\nThe torch build for this GPU is {arguments[0]}, from {arguments[-1]}. "
                f"To use the build from pip's default package index instead, add --torch {pin}."
            ) from error
        say(
            f"{arguments[-1]} can't be reached, or has no {arguments[0]} for this version of Python.\nUsing the "
            "build from pip's default package index instead. It includes CUDA, which this machine does not need."
        )
        return [pin]
    return arguments


def _build_for_this_machine() -> str:
    """`cpu` without an NVIDIA GPU, else the newest CUDA build for its driver and its compute capability."""
    program = shutil.which("nvidia-smi")
    overview = _output_of(program) if program else ""
    if not program or not overview:
        return "cpu"
    driver = _smallest_version(r"CUDA[^:|]*Version:\s*", overview)
    capability = _smallest_version("", _output_of(program, "--query-gpu=compute_cap", "--format=csv,noheader"))
    # CUDA 13 dropped GPUs before Turing (7.5), and CUDA 12.6 does not support Blackwell (10). (0, 0) is unknown.
    old_driver = (0, 0) < driver < (13, 0) and capability < (10, 0)
    old_card = (0, 0) < capability < (7, 5)
    return OLD_CUDA_BUILD if old_driver or old_card else NEW_CUDA_BUILD


def _output_of(*command: str) -> str:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # a hung driver
        return ""
    return process.stdout if process.returncode == 0 else ""


def _smallest_version(before: str, text: str) -> tuple[int, int]:
    """Smallest version such as `1.2` after the pattern `before`; (0, 0) if there is none."""
    versions = re.findall(before + r"(\d+)\.(\d+)", text)
    return min(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def _from_pytorch(pin: str, build: str) -> list[str]:
    """Arguments for a build of PyTorch; its name in the version excludes the registry's file of that version."""
    return [f"{pin}+{build}", "--extra-index-url", f"{PYTORCH_INDEX}/{build}"]
