"""Queue of runs."""

from __future__ import annotations

from .queue import Done, Queue, Waiting, name_problem
from .queue_runner import InLine

__all__ = ["Done", "InLine", "Queue", "Waiting", "name_problem"]
