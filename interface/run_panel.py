"""The run panel: Check and Start, the run as it goes, and the buttons that steer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ..core.control import RunControl
from ..core.errors import TrainingProError
from ..core.events import Planned
from ..core.session import Job
from ..schedulers import described
from ..settings.declared import TrainingSettings
from ..settings.reading import training_settings
from ..train_utils import StepPlan
from . import model_line, plots, report_view, wording
from .clicks import script
from .form import Form
from .gradio_versions import follows, private
from .joined import Joined, on_load
from .run_view import RunView

PAUSE_SECONDS = 0.5
SHOWN = 3  # examples in Check's report
BEAT_SECONDS = 4


class RunPanel:
    """One place with three states: what Check found, the run, how it ended."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form

    def draw(self) -> None:
        may = not self._joined.host_says_read_only()
        with gr.Row(elem_classes="tp-buttons"):
            self._check = gr.Button("Check", elem_id="tp-check")
            self._start = gr.Button("Start", variant="primary", interactive=may, elem_id="tp-start")
        with gr.Row(elem_classes="tp-buttons"):
            self._stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="tp-stop")
            self._pause = gr.Button("Pause", interactive=False, elem_id="tp-pause")
            self._save = gr.Button("Save checkpoint", interactive=False, elem_id="tp-save")
        self._answer = gr.HTML(elem_id="tp-answer")
        self._panel = gr.HTML(elem_id="tp-run")
        self._throw = gr.Button("Stop and throw away", size="sm", visible=False, elem_id="tp-throw-away")
        self._copy = gr.Button(
            "Copy this run's settings into the form", size="sm", visible=False, elem_id="tp-copy"
        )
        self._beat = gr.HTML(elem_id="tp-beat", elem_classes="tp-hidden")
        self._again = gr.Button("Follow again", elem_id="tp-again", elem_classes="tp-hidden")

    def connect(self, line: Any) -> None:
        """After the form is drawn; `line` is the page's first line, which is kept true here too."""
        form = self._form.inputs()
        self._check.click(self._on_check, form, self._answer, **private())
        self._start.click(self._on_start, form, self._answer, **private())
        self._stop.click(partial(self._ask, RunControl.stop), None, self._answer, **private())
        self._save.click(partial(self._ask, RunControl.save_checkpoint), None, self._answer, **private())
        self._pause.click(partial(self._ask, _pause_or_go_on), None, self._answer, **private())
        self._throw.click(partial(self._ask, RunControl.throw_away), None, self._answer, **private())
        self._copy.click(self._on_copy, None, list(self._form.components.values()), **private())
        buttons = [self._start, self._stop, self._save, self._pause, self._throw, self._copy]
        seen = [line, self._panel, *buttons, self._beat]
        on_load(self._follow, seen, js=script("come_back"), **follows())
        self._again.click(self._follow, None, seen, **follows())

    def _on_check(self, given: Mapping[Any, Any]) -> str:
        """What a run with this form would learn from, or everything that is wrong with the form."""
        try:
            return checked(training_settings(self._form.values(given)), self._joined)
        except TrainingProError as error:
            return wording.problem(str(error))

    def _on_start(self, given: Mapping[Any, Any]) -> str:
        host, engine = self._joined.host, self._joined.engine
        try:
            self._joined.refuse_where_read_only()
            settings = training_settings(self._form.values(given))
            title = f"Training '{settings.what.name}'"
            self._joined.session.start("training", title, host, partial(engine.train, settings, host))
        except TrainingProError as error:
            return wording.problem(str(error))
        return ""

    def _ask(self, wish: Callable[[RunControl[Any]], None]) -> str:
        """Pass a wish on to the run; the panel says at once that it is heard."""
        try:
            self._joined.refuse_where_read_only()
        except TrainingProError as error:
            return wording.problem(str(error))
        job = self._joined.session.latest("training")
        if job is None or not job.running:
            return wording.card("", wording.paragraph("No run is going on."))
        wish(job.control)
        return ""

    def _on_copy(self) -> dict[Any, Any]:
        job = self._joined.session.latest("training")
        planned = next((e for e in job.log.since(0) if isinstance(e, Planned)), None) if job else None
        return self._form.shown(planned.settings) if planned else {}

    async def _follow(self) -> AsyncIterator[tuple[Any, ...]]:
        """The whole of the running or last run, and then whatever is new, for as long as the page is open."""
        view: RunView | None = None
        shown: tuple[Any, ...] = ()
        beats = 0
        while True:
            view = _current(view, self._joined.session.latest("training"))
            line = model_line.html(self._joined)
            now = (line, _state(view), int(beats * PAUSE_SECONDS) // BEAT_SECONDS)
            if now != shown:
                same = now[:2] == shown[:2]
                panel = gr.update() if same else (view.html() if view else "")
                short = f"<b>{view.in_short()}</b>" if view else ""
                yield (gr.update() if same else line, panel, *self._button_states(view), f"{short} {now[2]}")
                shown = now
            beats += 1
            await asyncio.sleep(PAUSE_SECONDS)

    def _button_states(self, view: RunView | None) -> tuple[Any, ...]:
        running = view is not None and view.running
        may = not self._joined.host_says_read_only()
        on, off = gr.update(interactive=may and running), gr.update(interactive=may and not running)
        paused = view is not None and view.job.control.pausing
        pause = gr.update(interactive=may and running, value="Go on" if paused else "Pause")
        throw = gr.update(visible=may and running)
        return off, on, on, pause, throw, gr.update(visible=view is not None and view.planned)


def checked(settings: TrainingSettings, joined: Joined) -> str:
    """Check's report, with the plan of the run to come."""
    report = joined.engine.check(settings, joined.host, show=SHOWN)
    if not report.examples:
        return report_view.html(report)
    steps = settings.steps
    plan = StepPlan(report.examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    phases, _ = plots.planned_rates(settings, plan)
    words = wording.paragraph(f"{settings.learning.schedule}: {described(phases)}.", quiet=True)
    return report_view.html(report, plots.plan_curve(settings, plan) + words)


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
    return (id(view.job), view.position, control.stopping, control.saving, control.pausing)


def _pause_or_go_on(control: RunControl[Any]) -> None:
    control.go_on() if control.pausing else control.pause()
