"""Queue of runs."""

from __future__ import annotations

from .queue import EndedRun, Queue, QueuedRun
from .queue_runner import QueueRunner

__all__ = ["EndedRun", "Queue", "QueueRunner", "QueuedRun"]
