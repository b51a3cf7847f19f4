"""What the user asks of a run while it runs; the run looks at it between two steps."""

from __future__ import annotations

import threading


class RunControl:
    """Wishes go in from any page, and come out in the training thread, between two steps."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._throw_away = threading.Event()
        self._checkpoint = threading.Event()
        self._sample = threading.Event()
        self._evaluate = threading.Event()
        self._moving = threading.Event()
        self._moving.set()

    def stop(self) -> None:
        """Stop after this step and keep what was learned."""
        self._stop.set()
        self._moving.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def throw_away(self) -> None:
        """Stop after this step and leave what stood there before the run."""
        self._throw_away.set()
        self.stop()

    @property
    def throwing_away(self) -> bool:
        return self._throw_away.is_set()

    def pause(self) -> None:
        """Wait after this step; the memory stays in use."""
        self._moving.clear()

    def go_on(self) -> None:
        self._moving.set()

    @property
    def pausing(self) -> bool:
        return not self._moving.is_set()

    def wait_while_pausing(self) -> None:
        """Come back when the run may go on: in the training thread."""
        self._moving.wait()

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

    def sample(self) -> None:
        """Answer the prompts of the run after this step."""
        self._sample.set()

    @property
    def sampling(self) -> bool:
        return self._sample.is_set()

    def take_sample(self) -> bool:
        """Whether answers were asked for; asking twice before they are given is one wish."""
        wanted = self._sample.is_set()
        self._sample.clear()
        return wanted

    def evaluate(self) -> None:
        """Go through the part kept aside after this step."""
        self._evaluate.set()

    @property
    def evaluating(self) -> bool:
        return self._evaluate.is_set()

    def take_evaluation(self) -> bool:
        """Whether an evaluation was asked for; asking twice before it is done is one wish."""
        wanted = self._evaluate.is_set()
        self._evaluate.clear()
        return wanted
