"""Which of a run's several processes this is: one of them keeps the records."""

from __future__ import annotations

import os


def is_first() -> bool:
    """True as well where there is only one."""
    return int(os.environ.get("RANK") or 0) == 0
