"""What the user asks of a run while it runs; the run looks at it between two steps."""

from __future__ import annotations

import threading


class RunControl:
    """Wishes go in from any page, and come out in the training thread, between two steps."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._checkpoint = threading.Event()

    def stop(self) -> None:
        """Stop after this step and keep what was learned."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def save_checkpoint(self) -> None:
        """Save a full checkpoint after this step."""
        self._checkpoint.set()

    @property
    def saving(self) -> bool:
        return self._checkpoint.is_set()

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for; asking twice before it is saved is one wish."""
        wanted = self._checkpoint.is_set()
        self._checkpoint.clear()
        return wanted
