"""The run panel: Check and Start, the progress of the run, and the buttons that control it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import PreviewQuery
from ...core.errors import SettingsError, TrainingProError
from ...core.jobs import settings_in_force
from ...records.folder import choose_run_folder, with_final_name
from ...schedulers import describe_phases
from ...settings.definitions import TrainingSettings
from ...settings.parsing import settings_and_problems
from ...train_utils import StepPlan
from ..base import (
    Form,
    PageContext,
    add_handler,
    can_resume,
    follow_refusal,
    load_script,
    markup,
    model_line,
    on_load,
    outdated_notice,
    private_options,
    resume_run,
    stream_options,
    unanswered_choices,
)
from . import report_view
from .charts import lr_plan_legend, lr_plan_svg, planned_rates
from .queue_view import QueueView
from .report_view import ExampleBrowser
from .run_buttons import RunButtons
from .run_view import RunView

REFRESH_SECONDS = 0.5
SHOWN_EXAMPLES = 3  # examples in Check's report
BEAT_SECONDS = 4
CHARTS_SECONDS = 5
FIRST_HINT = '<p class="tp-quiet tp-first">The report from Check and the progress of the run appear here.</p>'


class RunPanel:
    """Shows the report of Check, the running run, and the end of the last run."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self._buttons = RunButtons(context)
        self._queue = QueueView(context, form)
        self.example_browser = ExampleBrowser(context, form)
        # The view of the last run, shared by all pages.
        self._view: RunView | None = None
        # What the controls show, and its version.
        self._controls: tuple[tuple[Any, ...], str] = ((), "")

    def draw(self) -> None:
        enabled = not self._context.read_only_reason()
        with gr.Row(elem_classes=["tp-buttons", "tp-first-buttons"]):
            self._check_button = gr.Button("Check", elem_id="tp-check")
            self._start_button = gr.Button("Start", variant="primary", interactive=enabled, elem_id="tp-start")
            self._queue.draw_button()
        self._buttons.draw()
        self._response = gr.HTML(elem_id="tp-answer")
        self.made_from = gr.State()
        self._queue.draw()
        self._panel = gr.HTML(FIRST_HINT, elem_id="tp-run")
        self._buttons.draw_more()
        with gr.Accordion("More curves", open=False, visible=False, elem_id="tp-more-curves") as self._charts_part:
            self._charts = gr.HTML(elem_id="tp-curves")
        self._samples = gr.HTML(elem_id="tp-samples")
        self.example_browser.draw()
        with gr.Row(elem_classes="tp-buttons"):
            self._resume_button = gr.Button("Resume this run", size="sm", visible=False, elem_id="tp-run-resume")
            self._copy_button = gr.Button(
                "Copy this run's settings to the form", size="sm", visible=False, elem_id="tp-copy"
            )
        self._end_buttons = [self._resume_button, self._copy_button]
        self._beat = gr.HTML(elem_id="tp-beat", elem_classes="tp-hidden")
        # Hidden; changes when another model is loaded, or the model is unloaded.
        self.model = gr.Textbox(
            self._context.host.model_status().model, label="Model in memory", elem_classes="tp-hidden"
        )
        self.ended = gr.Textbox(label="The last run, once it has ended", elem_classes="tp-hidden")
        label = "The type of job that uses the model"
        # Hidden; empty while the model is free.
        self.working = gr.Textbox(label=label, elem_id="tp-working", elem_classes="tp-hidden")
        # Hidden; changes when the controls have to be drawn again.
        self._version = gr.Textbox(
            label="Version number of the run controls", elem_id="tp-version", elem_classes="tp-hidden"
        )
        self._follow_button = gr.Button("Follow again", elem_id="tp-again", elem_classes="tp-hidden")

    def draw_live(self) -> None:
        """Draw the button for the live settings at this place in the form."""
        self._buttons.draw_live()

    @property
    def starting_clicks(self) -> list[Any]:
        """The events of Check and Start."""
        return [self._check_button.click, self._start_button.click]

    def connect(self, line: Any) -> None:
        """Register the event handlers, after the form is drawn; `line` is the status line of the page."""
        self._status_line = line
        form, results = (
            self._form.inputs(),
            [
                self._response,
                self.made_from,
                *[
                    self._panel,
                    self._charts_part,
                    self._charts,
                    self._samples,
                    *self._end_buttons,
                ],
            ],
        )
        options = {"what": "Check", "says": self._response, "clears": {self.made_from: None}, **private_options()}
        self.check_event = add_handler(self._check_button.click, self._on_check, form, results, **options)
        options = {"what": "Start", "says": self._response, **stream_options()}
        add_handler(self._start_button.click, self._on_start, form, results, **options)
        options = {"what": "Resuming the run", "says": self._response, **private_options()}
        add_handler(self._resume_button.click, self._on_resume, None, self._response, **options)
        fields = list(self._form.components.values())
        options = {"what": "Copying the settings", **private_options()}
        add_handler(self._copy_button.click, self._on_copy, None, fields, **options)
        self._buttons.connect(self._form, self._response)
        self._queue.connect(self._response)
        self.example_browser.connect()
        # The page follows the run from its start on, and again after a lost connection.
        outputs = [self._status_line, self._panel, self._charts, self._samples]
        outputs += [self._beat, self._version]
        what = "Showing the run"
        options = {
            "what": what,
            "says": self._panel,
            "clears": {self._charts: "", self._samples: ""},
            **stream_options(),
        }
        on_load(self._follow, outputs, js=load_script("come_back"), **options)
        add_handler(self._follow_button.click, self._follow, None, outputs, **options)
        own = [
            self._charts_part,
            *self._end_buttons,
            self._start_button,
            self.ended,
            self.model,
            self.working,
        ]
        controls = [*own, *self._buttons.components, *self._queue.components]
        options = {"trigger_mode": "always_last", **private_options()}
        add_handler(self._version.change, self._draw_controls, None, controls, what=what, **options)

    def _on_check(self, inputs: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
        """Check the form; the previous report and a failed run are removed at once."""
        values = self._form.values(inputs)
        checking, made_from = markup.paragraph("Checking ...", quiet=True), self._context.made_from(values)
        yield {self._response: checking, self.made_from: made_from, **self._without_failed_run()}
        settings, problems = settings_and_problems(values)
        yield {self._response: check_html(settings, self._context, problems)}

    async def _on_start(self, inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Start a run, or show why it cannot start; the answer before and a failed run are removed at once."""
        values = self._form.values(inputs)
        yield {self._response: "", self.made_from: self._context.made_from(values), **self._without_failed_run()}
        host, engine = self._context.host, self._context.engine
        try:
            self._context.check_writable()
            settings = self._context.parse_settings(values)
            if refusal := self._refuse_name(settings):
                yield {self._response: refusal}
                return
            settings = with_final_name(settings, host.folders)
            self._context.session.train(settings.what.name, host, partial(engine.train, settings, host))
            # Gradio sends the last update once more when a stream ends, and so must not empty the panel again.
            yield {self._response: ""}
        except TrainingProError as error:
            async for message in follow_refusal(self._context.session, error, outdated_notice("check")):
                yield {self._response: message}

    def _refuse_name(self, settings: TrainingSettings) -> str:
        """Say before the run starts that its name exists, as Check does; empty if it can start."""
        try:
            choose_run_folder(settings, self._context.host.folders, "")
        except SettingsError as error:
            hint = markup.paragraph("After your choice, press Start again.", quiet=True)
            choices = unanswered_choices(self._context, settings)
            return markup.problem(str(error), outdated_notice("check"), choices, hint)
        return ""

    def _without_failed_run(self) -> dict[Any, Any]:
        """Updates that remove the last run from this page if it failed; its result stays otherwise."""
        job = self._context.session.latest("training")
        return self._without_run() if job and job.end and job.end.outcome == "failed" else {}

    def _without_run(self) -> dict[Any, Any]:
        """Updates that remove the last run from this page."""
        hidden = gr.update(visible=False)
        texts = {self._panel: "", self._charts: "", self._samples: ""}
        return {**texts, **dict.fromkeys((self._charts_part, *self._end_buttons), hidden)}

    def _on_copy(self) -> dict[Any, Any]:
        job = self._context.session.latest("training")
        unchanged = {field: gr.update() for field in self._form.components.values()}
        return {**unchanged, **(self._form.updates(settings_in_force(job.log.since(0))) if job else {})}

    def _on_resume(self) -> str:
        """Resume the last run; the panel shows its progress."""
        resume_run(self._context, self._last_run_name())
        return ""

    def _last_run_name(self) -> str:
        """The name of the last run, if it has a folder among the LoRAs."""
        job = self._context.session.latest("training")
        folder = job.end.folder if job is not None and job.end is not None else None
        return folder.name if folder is not None and folder.parent == self._context.host.folders.loras else ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the running or last run and the queue, then every change while the page is open.

        One stream serves everything on the tab, because Gradio limits the number of streams of all pages.
        """
        view: RunView | None = None
        shown: dict[str, Any] = {}
        while True:
            # The view of the last run, up to date with its events.
            job = self._context.session.latest("training")
            if job is not None and (self._view is None or self._view.job is not job):
                self._view = RunView(job)
            if self._view is not None:
                self._view.catch_up()
            earlier, view = view, self._view
            if earlier not in (None, view):
                # Gradio sends differences, and the same failure once more has none.
                yield {self._panel: "", self._charts: "", self._samples: ""}
            # The current state of each part of the page.
            seconds, running = int(time.monotonic()), view is not None and view.running
            parts = {
                "line": model_line(self._context),
                "run": (*_state(view), self._queue.next_run_name() if running else ""),
                "samples": view and (id(view.job), running, view.sample_count),
                "curves": (view and id(view.job), seconds // CHARTS_SECONDS if running else "all"),
                "beat": seconds // BEAT_SECONDS,
                "controls": self._controls_version(view),
            }
            if changed := {part for part, state in parts.items() if part not in shown or shown[part] != state}:
                # The updates of the parts that have changed.
                title = f"<b>{view.short_status()}</b>" if view else ""
                # What nobody else draws is sent each time: Gradio makes an output anew if it is left out.
                updates = {
                    self._beat: f"{title} {int(time.monotonic())}",
                    self._status_line: parts["line"],
                    self._version: parts["controls"],
                }
                if "run" in changed:
                    updates[self._panel] = view.html(following=self._queue.next_run_name()) if view else FIRST_HINT
                if "curves" in changed:
                    updates[self._charts] = view.extra_charts() if view else ""
                if "samples" in changed:
                    updates[self._samples] = view.samples() if view else ""
                yield updates
                shown = parts
            await asyncio.sleep(REFRESH_SECONDS)

    def _controls_version(self, view: RunView | None) -> str:
        """A text that changes when what `_draw_controls` draws has changed."""
        state: tuple[Any, ...] = (self._working(), self._context.host.model_status().model, *self._queue.state())
        if view is not None:
            state += (id(view.job), view.running, view.planned, view.has_charts, view.job.control.pending)
        if state != self._controls[0]:
            self._controls = (state, uuid.uuid4().hex)
        return self._controls[1]

    def _draw_controls(self) -> dict[Any, Any]:
        """The parts that depend on the state of the run and the queue, and not on every step."""
        view, enabled = self._view, not self._context.read_only_reason()
        running = view is not None and view.running
        return {
            self._charts_part: gr.update(visible=view is not None and view.has_charts),
            self._copy_button: gr.update(visible=view is not None and view.planned),
            self._resume_button: gr.update(
                visible=enabled and not running and can_resume(self._context, self._last_run_name())
            ),
            self._start_button: gr.update(interactive=enabled and not running),
            self.ended: view.job.title if view and not running else "",
            self.model: self._context.host.model_status().model,
            self.working: self._working(),
            **self._buttons.button_updates(view),
            **self._queue.updates(),
        }

    def _working(self) -> str:
        """The type of job that uses the model; empty while the model is free."""
        return job.kind if (job := self._context.session.current) else ""


def check_html(settings: TrainingSettings, context: PageContext, problems: Sequence[str] = ()) -> str:
    """The report of Check as HTML, with the learning rate plan; `problems` are those of the form."""
    preview = PreviewQuery(SHOWN_EXAMPLES)
    report = context.engine.check_start(settings, context.host, show=preview, problems=problems)
    choices = unanswered_choices(context, settings)
    if not report.examples:
        return report_view.html(report, choices=choices)
    steps = settings.steps
    plan = StepPlan(report.examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    phases, _ = planned_rates(settings, plan)
    phases_line = markup.paragraph(f"{settings.learning.schedule}: {describe_phases(phases)}.", quiet=True)
    legend = f'<p class="tp-quiet tp-key">{markup.legend(lr_plan_legend(settings).items())}</p>'
    lr_plan = f"{lr_plan_svg(settings, plan)}{legend}{phases_line}"
    packing = settings.machine.packing != "off"
    return report_view.html(report, lr_plan, context.host.memory().free, choices, packing=packing)


def _state(view: RunView | None) -> tuple[Any, ...]:
    """The state of a view; the page is updated when it changes."""
    if view is None:
        return ()
    return (id(view.job), view.position, view.job.control.pending)
