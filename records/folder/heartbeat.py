"""Heartbeat of a run: its progress, written at intervals, which shows after a crash how much was lost."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.files import PART_SUFFIX, Count, Timestamp, read_record, write_json
from .run_folder import RunFolder

HEARTBEAT_FILE = "pulse.json"
INTERVAL_SECONDS = 15.0


@dataclass(frozen=True)
class HeartbeatState:
    """Progress of a run, and the time since its last checkpoint."""

    step: Count
    steps: Count
    at: Timestamp
    unsaved_seconds: float


class Heartbeat:
    """Writes the heartbeat of a run, at most once per interval; errors of the disk are ignored."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._written_at = float("-inf")
        self._saved_at = time.monotonic()

    def record_checkpoint(self) -> None:
        """Reset the time since the last checkpoint."""
        self._saved_at = time.monotonic()

    def record_step(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if now - self._written_at < INTERVAL_SECONDS:
            return
        self._written_at = now
        folder = self._folder
        beat = HeartbeatState(step, steps, time.time(), now - self._saved_at)
        with suppress(OSError):
            write_json(folder.partial_folder / HEARTBEAT_FILE, asdict(beat))


def read_heartbeat(folder: Path) -> HeartbeatState | None:
    path = folder / PART_SUFFIX / HEARTBEAT_FILE
    return read_record(path, HeartbeatState, None)
