"""Several processes that train together, as torchrun or accelerate starts them: told by the environment."""

from __future__ import annotations

import os


def count() -> int:
    """How many processes train together; 1 without a launcher."""
    return max(1, _number("WORLD_SIZE", 1))


def rank() -> int:
    """Which of them this one is; the first one is 0, and only it writes."""
    return _number("RANK", 0)


def local_rank() -> int:
    """Which of those on this machine this one is: its card."""
    return _number("LOCAL_RANK", 0)


def is_first() -> bool:
    return rank() == 0


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
