"""What the user asks of a run while it runs; the run looks at it between two steps."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

Live = TypeVar("Live")


@dataclass(frozen=True)
class TimeLimit:
    """How long a run may go on after its first step; `why` says of its end what a rule's words would say."""

    seconds: float
    why: str


class Wish:
    """Something to be done once: asking twice before it is done is one wish."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def take(self) -> bool:
        """Whether it was asked for; from now on it is not."""
        asked = self._asked.is_set()
        self._asked.clear()
        return asked


class RunControl(Generic[Live]):
    """Wishes go in from any page, and come out in the training thread, between two steps.

    `Live` are the settings that may change while a run goes on: one frozen whole, swapped as a whole.
    """

    def __init__(self) -> None:
        self._stop = Wish()
        self._throw_away = Wish()
        self._checkpoint = Wish()
        self._sample = Wish()
        self._evaluate = Wish()
        self._wind_down = Wish()
        self._free = Wish()
        self._more_epochs = 0.0
        self._live: Live | None = None
        self._limit: TimeLimit | None = None
        self._paused = False
        self._changing = threading.Lock()
        self._awake = threading.Event()
        self._awake.set()

    def stop(self) -> None:
        """Stop after this step and keep what was learned."""
        self._stop.ask()
        self._move(False, awake=True)

    @property
    def stopping(self) -> bool:
        return self._stop.asked

    def throw_away(self) -> None:
        """Stop after this step and leave what stood there before the run."""
        self._throw_away.ask()
        self.stop()

    @property
    def throwing_away(self) -> bool:
        return self._throw_away.asked

    def limit_time(self, limit: TimeLimit) -> None:
        """End by itself after so long, as by a rule: what was learned is kept, and the run is finished."""
        self._limit = limit

    @property
    def time_limit(self) -> TimeLimit | None:
        return self._limit

    def pause(self) -> None:
        """Wait after this step; the memory stays in use."""
        self._move(True, awake=False)

    def pause_and_free(self) -> None:
        """Wait after this step, with a checkpoint on disk and the model out of memory."""
        self._free.ask()
        self._move(True, awake=True)  # a run that waits already has to free its memory first

    @property
    def freeing(self) -> bool:
        return self._free.asked

    def take_free(self) -> bool:
        """Whether the memory is to be freed; the pause itself goes on."""
        with self._changing:
            if self._paused:
                self._awake.clear()
            return self._free.take()

    def go_on(self) -> None:
        self._free.take()
        self._move(False, awake=True)

    @property
    def pausing(self) -> bool:
        return self._paused

    def wait_while_pausing(self) -> None:
        """Come back when the run may go on, or has to free its memory: in the training thread."""
        self._awake.wait()

    def _move(self, paused: bool, *, awake: bool) -> None:
        with self._changing:
            self._paused = paused
            self._awake.set() if awake else self._awake.clear()

    def save_checkpoint(self) -> None:
        """Save a full checkpoint after this step."""
        self._checkpoint.ask()

    @property
    def saving(self) -> bool:
        return self._checkpoint.asked

    def take_checkpoint(self) -> bool:
        return self._checkpoint.take()

    def sample(self) -> None:
        """Answer the prompts of the run after this step."""
        self._sample.ask()

    @property
    def sampling(self) -> bool:
        return self._sample.asked

    def take_sample(self) -> bool:
        return self._sample.take()

    def evaluate(self) -> None:
        """Go through the part kept aside after this step."""
        self._evaluate.ask()

    @property
    def evaluating(self) -> bool:
        return self._evaluate.asked

    def take_evaluation(self) -> bool:
        return self._evaluate.take()

    def wind_down(self) -> None:
        """Let the learning rate fall to 0 in a few steps, and finish."""
        self._wind_down.ask()

    @property
    def winding_down(self) -> bool:
        return self._wind_down.asked

    def take_wind_down(self) -> bool:
        return self._wind_down.take()

    def extend(self, epochs: float) -> None:
        """So many epochs more; asked twice it is the sum."""
        with self._changing:
            self._more_epochs += epochs

    @property
    def extending(self) -> float:
        return self._more_epochs

    def take_epochs(self) -> float:
        """The epochs that were asked for beyond the plan, 0 for none; from now on there are none."""
        with self._changing:
            more, self._more_epochs = self._more_epochs, 0.0
            return more

    @property
    def live(self) -> Live | None:
        """The live settings as they were last asked for; None until the run has begun with its own."""
        return self._live

    def change(self, live: Live) -> None:
        """From the end of this step on, go by these."""
        with self._changing:
            self._live = live

    def begin(self, live: Live) -> None:
        """The run's own live settings, where nobody has asked for others yet."""
        with self._changing:
            self._live = live if self._live is None else self._live
