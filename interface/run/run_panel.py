"""The run panel: Check and Start, the run as it goes, and the buttons that steer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import Showing
from ...core.errors import TrainingProError
from ...core.jobs import Job, Planned
from ...records.folder import under_its_name
from ...schedulers import described
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan
from ..base import (
    Form,
    Joined,
    MadeFrom,
    follows,
    handle,
    markup,
    on_load,
    private,
    refused,
    script,
    status_line,
    taken,
)
from . import plan_svg, report_view
from .example_browser import Leafing
from .queue_view import QueueView
from .run_buttons import RunButtons
from .run_view import WISHES, RunView

LOOK_SECONDS = 0.5
SHOWN = 3  # examples in Check's report
BEAT_SECONDS = 4
CURVES_SECONDS = 5
FIRST = '<p class="tp-quiet tp-first">Choose data, press Check, look, press Start.</p>'


class RunPanel:
    """One place with three states: what Check found, the run, how it ended."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form
        self._buttons = RunButtons(joined)
        self._queue = QueueView(joined, form)
        self.leafing = Leafing(joined, form)

    def draw(self) -> None:
        may = not self._joined.host_says_read_only()
        with gr.Row(elem_classes=["tp-buttons", "tp-first-buttons"]):
            self._check = gr.Button("Check", elem_id="tp-check")
            self._start = gr.Button("Start", variant="primary", interactive=may, elem_id="tp-start")
            self._queue.draw_button()
        self._buttons.draw()
        self._answer = gr.HTML(elem_id="tp-answer")
        self.made_from = gr.State()
        self._queue.draw()
        self._panel = gr.HTML(FIRST, elem_id="tp-run")
        self._buttons.draw_more()
        with gr.Accordion("More curves", open=False, visible=False, elem_id="tp-more-curves") as self._folded:
            self._curves = gr.HTML(elem_id="tp-curves")
        self._samples = gr.HTML(elem_id="tp-samples")
        self.leafing.draw()
        self._copy = gr.Button(
            "Copy this run's settings into the form", size="sm", visible=False, elem_id="tp-copy"
        )
        self._beat = gr.HTML(elem_id="tp-beat", elem_classes="tp-hidden")
        self.model = gr.Textbox(
            self._joined.host.standing().model, label="Model in memory", elem_classes="tp-hidden"
        )
        """Changes when another model is loaded, or none is any more."""
        self.ended = gr.Textbox(label="The last run, when it has ended", elem_classes="tp-hidden")
        self._again = gr.Button("Follow again", elem_id="tp-again", elem_classes="tp-hidden")

    def draw_live(self) -> None:
        """Where the live settings stand in the form."""
        self._buttons.draw_live()

    def connect(self, line: Any) -> None:
        """After the form is drawn; `line` is the page's first line, which is kept true here too."""
        self._line = line
        form = self._form.inputs()
        self.checking = handle(
            self._check.click,
            self._on_check,
            form,
            [self._answer, self.made_from],
            what="Check",
            says=self._answer,
            clears={self.made_from: None},
            **private(),
        )
        handle(self._start.click, self._on_start, form, self._answer, what="Start", says=self._answer, **follows())
        copied = list(self._form.components.values())
        handle(self._copy.click, self._on_copy, None, copied, what="Copying the settings", **private())
        self._buttons.connect(self._form, self._answer)
        self._queue.connect()
        self.leafing.connect()
        drawn = [line, self._panel, self._folded, self._curves, self._samples, self._start, self._copy, self._beat]
        seen = [*drawn, self.model, self.ended, *self._buttons.components]
        following = {
            "what": "Following the run",
            "says": self._panel,
            "clears": {self._curves: "", self._samples: "", self._folded: gr.update(visible=False)},
            **follows(),
        }
        on_load(self._follow, seen, js=script("come_back"), **following)
        handle(self._again.click, self._follow, None, seen, **following)

    def _on_check(self, given: Mapping[Any, Any]) -> Iterator[tuple[str, MadeFrom]]:
        """What a run with this form would learn from; the report before it goes at once."""
        values = self._form.values(given)
        made_from = self._joined.made_from(values)
        yield markup.paragraph("Checking ...", quiet=True), made_from
        yield checked(self._joined.asked(values), self._joined), made_from

    async def _on_start(self, given: Mapping[Any, Any]) -> AsyncIterator[str]:
        host, engine = self._joined.host, self._joined.engine
        try:
            self._joined.refuse_where_read_only()
            settings = self._joined.asked(self._form.values(given))
            if asks := self._asks(settings):
                yield asks
                return
            settings = under_its_name(settings, host.folders)
            self._joined.session.train(settings.what.name, host, partial(engine.train, settings, host))
        except TrainingProError as error:
            async for said in refused(self._joined.session, error):
                yield said
        else:
            yield ""

    def _asks(self, settings: TrainingSettings) -> str:
        """What is to be done with what stands under the name: asked before a run begins, not refused in it."""
        what = settings.what
        if what.if_exists != "ask":
            return ""
        asked = taken(self._joined, what.name, what.if_exists, settings.lora.method)
        return (
            markup.card("", asked, markup.paragraph("Choose, then press Start again.", quiet=True))
            if asked
            else ""
        )

    def _on_copy(self) -> dict[Any, Any]:
        job = self._joined.session.latest("training")
        planned = next((e for e in job.log.since(0) if isinstance(e, Planned)), None) if job else None
        return self._form.shown(planned.settings) if planned else {}

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """The whole of the running or last run, and then whatever is new, for as long as the page is open."""
        view: RunView | None = None
        shown: dict[str, Any] = {}
        beats = 0
        while True:
            view = _current(view, self._joined.session.latest("training"))
            seconds = int(beats * LOOK_SECONDS)
            running = view is not None and view.running
            now = {
                "line": status_line.html(self._joined),
                "run": (*_state(view), self._queue.following()),
                "curves": (view and id(view.job), seconds // CURVES_SECONDS if running else "all"),
                "beat": seconds // BEAT_SECONDS,
            }
            fresh = {part for part, state in now.items() if shown.get(part, self) != state}
            if fresh:
                yield self._updates(fresh, now, view)
                shown = now
            beats += 1
            await asyncio.sleep(LOOK_SECONDS)

    def _updates(self, fresh: Collection[str], now: Mapping[str, Any], view: RunView | None) -> dict[Any, Any]:
        """Only of those parts that have something new."""
        short = f"<b>{view.in_short()}</b>" if view else ""
        updates = {self._beat: f"{short} {now['beat']}"}
        if "line" in fresh:
            updates |= {self._line: now["line"], self.model: self._joined.host.standing().model}
        if "run" in fresh:
            updates |= {
                self._panel: view.html(following=self._queue.following()) if view else FIRST,
                **self._buttons.states(view),
                **self._ends(view),
            }
        if "curves" in fresh:
            curves = view.more_curves() if view else ""
            updates |= {self._curves: curves, self._folded: gr.update(visible=bool(curves))}
        return updates

    def _ends(self, view: RunView | None) -> dict[Any, Any]:
        """What is there between two runs, and what belongs to the last one."""
        may = not self._joined.host_says_read_only()
        running = view is not None and view.running
        return {
            self._start: gr.update(interactive=may and not running),
            self._copy: gr.update(visible=view is not None and view.planned),
            self._samples: view.samples() if view else "",
            self.ended: view.job.title if view and not running else "",
        }


def checked(settings: TrainingSettings, joined: Joined) -> str:
    """Check's report, with the plan of the run to come."""
    report = joined.engine.check(settings, joined.host, show=Showing(SHOWN))
    if not report.examples:
        return report_view.html(report)
    steps = settings.steps
    plan = StepPlan(report.examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    phases, _ = plan_svg.planned_rates(settings, plan)
    words = markup.paragraph(f"{settings.learning.schedule}: {described(phases)}.", quiet=True)
    return report_view.html(report, plan_svg.plan_curve(settings, plan) + words, joined.host.memory().free)


def _current(view: RunView | None, job: Job | None) -> RunView | None:
    """The view of the last run, with everything that is new."""
    if job is not None and (view is None or view.job is not job):
        view = RunView(job)
    if view is not None:
        view.catch_up()
    return view


def _state(view: RunView | None) -> tuple[Any, ...]:
    """What has to change for a page to be sent anything."""
    if view is None:
        return ()
    control = view.job.control
    return (id(view.job), view.position, control.pausing, *(wish(control) for wish in WISHES))
