"""Heartbeat of a run: its progress, written at intervals, which shows after a crash how much was lost."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.files import write_json
from .filenames import PART
from .run_folder import RunFolder

FILE = "pulse.json"
SECONDS = 15.0


@dataclass(frozen=True)
class Beat:
    """Progress of a run, the time since its last checkpoint, and the step at which it began."""

    step: int
    steps: int
    at: float
    unsaved_seconds: float
    began_at_step: int = 0


class Pulse:
    """Writes the heartbeat of a run, at most once per interval; errors of the disk are ignored."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._written_at = float("-inf")
        self._saved_at = time.monotonic()

    def saved(self) -> None:
        """Reset the time since the last checkpoint."""
        self._saved_at = time.monotonic()

    def beat(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if now - self._written_at < SECONDS:
            return
        self._written_at = now
        folder = self._folder
        beat = Beat(step, steps, time.time(), now - self._saved_at, folder.began_at)
        with suppress(OSError):
            write_json(folder.aside / FILE, asdict(beat))


def last_beat(folder: Path) -> Beat | None:
    try:
        return Beat(**json.loads((folder / PART / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
