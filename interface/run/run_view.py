"""A run as a page shows it: built up event by event, so that a page opened at any time sees the whole of it."""

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
"""What can be wished for, and how the panel says that it is heard."""
KEY = {
    "#2f74c0": "smoothed loss",
    "#7fa6d6": "loss",
    "#c98a10": "learning rate, as planned",
    "#2f9e5b": "checkpoint, change",
}
_MOODS = {"finished": "good", "stopped": "fair", "failed": "bad"}


class RunView:
    """Follows one job's log from its first event."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.position = 0
        self._planned: Planned | None = None
        self._stage = ""
        self._points: list[Point] = []
        self._marks: list[Mark] = []
        self._messages: list[str] = []
        self._last: Progress | None = None
        self._saved: CheckpointSaved | None = None
        self._ended: Ended | None = None
        self._pace = Pace()
        self._curves = MoreCurves()
        self._evaluated: list[Evaluated] = []
        self._earlier: list[AsideLoss] = []
        self._sampled: list[Sampled] = []
        self._machine: MachineUse | None = None

    def catch_up(self) -> None:
        """Take in what is new."""
        fresh = self.job.log.since(self.position)
        self.position += len(fresh)
        for event in fresh:
            self._take(event)

    @property
    def running(self) -> bool:
        return self._ended is None

    @property
    def step(self) -> int:
        """The last one that is done."""
        return self._last.step if self._last else 0

    @property
    def planned(self) -> bool:
        """Whether its settings are known."""
        return self._planned is not None

    def html(self, *, following: str = "") -> str:
        """The run panel; `following` is the run that begins by itself after this one."""
        if self._ended is not None:
            return self._ended_html(self._ended)
        share = self._pace.share if self._last else 0.0
        steps = self._last.steps if self._last else 0
        parts = [
            markup.bar(share),
            self._glance(),
            markup.paragraph(trend(self._points, steps), quiet=True),
            markup.paragraph(self._taken(), quiet=True),
            self._curve(),
            self._told(),
        ]
        after = f" \u00b7 next: {following}" if following else ""
        return markup.card(f"{self.job.title}: {self._state()}{after}", *parts, mood="live")

    def more_curves(self) -> str:
        """What stands under 'More curves'."""
        return self._curves.html()

    def samples(self) -> str:
        """What the model answered so far."""
        return samples_view.html(self._sampled)

    def _take(self, event: Event) -> None:
        self._pace.hear(event)
        if isinstance(event, Progress):
            self._step(event)
        elif isinstance(event, Stage):
            self._stage = event.text + ("" if event.share is None else f" {event.share:.0%}")
        elif isinstance(event, Planned):
            self._planned = event
            self._points = points_of(event.earlier)
            self._earlier = aside_losses(event.earlier)
        elif isinstance(event, CheckpointSaved):
            self._saved = event
            self._marks.append(Mark(event.step, f"checkpoint {event.folder.name}"))
            self._messages.append(f"Checkpoint saved at step {event.step}: {event.folder.name}")
        elif isinstance(event, Evaluated):
            self._evaluated.append(event)
            self._curves.evaluated(event)
        elif isinstance(event, Sampled):
            self._sampled.append(event)
        elif isinstance(event, MachineUse):
            self._machine = event
        elif isinstance(event, Replanned):
            self._replan(event)
        elif isinstance(event, LiveChanged):
            self._messages += _live(event)
        elif isinstance(event, (Note, Advice)):
            self._messages.append(event.text)
        elif isinstance(event, Ended):
            self._ended = event

    def _replan(self, event: Replanned) -> None:
        """The planned rates are drawn anew; the step of the change stays marked."""
        if self._planned is not None:
            self._planned = replace(self._planned, steps=event.steps, rates=event.rates)
        self._marks.append(Mark(event.step, event.why))
        self._messages.append(f"After step {event.step}: {event.why}; step {event.steps} is the last one now.")

    def _step(self, event: Progress) -> None:
        if event.phase and event.phase != (self._last.phase if self._last else ""):
            self._marks.append(Mark(event.step, event.phase))
        self._last = event
        self._curves.step(event)
        self._points.append(Point(event.step, event.loss, event.smoothed, event.learning_rate, event.at))

    def _state(self) -> str:
        """What was wished for last and is not done yet, else what the run is at."""
        control = self.job.control
        return next((words for wish, words in WISHES.items() if wish(control)), f"{self._stage} ...")

    def _glance(self) -> str:
        last = self._last
        if last is None:
            return markup.paragraph("No step is done yet.", quiet=True) if self._planned else ""
        return markup.figures(
            [
                ("step", f"{last.step} / {last.steps}"),
                ("epoch", f"{last.epoch:.2f}"),
                (f"smoothed loss{self._an_hour_ago(last)}", f"{last.smoothed:.4f}"),
                ("loss", f"{last.loss:.4f}"),
                *self._kept_aside(),
                ("learning rate", f"{last.learning_rate:.3g}"),
                ("tokens a second", f"{self._pace.tokens_a_second:,.0f}"),
                *self._left(),
                ("last safe copy", self._safe()),
            ]
        )

    def _left(self) -> list[tuple[str, str]]:
        """Nothing where the run is about to end, or waits."""
        left, control = self._pace.seconds_left, self.job.control
        if control.stopping or control.pausing:
            return []
        pace = f"left, {duration(self._pace.seconds_a_step)} a step"
        return [(pace, duration(round(left))), ("done about", markup.clock(left))]

    def _safe(self) -> str:
        """The last checkpoint, of this part of the run or the one that it goes on from."""
        went_on = self._planned.first_step if self._planned else 0
        return f"step {step}" if (step := self._saved.step if self._saved else went_on) else "none yet"

    def _kept_aside(self) -> list[tuple[str, str]]:
        """The latest evaluation, and the best one where that was earlier."""
        if not self._evaluated:
            return []
        best, last = min(self._evaluated, key=lambda e: e.loss), self._evaluated[-1]
        earlier = f", best {best.loss:.4f} at step {best.step}" if best.step != last.step else ""
        return [(f"kept aside, step {last.step}{earlier}", f"{last.loss:.4f}")]

    def _taken(self) -> str:
        """What the run takes of the machine."""
        words = self._machine.words if self._machine else ""
        return words[:1].upper() + words[1:]

    def _an_hour_ago(self, last: Progress) -> str:
        then = before(self._points, 3600, last.at)
        return f", an hour ago {then.smoothed:.3f}" if then else ""

    def in_short(self) -> str:
        """For the browser's title: how far, and how low; empty when nothing runs."""
        if not self.running or self._last is None:
            return ""
        return f"{self._pace.share:.0%}, loss {self._last.smoothed:.2f}"

    def _curve(self) -> str:
        if self._planned is None:
            return ""
        kept = [*self._earlier, *(AsideLoss(e.step, e.loss) for e in self._evaluated)]
        drawn = svg(self._points, self._planned.rates, self._marks, kept)
        named = {**KEY, "#8a3fb0": "loss on the part kept aside"} if kept else KEY
        return f'{drawn}<p class="tp-quiet tp-key">{markup.legend(named.items())}</p>'

    def _told(self) -> str:
        return markup.listed(map(markup.begun, self._messages[-LATEST:]), quiet=True)

    def _ended_html(self, end: Ended) -> str:
        title = f"{self.job.title}: {end.outcome}"
        parts = [
            *(markup.paragraph(line) for line in end.text.splitlines()),
            markup.listed(use(remedy.words, remedy.values) for remedy in end.remedies),
            markup.folded("Details", end.details),
        ]
        if self._last is not None:
            parts += [self._summary(self._last), self._curve(), self._told()]
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


def _live(event: LiveChanged) -> list[str]:
    """What changed from this step on; a new learning rate is told with the new plan."""
    before = {key: then for key, (then, _) in event.changes.items()}
    changes = presets.changes(before, {key: now for key, (_, now) in event.changes.items()})
    return [f"From after step {event.step} on: {'; '.join(changes)}."] if changes else []
