"""How far a run is and how long it will take, from the events of its log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from ...train_utils import duration
from .event_words import event_text
from .events import (
    DownloadProgress,
    EvaluationDone,
    Event,
    ExamAsked,
    RecallMeasured,
    RequestsChanged,
    RunPlanned,
    SampleGenerated,
    Stage,
    StageKind,
    Step,
)
from .job import Request

RECENT_STEPS = 20
REPORT_SECONDS = 1.0
SPEED_SECONDS = 10.0  # the speed of a download is measured over this time


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
        self._steps, self._between_steps, self._planned_since_step = 0, 0.0, 0.0
        self._last_event_at = 0.0
        self._evaluations, self._recalls, self._samples = _Recurring(), _Recurring(), _Recurring()

    def update(self, event: Event) -> None:
        """Take in an event; most kinds are ignored."""
        if isinstance(event, Step):
            self._recent.append(event)
            self._steps += 1
            self._between_steps += max(0.0, event.extra_time - self._planned_since_step)
            self._planned_since_step = 0.0
        elif isinstance(event, RunPlanned):
            self._evaluations.every, self._samples.every = event.evaluate_every, event.answer_every
            self._recalls.every = event.recall_every
            for earlier in event.earlier:  # a run that resumes does not measure at its start
                self._note_measurement(earlier)
        elif isinstance(event, (EvaluationDone, RecallMeasured)):
            self._note_measurement(event)
            self._planned_since_step += event.seconds  # it is planned, so it is no time between steps
        elif isinstance(event, ExamAsked):
            self._planned_since_step += event.seconds
        elif isinstance(event, SampleGenerated):
            seconds = event.at - self._last_event_at  # no event of a sample says how long it took
            self._samples.note_duration(event.step, seconds)
            self._planned_since_step += seconds
        self._last_event_at = event.at

    def _note_measurement(self, event: Event) -> None:
        if isinstance(event, (EvaluationDone, RecallMeasured)):
            recurring = self._evaluations if isinstance(event, EvaluationDone) else self._recalls
            recurring.note_duration(event.step, event.seconds)

    @property
    def seconds_per_step(self) -> float:
        return median(p.seconds for p in self._recent)

    @property
    def tokens_per_second(self) -> float:
        return sum(p.tokens for p in self._recent) / max(1e-9, sum(p.seconds for p in self._recent))

    @property
    def seconds_left(self) -> float:
        """Seconds for the remaining steps, the time between them, and the planned measurements and samples."""
        # The time between steps is a mean over the whole run: the last few steps may be without a checkpoint.
        last = self._recent[-1]
        per_step = self.seconds_per_step + self._between_steps / self._steps
        recurring = (self._evaluations, self._recalls, self._samples)
        planned = sum(each.seconds_left(last.step, last.steps) for each in recurring)
        return max(0.0, (last.steps - last.step) * per_step + planned)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run at a time; figures of its last step are None before the first one."""

    at: float = 0.0
    model: str = ""
    stage: str = ""
    step: int = 0
    steps: int = 0
    epoch: float = 0.0
    loss: float | None = None
    smoothed_loss: float | None = None
    seconds_left: float | None = None
    paused: bool = False


def progress_of(events: Iterable[Event]) -> RunProgress:
    """The progress of a run by its events."""
    eta, progress = EtaEstimator(), RunProgress()
    for event in events:
        eta.update(event)
        progress = replace(progress, at=event.at)
        if isinstance(event, RunPlanned):
            progress = replace(progress, model=event.model, steps=event.steps)
        elif isinstance(event, Stage):
            # Also ends a pause in which the run crashed.
            progress = replace(progress, stage=event_text(event), paused=event.kind is StageKind.PAUSED)
        elif isinstance(event, Step):
            progress = replace(progress, step=event.step, steps=event.steps, epoch=event.epoch)
            progress = replace(progress, loss=event.loss, smoothed_loss=event.smoothed)
        elif isinstance(event, RequestsChanged):
            progress = replace(progress, paused=Request.PAUSE.name in event.pending)
    return replace(progress, seconds_left=eta.seconds_left) if progress.step else progress


def progress_text(progress: RunProgress) -> str:
    """'step 12 of 80, epoch 0.15, smoothed loss 2.31, 4 min left', or its stage before the first step."""
    if not progress.step:
        return progress.stage or "starting"
    parts = [f"step {progress.step} of {progress.steps}", f"epoch {progress.epoch:.2f}"]
    if progress.smoothed_loss is not None:
        parts.append(f"smoothed loss {progress.smoothed_loss:.4f}")
    if progress.paused:
        parts.append("paused")
    elif progress.seconds_left is not None:
        parts.append(f"{duration(round(progress.seconds_left))} left")
    return ", ".join(parts)


class DownloadMeter:
    """Reports the progress of a download, at most once per second and when everything is there."""

    def __init__(self, total: int, emit: Callable[[Event], object], done: int) -> None:
        self.total, self.done = total, done
        self._emit = emit
        self._recent: deque[tuple[float, int]] = deque()
        self._reported_at, self._reported = float("-inf"), -1

    def add(self, count: int) -> None:
        """Count bytes that have arrived."""
        self.done += count
        self.report()

    def report(self) -> None:
        now = time.monotonic()
        is_early = now - self._reported_at < REPORT_SECONDS and self.done < self.total
        if self.done == self._reported or is_early:
            return
        self._reported_at, self._reported = now, self.done
        self._recent.append((now, self.done))
        while now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()
        first_time, first_done = self._recent[0]
        speed = (self.done - first_done) / (now - first_time) if now > first_time else 0.0
        self._emit(DownloadProgress(done=self.done, total=self.total, speed=speed))
