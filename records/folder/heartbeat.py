"""The pulse of a run: how far it is, written now and then, so that after a crash it is known what was lost."""

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
    """How far it was, how long ago it was saved, and where it began: enough to throw it away."""

    step: int
    steps: int
    at: float
    unsaved_seconds: float
    began_at_step: int = 0


class Pulse:
    """Written at most every so many seconds; a disk that takes no more does not matter to it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._written = float("-inf")
        self._saved = time.monotonic()

    def saved(self) -> None:
        """From now on nothing is lost."""
        self._saved = time.monotonic()

    def beat(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if now - self._written < SECONDS:
            return
        self._written = now
        folder = self._folder
        beat = Beat(step, steps, time.time(), now - self._saved, folder.began_at)
        with suppress(OSError):
            write_json(folder.aside / FILE, asdict(beat))


def last_beat(folder: Path) -> Beat | None:
    try:
        return Beat(**json.loads((folder / PART / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
