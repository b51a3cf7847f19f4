"""Which build of torch an environment gets: the registry's own where it fits this machine, else PyTorch's.

The registry has CUDA builds for Linux and CPU builds for the other systems. So a Linux machine
without a card would load some gigabytes of CUDA for nothing, and a card in a Windows machine would
lie idle. What the registry has is asked, not assumed: a mirror may hold something else.
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
from .pip import Wheel, say, would_install

PYTORCH_INDEX = "https://download.pytorch.org/whl"
NEW_CUDA, OLD_CUDA = "cu130", "cu126"  # torch 2.13 is built for both
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")


@dataclass(frozen=True)
class Card:
    """What decides which CUDA runs: the newest that the driver bears, and the oldest card's abilities."""

    driver: tuple[int, int]
    capability: tuple[int, int]

    @property
    def build(self) -> str:
        """CUDA 13 has left everything before Turing (7.5) behind; Blackwell (10) never ran on 12.6."""
        old_driver = (0, 0) < self.driver < (13, 0) and self.capability < (10, 0)
        old_card = (0, 0) < self.capability < (7, 5)
        return OLD_CUDA if old_driver or old_card else NEW_CUDA


def torch_arguments(python: Path, pin: str, spec: str | None) -> list[str]:
    """What pip is to be given for torch; `spec` is the user's own wish (`--torch`)."""
    if spec:
        return _wished(pin, spec)
    wheels = would_install(python, [pin])
    if not any(wheel.name == "torch" for wheel in wheels):
        return [pin]  # it is in the environment already
    card = find_card()
    fitting = _fitting(pin, cuda_of(wheels), card)
    return fitting if fitting == [pin] else _reachable(python, pin, fitting, card)


def find_card() -> Card | None:
    """The NVIDIA cards of this machine, as far as `nvidia-smi` answers."""
    if not (program := shutil.which("nvidia-smi")):
        return None
    overview = _answer([program])
    if not overview:
        return None
    abilities = _answer([program, "--query-gpu=compute_cap", "--format=csv,noheader"])
    return Card(driver=_version(r"CUDA[^:|]*Version:\s*", overview), capability=_version("", abilities))


def cuda_of(wheels: Sequence[Wheel]) -> int | None:
    """The CUDA that comes along (12, 13, 0 where it does not say), or None for a build without."""
    cuda = [wheel for wheel in wheels if wheel.name.lower().startswith(CUDA_PACKAGES)]
    if not cuda:
        return None
    runtimes = [wheel for wheel in cuda if wheel.name.lower().startswith(CUDA_RUNTIMES)]
    return int(runtimes[0].version.split(".")[0]) if runtimes else 0


def _fitting(pin: str, cuda: int | None, card: Card | None) -> list[str]:
    if card is None:
        return [pin] if cuda is None else _from_pytorch(pin, "cpu")
    wanted = 12 if card.build == OLD_CUDA else 13
    return [pin] if cuda in (0, wanted) else _from_pytorch(pin, card.build)


def _reachable(python: Path, pin: str, fitting: list[str], card: Card | None) -> list[str]:
    """Without PyTorch's index, CUDA for nothing still trains; a card that lies idle is no way to train."""
    try:
        would_install(python, fitting)
    except TrainingProError as error:
        if card is not None:
            raise TrainingProError(
                f"{error}\nThe build of torch for this card is {fitting[0]}, from {fitting[-1]}. "
                f"--torch {pin} takes what the registry has instead."
            ) from error
        say(f"{fitting[-1]} has no {fitting[0]} for this Python, or cannot be reached:")
        say("the registry's build is taken. It brings CUDA along, which is large and stays unused.")
        return [pin]
    return fitting


def _from_pytorch(pin: str, build: str) -> list[str]:
    """The build's name in the version keeps pip from taking the registry's file of the same number."""
    return [f"{pin}+{build}", "--extra-index-url", f"{PYTORCH_INDEX}/{build}"]


def _wished(pin: str, spec: str) -> list[str]:
    first, *rest = shlex.split(spec, posix=os.name != "nt") or [""]
    if re.fullmatch(r"\d[\w.+]*", first):
        return [f"torch=={first}", *rest]
    if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", first):
        return _from_pytorch(pin, first) + rest
    if re.match(r"torch\b", first) or "://" in first or Path(first).is_file():
        return [first, *rest]
    raise TrainingProError(
        f"--torch {spec!r}: give a version (2.12.0), a build of PyTorch's (cpu, cu126, rocm6.4), "
        "or what pip takes (a wheel's path or address, or 'torch==2.12.0 --index-url ADDRESS')."
    )


def _answer(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version(before: str, text: str) -> tuple[int, int]:
    """The smallest `1.2` that stands behind `before`; (0, 0) where there is none."""
    found = re.findall(before + r"(\d+)\.(\d+)", text)
    return min(((int(major), int(minor)) for major, minor in found), default=(0, 0))
