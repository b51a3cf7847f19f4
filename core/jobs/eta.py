"""How fast a run goes, and how long it still takes, by what its log tells."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from .events import Evaluated, Event, Planned, Progress, Sampled, TimeLimited

RECENT_STEPS = 20


class _Recurring:
    """What is due before the first step, after every so many and at the end: how long it took last, and when."""

    def __init__(self) -> None:
        self.every, self._seconds, self._done = 0, 0.0, -1

    def took(self, step: int, seconds: float) -> None:
        """Several things after one step are one."""
        self._seconds = seconds + (self._seconds if step == self._done else 0.0)
        self._done = step

    def left(self, step: int, steps: int) -> float:
        """Seconds for what is still due after this step or later."""
        if not self.every:
            return 0.0
        first = max(step, self._done + 1)
        at_the_end = 1 if steps % self.every and steps >= first else 0
        return self._seconds * (max(0, steps // self.every - (first - 1) // self.every) + at_the_end)


class Pace:
    """By the median of the last steps: one slow step changes nothing."""

    def __init__(self) -> None:
        self._recent: deque[Progress] = deque(maxlen=RECENT_STEPS)
        self._begun: float | None = None
        self._steps, self._beside, self._counted = 0, 0.0, 0.0
        self._most, self._heard = math.inf, 0.0
        self._evaluations, self._answers = _Recurring(), _Recurring()

    def hear(self, event: Event) -> None:
        """Whatever the log tells; most of it is of no matter here."""
        if isinstance(event, Progress):
            self._add(event)
        elif isinstance(event, Planned):
            self._evaluations.every, self._answers.every = event.evaluate_every, event.answer_every
        elif isinstance(event, TimeLimited):
            self._most = event.seconds
        elif isinstance(event, Evaluated):
            self._count(self._evaluations, event.step, event.seconds)
        elif isinstance(event, Sampled):
            self._count(self._answers, event.step, event.at - self._heard)
        self._heard = event.at

    @property
    def seconds_a_step(self) -> float:
        return median(p.seconds for p in self._recent)

    @property
    def tokens_a_second(self) -> float:
        return sum(p.tokens for p in self._recent) / max(1e-9, sum(p.seconds for p in self._recent))

    @property
    def seconds_left(self) -> float:
        """The steps, what comes between them now and then, and what is planned to come between them or behind."""
        last = self._recent[-1]
        by_steps = (last.steps - last.step) * (self.seconds_a_step + self._beside / self._steps)
        planned = sum(kind.left(last.step, last.steps) for kind in (self._evaluations, self._answers))
        return max(0.0, min(by_steps + planned, self._most - self._gone))

    @property
    def share(self) -> float:
        """How much of the run is done: of its steps, or of its time where that ends first."""
        last = self._recent[-1]
        return max(last.step / last.steps, self._gone / self._most if self._most else 1.0)

    @property
    def _gone(self) -> float:
        """Seconds from the first step to the last one that is done."""
        return self._recent[-1].at - (self._begun or 0.0)

    def _add(self, progress: Progress) -> None:
        self._recent.append(progress)
        self._steps, self._beside = self._steps + 1, self._beside + max(0.0, progress.beside - self._counted)
        self._counted = 0.0
        self._begun = progress.at if self._begun is None else self._begun

    def _count(self, kind: _Recurring, step: int, seconds: float) -> None:
        """Until the next step: what is counted by its plan is not counted among the rest."""
        kind.took(step, seconds)
        self._counted += seconds
