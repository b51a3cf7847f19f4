"""Control of a run while it runs: wishes of the user, read by the training thread between two steps."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

Live = TypeVar("Live")


@dataclass(frozen=True)
class TimeLimit:
    """Time limit of a run, counted from its first step; `why` is the reason shown at its end."""

    seconds: float
    why: str


class Wish:
    """A request that is carried out once; asking twice before that counts as one."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ask(self) -> None:
        self._event.set()

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def take(self) -> bool:
        """Return whether it was asked for, and clear it."""
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


class RunControl(Generic[Live]):
    """Wishes for a run: set from any page, taken in the training thread between two steps.

    `Live` is the frozen dataclass of the live settings, always replaced as a whole.
    """

    def __init__(self) -> None:
        self._stop = Wish()
        self._discard = Wish()
        self._checkpoint = Wish()
        self._sample = Wish()
        self._evaluate = Wish()
        self._wind_down = Wish()
        self._free = Wish()
        self._more_epochs = 0.0
        self._live: Live | None = None
        self._limit: TimeLimit | None = None
        self._paused = False
        self._lock = threading.Lock()
        self._resumed = threading.Event()
        self._resumed.set()

    def stop(self) -> None:
        """Stop after this step and save the LoRA."""
        self._stop.ask()
        self._set_paused(False, resume=True)

    @property
    def stopping(self) -> bool:
        return self._stop.asked

    def throw_away(self) -> None:
        """Stop after this step, discard the LoRA and keep what was there before the run."""
        self._discard.ask()
        self.stop()

    @property
    def throwing_away(self) -> bool:
        return self._discard.asked

    def limit_time(self, limit: TimeLimit) -> None:
        """End the run after a time; its LoRA is saved, and the run counts as finished."""
        self._limit = limit

    @property
    def time_limit(self) -> TimeLimit | None:
        return self._limit

    def pause(self) -> None:
        """Pause after this step; the model stays in memory."""
        self._set_paused(True, resume=False)

    def pause_and_free(self) -> None:
        """Pause after this step: save a checkpoint and unload the model."""
        self._free.ask()
        self._set_paused(True, resume=True)  # wakes a paused run, which has to free its memory first

    @property
    def freeing(self) -> bool:
        return self._free.asked

    def take_free(self) -> bool:
        """Return whether the memory is to be freed, and clear the wish; the run stays paused."""
        with self._lock:
            if self._paused:
                self._resumed.clear()
            return self._free.take()

    def go_on(self) -> None:
        self._free.take()
        self._set_paused(False, resume=True)

    @property
    def pausing(self) -> bool:
        return self._paused

    def wait_while_pausing(self) -> None:
        """Block the training thread until the run may continue or has to free its memory."""
        self._resumed.wait()

    def _set_paused(self, paused: bool, *, resume: bool) -> None:
        with self._lock:
            self._paused = paused
            self._resumed.set() if resume else self._resumed.clear()

    def save_checkpoint(self) -> None:
        """Save a full checkpoint after this step."""
        self._checkpoint.ask()

    @property
    def saving(self) -> bool:
        return self._checkpoint.asked

    def take_checkpoint(self) -> bool:
        return self._checkpoint.take()

    def sample(self) -> None:
        """Answer the sample prompts after this step."""
        self._sample.ask()

    @property
    def sampling(self) -> bool:
        return self._sample.asked

    def take_sample(self) -> bool:
        return self._sample.take()

    def evaluate(self) -> None:
        """Evaluate on the validation split after this step."""
        self._evaluate.ask()

    @property
    def evaluating(self) -> bool:
        return self._evaluate.asked

    def take_evaluation(self) -> bool:
        return self._evaluate.take()

    def wind_down(self) -> None:
        """Let the learning rate fall to 0 in a few steps, then finish."""
        self._wind_down.ask()

    @property
    def winding_down(self) -> bool:
        return self._wind_down.asked

    def take_wind_down(self) -> bool:
        return self._wind_down.take()

    def extend(self, epochs: float) -> None:
        """Train more epochs; several calls add up."""
        with self._lock:
            self._more_epochs += epochs

    @property
    def extending(self) -> float:
        return self._more_epochs

    def take_epochs(self) -> float:
        """Return the requested extra epochs, 0 for none, and clear them."""
        with self._lock:
            epochs, self._more_epochs = self._more_epochs, 0.0
            return epochs

    @property
    def live(self) -> Live | None:
        """The live settings last asked for; None before the run has set its own."""
        return self._live

    def change(self, live: Live) -> None:
        """Use these live settings from the end of this step on."""
        with self._lock:
            self._live = live

    def begin(self, live: Live) -> None:
        """Set the live settings of the run, unless others were already asked for."""
        with self._lock:
            self._live = live if self._live is None else self._live
