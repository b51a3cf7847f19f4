"""The state of a run on a page, built from its events, so a page opened at any time shows the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...core.jobs import (
    Advice,
    CheckpointSaved,
    Ended,
    Evaluated,
    Event,
    Job,
    LiveChanged,
    MachineUse,
    Note,
    Pace,
    Planned,
    Progress,
    Replanned,
    RunControl,
    Sampled,
    Stage,
)
from ...records.report import AsideLoss, Mark, Point, aside_losses, points_of, svg
from ...settings import presets
from ...train_utils import duration, size
from ..base import markup, use
from . import samples_view
from .charts import MoreCurves
from .loss_trend import before, trend

LATEST = 6
WISHES: Mapping[Callable[[RunControl[Any]], object], str] = {
    lambda c: c.throwing_away: "stopping after this step, to be thrown away ...",
    lambda c: c.stopping: "stopping after this step ...",
    lambda c: c.freeing: "saving a checkpoint after this step, then freeing the card ...",
    lambda c: c.pausing: "after this step it waits until you go on",
    lambda c: c.winding_down: "winding down from this step on ...",
    lambda c: c.extending: "going on for longer after this step ...",
    lambda c: c.saving: "saving a checkpoint after this step ...",
    lambda c: c.evaluating: "going through what is kept aside after this step ...",
    lambda c: c.sampling: "answering the prompts after this step ...",
}
"""How the panel confirms each wish, the most important wish first."""
KEY = {
    "#2f74c0": "smoothed loss",
    "#7fa6d6": "loss",
    "#c98a10": "learning rate, as planned",
    "#2f9e5b": "checkpoint, change",
}
_MOODS = {"finished": "good", "stopped": "fair", "failed": "bad"}


class RunView:
    """Follows the log of one job from its first event."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.position = 0
        self._planned: Planned | None = None
        self._stage = ""
        self._points: list[Point] = []
        self._marks: list[Mark] = []
        self._messages: list[str] = []
        self._last: Progress | None = None
        self._last_checkpoint: CheckpointSaved | None = None
        self._end: Ended | None = None
        self._pace = Pace()
        self._extra_charts = MoreCurves()
        self._evaluations: list[Evaluated] = []
        self._earlier_validation: list[AsideLoss] = []
        self._samples: list[Sampled] = []
        self._machine: MachineUse | None = None

    def catch_up(self) -> None:
        """Process new events."""
        events = self.job.log.since(self.position)
        self.position += len(events)
        for event in events:
            self._handle(event)

    @property
    def running(self) -> bool:
        return self._end is None

    @property
    def step(self) -> int:
        """The last finished step."""
        return self._last.step if self._last else 0

    @property
    def planned(self) -> bool:
        """Whether the run plan, and so its settings, is known."""
        return self._planned is not None

    def html(self, *, following: str = "") -> str:
        """The run panel; `following` is the name of the run that starts automatically after this one."""
        if self._end is not None:
            return self._ended_html(self._end)
        share = self._pace.share if self._last else 0.0
        steps = self._last.steps if self._last else 0
        parts = [
            markup.bar(share),
            self._figures(),
            markup.paragraph(trend(self._points, steps), quiet=True),
            markup.paragraph(self._machine_line(), quiet=True),
            self._loss_curve(),
            self._messages_html(),
        ]
        after = f" \u00b7 next: {following}" if following else ""
        return markup.card(f"{self.job.title}: {self._status()}{after}", *parts, mood="live")

    def more_curves(self) -> str:
        """The charts of the folded part 'More curves'."""
        return self._extra_charts.html()

    def samples(self) -> str:
        """The table of sample answers."""
        return samples_view.html(self._samples)

    def _handle(self, event: Event) -> None:
        self._pace.hear(event)
        if isinstance(event, Progress):
            self._add_step(event)
        elif isinstance(event, Stage):
            self._stage = event.text + ("" if event.share is None else f" {event.share:.0%}")
        elif isinstance(event, Planned):
            self._planned = event
            self._points = points_of(event.earlier)
            self._earlier_validation = aside_losses(event.earlier)
        elif isinstance(event, CheckpointSaved):
            self._last_checkpoint = event
            self._marks.append(Mark(event.step, f"checkpoint {event.folder.name}"))
            self._messages.append(f"Checkpoint saved at step {event.step}: {event.folder.name}")
        elif isinstance(event, Evaluated):
            self._evaluations.append(event)
            self._extra_charts.add_evaluation(event)
        elif isinstance(event, Sampled):
            self._samples.append(event)
        elif isinstance(event, MachineUse):
            self._machine = event
        elif isinstance(event, Replanned):
            self._replan(event)
        elif isinstance(event, LiveChanged):
            self._messages += _live_changes(event)
        elif isinstance(event, (Note, Advice)):
            self._messages.append(event.text)
        elif isinstance(event, Ended):
            self._end = event

    def _replan(self, event: Replanned) -> None:
        """Update the planned learning rates, and mark the step of the change."""
        if self._planned is not None:
            self._planned = replace(self._planned, steps=event.steps, rates=event.rates)
        self._marks.append(Mark(event.step, event.why))
        self._messages.append(f"After step {event.step}: {event.why}; step {event.steps} is the last one now.")

    def _add_step(self, event: Progress) -> None:
        if event.phase and event.phase != (self._last.phase if self._last else ""):
            self._marks.append(Mark(event.step, event.phase))
        self._last = event
        self._extra_charts.add_step(event)
        self._points.append(Point(event.step, event.loss, event.smoothed, event.learning_rate, event.at))

    def _status(self) -> str:
        """The confirmation of a pending wish, or else the stage of the run."""
        control = self.job.control
        return next((words for wish, words in WISHES.items() if wish(control)), f"{self._stage} ...")

    def _figures(self) -> str:
        progress = self._last
        if progress is None:
            return markup.paragraph("No step is done yet.", quiet=True) if self._planned else ""
        return markup.figures(
            [
                ("step", f"{progress.step} / {progress.steps}"),
                ("epoch", f"{progress.epoch:.2f}"),
                (f"smoothed loss{self._hour_ago_note(progress)}", f"{progress.smoothed:.4f}"),
                ("loss", f"{progress.loss:.4f}"),
                *self._validation_figures(),
                ("learning rate", f"{progress.learning_rate:.3g}"),
                ("tokens a second", f"{self._pace.tokens_a_second:,.0f}"),
                *self._time_left(),
                ("last safe copy", self._last_safe_step()),
            ]
        )

    def _time_left(self) -> list[tuple[str, str]]:
        """The remaining time; empty if the run is stopping or paused."""
        left, control = self._pace.seconds_left, self.job.control
        if control.stopping or control.pausing:
            return []
        pace = f"left, {duration(self._pace.seconds_a_step)} a step"
        return [(pace, duration(round(left))), ("done about", markup.clock(left))]

    def _last_safe_step(self) -> str:
        """The step of the last checkpoint: a new one, or the one that the run resumed from."""
        resumed_from = self._planned.first_step if self._planned else 0
        step = self._last_checkpoint.step if self._last_checkpoint else resumed_from
        return f"step {step}" if step else "none yet"

    def _validation_figures(self) -> list[tuple[str, str]]:
        """The latest evaluation, and the best one if that is an earlier one."""
        if not self._evaluations:
            return []
        best, last = min(self._evaluations, key=lambda e: e.loss), self._evaluations[-1]
        earlier = f", best {best.loss:.4f} at step {best.step}" if best.step != last.step else ""
        return [(f"kept aside, step {last.step}{earlier}", f"{last.loss:.4f}")]

    def _machine_line(self) -> str:
        """How much of the machine the run uses."""
        words = self._machine.words if self._machine else ""
        return words[:1].upper() + words[1:]

    def _hour_ago_note(self, last: Progress) -> str:
        point = before(self._points, 3600, last.at)
        return f", an hour ago {point.smoothed:.3f}" if point else ""

    def in_short(self) -> str:
        """Progress and loss for the title of the browser; empty if no run is going on."""
        if not self.running or self._last is None:
            return ""
        return f"{self._pace.share:.0%}, loss {self._last.smoothed:.2f}"

    def _loss_curve(self) -> str:
        if self._planned is None:
            return ""
        validation = [*self._earlier_validation, *(AsideLoss(e.step, e.loss) for e in self._evaluations)]
        curve = svg(self._points, self._planned.rates, self._marks, validation)
        legend = {**KEY, "#8a3fb0": "loss on the part kept aside"} if validation else KEY
        return f'{curve}<p class="tp-quiet tp-key">{markup.legend(legend.items())}</p>'

    def _messages_html(self) -> str:
        return markup.listed(map(markup.begun, self._messages[-LATEST:]), quiet=True)

    def _ended_html(self, end: Ended) -> str:
        title = f"{self.job.title}: {end.outcome}"
        parts = [
            *(markup.paragraph(line) for line in end.text.splitlines()),
            markup.listed(use(remedy.words, remedy.values) for remedy in end.remedies),
            markup.folded("Details", end.details),
        ]
        if self._last is not None:
            parts += [self._summary(self._last), self._loss_curve(), self._messages_html()]
        return markup.card(title, *parts, mood=_MOODS[end.outcome])

    def _summary(self, last: Progress) -> str:
        first = self._points[0].smoothed if self._points else last.smoothed
        return markup.figures(
            [
                ("steps", f"{last.step} of {last.steps}"),
                ("smoothed loss, first and last", f"{first:.3f} → {last.smoothed:.3f}"),
                ("a step", duration(self._pace.seconds_a_step)),
                ("tokens a second", f"{self._pace.tokens_a_second:,.0f}"),
                *([("memory at most", size(self._machine.peak))] if self._machine else []),
            ]
        )


def _live_changes(event: LiveChanged) -> list[str]:
    """The changed live settings as a message; a new learning rate is reported by the Replanned event."""
    before = {key: old for key, (old, _) in event.changes.items()}
    changes = presets.changes(before, {key: new for key, (_, new) in event.changes.items()})
    return [f"From after step {event.step} on: {'; '.join(changes)}."] if changes else []
