"""The run panel: Check and Start, the progress of the run, and the buttons that control it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import PreviewQuery
from ...core.errors import SettingsError, TrainingProError
from ...core.jobs import settings_in_force
from ...records.folder import choose_run_folder, with_final_name
from ...settings.parsing import settings_and_problems
from ...train_utils import StepPlan
from ..base import Form, PageContext, add_handler, load_script, markup, page_load
from . import report_view
from .charts import lr_plan_html
from .queue_view import QueueView
from .report_view import ExampleBrowser
from .run_buttons import RunButtons
from .run_view import RunView

SHOWN_EXAMPLES = 3  # examples in Check's report
REFRESH_SECONDS = 0.5
CHARTS_SECONDS = 5  # between two drawings of 'More curves' during a run
# Something is sent this often, also while nothing changes: come_back.js takes a page without updates for one that
# has lost its connection, and Gradio notices that a page was closed only when its stream yields.
BEAT_SECONDS = 4
FIRST_HINT = '<p class="tp-quiet tp-first">The report from Check and the progress of the run appear here.</p>'


class RunPanel:
    """Shows the report of Check, the running run, and the end of the last run."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self.buttons = RunButtons(context, form)
        self._queue = QueueView(context, form)
        self.example_browser = ExampleBrowser(context, form)
        # The view of the last run, shared by all pages.
        self._view: RunView | None = None
        # What the controls show, and its version.
        self._controls: tuple[tuple[Any, ...], str] = ((), "")

    def draw(self) -> None:
        """Draw the panel, after the form."""
        enabled = not self._context.read_only_reason()
        with gr.Row(elem_classes=["tp-buttons", "tp-first-buttons"]):
            check_button = gr.Button("Check", elem_id="tp-check")
            self._start_button = gr.Button("Start", variant="primary", interactive=enabled, elem_id="tp-start")
            self._queue.draw_button()
        self.starting_clicks = [check_button.click, self._start_button.click]
        self.buttons.draw()
        self._response = gr.HTML(elem_id="tp-answer")
        self.made_from = gr.State()
        self._queue.draw(self._response)
        self._panel = gr.HTML(FIRST_HINT, elem_id="tp-run")
        self.buttons.draw_more(self._response)
        with gr.Accordion("More curves", open=False, visible=False, elem_id="tp-more-curves") as self._charts_part:
            self._charts = gr.HTML(elem_id="tp-curves")
        self._samples = gr.HTML(elem_id="tp-samples")
        self.example_browser.draw()
        with gr.Row(elem_classes="tp-buttons"):
            hidden: dict[str, Any] = {"size": "sm", "visible": False}
            self._resume_button = gr.Button("Resume this run", elem_id="tp-run-resume", **hidden)
            self._copy_button = gr.Button("Copy this run's settings to the form", elem_id="tp-copy", **hidden)
        # Hidden boxes. Others follow their changes, because a stream of their own would be one more for each page.
        hidden = {"elem_classes": "tp-hidden"}
        self._beat = gr.HTML(elem_id="tp-beat", **hidden)
        model = self._context.host.model_status().model
        self.model = gr.Textbox(model, label="Model in memory", **hidden)
        self.ended = gr.Textbox(label="The last run, once it has ended", **hidden)
        self.working = gr.Textbox(label="The type of job that uses the model", elem_id="tp-working", **hidden)
        self._version = gr.Textbox(label="Version number of the run controls", elem_id="tp-version", **hidden)
        self._follow_button = gr.Button("Follow again", elem_id="tp-again", **hidden)

    def connect(self, line: Any) -> None:
        """Register the event handlers; `line` is the status line of the page."""
        self._status_line = line
        form, says = self._form.inputs(), {"says": self._response}
        end_buttons = [self._resume_button, self._copy_button]
        run = [self._panel, self._charts_part, self._charts, self._samples, *end_buttons]
        results = [self._response, self.made_from, *run]
        check_click, start_click = self.starting_clicks
        options = {"what": "Check", "clears": {self.made_from: None}, **says}
        self.check_event = add_handler(check_click, self._on_check, form, results, **options)
        add_handler(start_click, self._on_start, form, results, what="Start", **says)
        resume = self._resume_button.click
        add_handler(resume, self._on_resume, None, self._response, what="Resuming the run", **says)
        fields = list(self._form.components.values())
        add_handler(self._copy_button.click, self._on_copy, None, fields, what="Copying the settings")
        # The page follows the run from its start on, and again after a lost connection.
        outputs = [line, self._panel, self._charts, self._samples, self._beat, self._version]
        what, clears = "Showing the run", {self._charts: "", self._samples: ""}
        options = {"what": what, "says": self._panel, "clears": clears}
        add_handler(page_load(), self._follow, None, outputs, js=load_script("come_back"), **options)
        add_handler(self._follow_button.click, self._follow, None, outputs, **options)
        own = [self._charts_part, *end_buttons, self._start_button, self.ended, self.model, self.working]
        controls = [*own, *self.buttons.components, *self._queue.components]
        options = {"what": what, "trigger_mode": "always_last"}
        add_handler(self._version.change, self._draw_controls, None, controls, **options)

    def _on_check(self, inputs: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
        """Check the form; the previous report and a failed run are removed at once."""
        context, values = self._context, self._form.values(inputs)
        checking = markup.paragraph("Checking ...", quiet=True)
        yield {self._response: checking, self.made_from: context.made_from(values), **self._without_failed_run()}
        settings, problems = settings_and_problems(values)
        preview = PreviewQuery(SHOWN_EXAMPLES)
        report = context.engine.check_start(settings, context.host, show=preview, problems=problems)
        choices = context.unanswered_choices(settings)
        lr_plan, free = "", 0
        if report.examples:
            steps, free = settings.steps, context.host.memory().free
            plan = StepPlan(report.examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
            lr_plan = lr_plan_html(settings, plan)
        packing = settings.machine.packing != "off"
        yield {self._response: report_view.html(report, lr_plan, free, choices, packing=packing)}

    async def _on_start(self, inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Start a run, or show why it cannot start; the answer before and a failed run are removed at once."""
        context, values = self._context, self._form.values(inputs)
        yield {self._response: "", self.made_from: context.made_from(values), **self._without_failed_run()}
        try:
            context.check_writable()
            settings = context.parse_settings(values)
            try:
                # Whether the name exists is said before the run starts, as Check does.
                choose_run_folder(settings, context.host.folders, "")
            except SettingsError as error:
                hint = markup.paragraph("After your choice, press Start again.", quiet=True)
                choices = context.unanswered_choices(settings)
                yield {self._response: markup.problem(str(error), markup.outdated_notice("check"), choices, hint)}
                return
            settings = with_final_name(settings, context.host.folders)
            work = partial(context.engine.train, settings, context.host)
            context.session.train(settings.what.name, context.host, work)
            # Gradio sends the last update once more when a stream ends, and so must not empty the panel again.
            yield {self._response: ""}
        except TrainingProError as error:
            async for message in context.follow_refusal(error, markup.outdated_notice("check")):
                yield {self._response: message}

    def _without_failed_run(self) -> dict[Any, Any]:
        """Updates that remove the last run from this page if it failed; its result stays otherwise."""
        job = self._context.session.latest("training")
        if job is None or job.end is None or job.end.outcome != "failed":
            return {}
        parts = (self._charts_part, self._resume_button, self._copy_button)
        hidden = dict.fromkeys(parts, gr.update(visible=False))
        return {self._panel: "", self._charts: "", self._samples: "", **hidden}

    def _on_copy(self) -> dict[Any, Any]:
        job = self._context.session.latest("training")
        unchanged = {field: gr.update() for field in self._form.components.values()}  # an empty dict is refused
        return {**unchanged, **(self._form.updates(settings_in_force(job.log.since(0))) if job else {})}

    def _on_resume(self) -> str:
        """Resume the last run; the panel shows its progress."""
        self._context.resume_run(self._last_run_name())
        return ""

    def _last_run_name(self) -> str:
        """The name of the last run, if it has a folder among the LoRAs."""
        job = self._context.session.latest("training")
        folder = job.end.folder if job is not None and job.end is not None else None
        return folder.name if folder is not None and folder.parent == self._context.host.folders.loras else ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the running or last run and the queue, then every change while the page is open."""
        # One stream for everything on the tab: Gradio runs 40 at once by default, so that with three for each page
        # the 14th page stopped all others.
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
            following = self._queue.next_run_name() if running else ""
            parts = {
                "line": self._context.model_line(),
                "run": view and (id(view.job), view.position, view.job.control.pending, following),
                "samples": view and (id(view.job), running, len(view.samples_so_far)),
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
                    updates[self._panel] = view.html(following=following) if view else FIRST_HINT
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
            state += (id(view.job), view.running, view.plan is None, view.has_charts, view.job.control.pending)
        if state != self._controls[0]:
            self._controls = (state, uuid.uuid4().hex)
        return self._controls[1]

    def _draw_controls(self) -> dict[Any, Any]:
        """The parts that depend on the state of the run and the queue, and not on every step."""
        view, enabled = self._view, not self._context.read_only_reason()
        running = view is not None and view.running
        resumable = enabled and not running and self._context.can_resume(self._last_run_name())
        return {
            self._charts_part: gr.update(visible=view is not None and view.has_charts),
            self._copy_button: gr.update(visible=view is not None and view.plan is not None),
            self._resume_button: gr.update(visible=resumable),
            self._start_button: gr.update(interactive=enabled and not running),
            self.ended: view.job.title if view and not running else "",
            self.model: self._context.host.model_status().model,
            self.working: self._working(),
            **self.buttons.button_updates(view),
            **self._queue.updates(),
        }

    def _working(self) -> str:
        """The type of job that uses the model; empty while the model is free."""
        job = self._context.session.current
        return job.kind if job else ""
