"""Speed of a run and its remaining time, from the events of its log."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from .events import EvaluationDone, Event, RunPlanned, SampleGenerated, Step, TimeLimited
from .recall_event import RecallMeasured

RECENT_STEPS = 20


class _Recurring:
    """Duration of measurements or samples: due before the first step, every `every` steps and at the end."""

    def __init__(self) -> None:
        self.every, self._last_step = 0, -1
        self._seconds, self._before = list[float](), list[float]()  # of the last round, and of the one before it

    def note_duration(self, step: int, seconds: float) -> None:
        """Note a duration; those after the same step are one round."""
        if step != self._last_step:
            self._before, self._seconds, self._last_step = self._seconds, [], step
        self._seconds.append(seconds)

    def seconds_left(self, step: int, steps: int) -> float:
        """Seconds for everything due after this step or later."""
        if not self.every:
            return 0.0
        # The rest of a round that is in progress takes as long as in the round before.
        rest = self._before[len(self._seconds) :] if step == self._last_step else []
        first_due = max(step, self._last_step + 1)
        at_the_end = 1 if steps % self.every and steps >= first_due else 0
        rounds = max(0, steps // self.every - (first_due - 1) // self.every) + at_the_end
        return sum(rest) + rounds * (sum(self._seconds) + sum(rest))


class EtaEstimator:
    """Estimates from the median of the last steps, so that one slow step changes nothing."""

    def __init__(self) -> None:
        self._recent: deque[Step] = deque(maxlen=RECENT_STEPS)
        self._started_at: float | None = None
        self._steps, self._between_steps, self._planned_since_step = 0, 0.0, 0.0
        self._limit_seconds, self._last_event_at = math.inf, 0.0
        self._evaluations, self._recalls, self._samples = _Recurring(), _Recurring(), _Recurring()

    def update(self, event: Event) -> None:
        """Take in an event; most kinds are ignored."""
        if isinstance(event, Step):
            self._add_step(event)
        elif isinstance(event, RunPlanned):
            self._evaluations.every, self._samples.every = event.evaluate_every, event.answer_every
            self._recalls.every = event.recall_every
        elif isinstance(event, TimeLimited):
            self._limit_seconds = event.seconds
        elif isinstance(event, EvaluationDone):
            self._add_planned(self._evaluations, event.step, event.seconds)
        elif isinstance(event, RecallMeasured):
            self._add_planned(self._recalls, event.step, event.seconds)
        elif isinstance(event, SampleGenerated):
            self._add_planned(self._samples, event.step, event.at - self._last_event_at)
        self._last_event_at = event.at

    @property
    def seconds_per_step(self) -> float:
        return median(p.seconds for p in self._recent)

    @property
    def tokens_per_second(self) -> float:
        return sum(p.tokens for p in self._recent) / max(1e-9, sum(p.seconds for p in self._recent))

    @property
    def seconds_left(self) -> float:
        """Seconds for the remaining steps, the time between them, and the planned measurements and samples."""
        last = self._recent[-1]
        for_steps = (last.steps - last.step) * (self.seconds_per_step + self._between_steps / self._steps)
        recurring = (self._evaluations, self._recalls, self._samples)
        planned = sum(each.seconds_left(last.step, last.steps) for each in recurring)
        return max(0.0, min(for_steps + planned, self._limit_seconds - self._elapsed))

    @property
    def share(self) -> float:
        """Finished share of the run: of its steps or of its time limit, whichever ends first."""
        last = self._recent[-1]
        return max(last.step / last.steps, self._elapsed / self._limit_seconds if self._limit_seconds else 1.0)

    @property
    def _elapsed(self) -> float:
        """Seconds from the first step to the latest one."""
        return self._recent[-1].at - (self._started_at or 0.0)

    def _add_step(self, step: Step) -> None:
        self._recent.append(step)
        self._steps += 1
        self._between_steps += max(0.0, step.extra_time - self._planned_since_step)
        self._planned_since_step = 0.0
        self._started_at = step.at if self._started_at is None else self._started_at

    def _add_planned(self, recurring: _Recurring, step: int, seconds: float) -> None:
        """Note an evaluation or sample; its time is planned, so it does not count as time between steps."""
        recurring.note_duration(step, seconds)
        self._planned_since_step += seconds
