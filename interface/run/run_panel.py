"""The run panel: Check and Start, the progress of the run, and the buttons that send requests to it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import PreviewQuery
from ...core.errors import BusyError, SettingsError, TrainingProError
from ...core.findings import note
from ...core.jobs import Request, RunControl, Step, settings_in_force
from ...records.folder import choose_run_folder, loras, with_final_name
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.live_settings import LIVE_KEYS, LiveSettings
from ...settings.parsing import settings_and_problems, training_settings
from ..base import Form, PageContext, add_handler, confirm_click, load_script, markup
from . import report_view
from .charts import lr_plan_html
from .queue_view import QueueView
from .report_view import ExampleBrowser
from .run_view import RunView

SHOWN_EXAMPLES = 3  # examples in Check's report
REFRESH_SECONDS = 0.5
CHARTS_SECONDS = 5  # between two drawings of 'More curves' during a run
# Something is sent this often, also while nothing changes: come_back.js takes a page without updates for one that
# has lost its connection, and Gradio notices that a page was closed only when its stream yields.
BEAT_SECONDS = 4
CHAT_IN_MEMORY = "Now, the chat's model takes memory, too. It is unloaded for the run, so more will be available."
FIRST_HINT = '<p class="tp-quiet tp-first">The report from Check and the progress of the run appear here.</p>'
Action = Callable[[RunControl], object]
EXTRA_EPOCHS = replace(SETTINGS["epochs"], label="More epochs")
# What the buttons under More do, in their order.
BUTTON_HELP = {
    "Evaluate": "measure the validation loss, and how much of the text the model knows by heart.",
    "Wind down": "lower the learning rate to 0 over a few steps, then finish the run.",
    "Halve learning rate": "from the next step on, train with half the planned learning rate.",
    "Add epochs": "train longer, with a new learning rate schedule.",
    "Pause and free memory": "save a checkpoint and unload the model until you press Resume.",
    "Stop and discard": "end the run and delete what it saved. If it replaced a LoRA of the same name, that LoRA "
    "is restored.",
}


class RunButtons:
    """Stop, Pause, Save checkpoint, Sample; and less common buttons under More."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self._actions: dict[Any, Request | Action] = {}

    def draw(self) -> None:
        with gr.Row(elem_classes=["tp-buttons", "tp-run-buttons"]):
            self._add_button("Stop", Request.STOP, "tp-stop", variant="stop")
            self._pause_button = self._add_button("Pause", toggle_pause, "tp-pause")
            self._add_button("Save checkpoint", Request.CHECKPOINT, "tp-save")
            self._add_button("Sample", Request.SAMPLE, "tp-sample")

    def draw_live(self) -> None:
        """Draw the button that applies the live settings, next to these settings."""
        self._live_button = gr.Button("Apply to the current run", size="sm", visible=False, elem_id="tp-live")

    def draw_more(self, answer: gr.HTML) -> None:
        """Draw the rest, and register the event handlers of all buttons; `answer` shows their errors."""
        self._more_part = gr.Accordion("More", open=False, visible=False, elem_id="tp-more")
        halve = partial(change_live, change=lambda live: replace(live, rate_factor=live.rate_factor / 2))
        with self._more_part:
            with gr.Row(elem_classes="tp-buttons"):
                self._add_button("Evaluate", Request.EVALUATE, "tp-evaluate", size="sm")
                self._add_button("Wind down", Request.WIND_DOWN, "tp-wind-down", size="sm")
                self._add_button("Halve learning rate", halve, "tp-halve", size="sm")
            with gr.Row(elem_classes="tp-buttons"):
                epochs = gr.Number(1, label=EXTRA_EPOCHS.label, min_width=90, elem_id="tp-more-epochs")
                self._extend_button = gr.Button("Add epochs", size="sm", interactive=False, elem_id="tp-extend")
                self._add_button("Pause and free memory", Request.FREE_MEMORY, "tp-free", size="sm")
                self._discard_button = gr.Button(
                    "Stop and discard", interactive=False, size="sm", elem_id="tp-throw-away"
                )
            explained = (Markup("<b>{}</b>: {}").format(*entry) for entry in BUTTON_HELP.items())
            gr.HTML(markup.bullets(explained, quiet=True))
        own = [self._discard_button, self._extend_button, self._more_part, self._live_button]
        self.components = [*self._actions, *own]
        for button, action in self._actions.items():
            add_handler(button.click, partial(self._run_action, action), None, answer, what=button.value)
        add_handler(self._extend_button.click, self._extend_run, epochs, answer, what="Add epochs")
        inputs = self._form.inputs()
        add_handler(self._live_button.click, self._apply_live, inputs, answer, what="Changing the run")
        confirm_click(
            self._discard_button,
            lambda _: "Delete all that this run has saved?",
            lambda _: {answer: self._run_action(Request.DISCARD)},
            set(),
            [answer],
        )

    def _add_button(self, label: str, action: Request | Action, elem_id: str, **options: Any) -> Any:
        button = gr.Button(label, interactive=False, elem_id=elem_id, **options)
        self._actions[button] = action
        return button

    def _extend_run(self, epochs: float | None) -> str:
        """Extend the run. The bounds are checked here, because Gradio's own words for them are poor."""
        try:
            extra = EXTRA_EPOCHS.read(epochs)
        except ValueError as error:
            raise SettingsError([str(error)]) from None
        return self._run_action(lambda control: control.extend(extra))

    def _apply_live(self, inputs: Mapping[Any, Any]) -> str:
        """Send the live settings of the form; they all take effect after the next step."""
        context, values = self._context, self._form.values(inputs)
        # The saved form keeps the rules from before the run, so only what was changed since is sent: the run may
        # have other rules than the form, such as one from the queue.
        own, defaults = {key: values[key] for key in LIVE_KEYS}, {key: SETTINGS[key].default for key in LIVE_KEYS}
        shown = context.live.of(context.running_job("training")) or presets.load_form(context.host.folders.form)
        before = {**defaults, **shown}
        if not (changes := {key: own[key] for key in presets.differing_keys(before, own)}):
            # What the form shows was not changed, and the run may have other rules: all of the form's are meant.
            changes = own
        # A rule may need what the run does not have, such as a validation split.
        job = context.running_job("training")
        if job and (settings := settings_in_force(job.log.since(0))):
            in_force = {
                key: value for key, value in settings.items() if key in SETTINGS
            }  # without the halved rate
            training_settings({**in_force, **changes})
        message = self._run_action(lambda control: change_live(control, lambda live: live.changed(changes)))
        context.live.values, context.live.job = own, context.session.latest("training")
        return message

    def _run_action(self, action: Request | Action) -> str:
        """Send a request to the run, or apply an action to it. Empty, since the run panel confirms the request."""
        job = self._context.require_job("training", "No run is in progress.")
        if isinstance(action, Request):
            job.control.ask(action)
        else:
            action(job.control)
        return ""

    def button_updates(self, view: RunView | None) -> dict[Any, Any]:
        running = view is not None and view.running and not self._context.read_only_reason()
        pending = view.job.control.pending if view is not None else frozenset()
        enabled = running and Request.STOP not in pending  # a run that is stopping can only be discarded
        label = "Resume" if Request.PAUSE in pending else "Pause"
        return {
            **{button: gr.update(interactive=enabled) for button in (*self._actions, self._extend_button)},
            self._pause_button: gr.update(interactive=enabled, value=label),
            self._discard_button: gr.update(interactive=running and Request.DISCARD not in pending),
            self._more_part: gr.update(visible=running),
            self._live_button: gr.update(visible=enabled),
        }


def toggle_pause(control: RunControl) -> None:
    control.resume() if control.asked(Request.PAUSE) else control.ask(Request.PAUSE)


def change_live(control: RunControl, change: Callable[[LiveSettings], LiveSettings]) -> None:
    if control.live is None:
        raise BusyError("The run has not started its first step yet. Try again in a moment.")
    control.live = change(control.live)


class RunPanel:
    """Shows the report of Check, the running run, and the end of the last run."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self.buttons = RunButtons(context, form)
        self._queue = QueueView(context, form)
        # The view of the last run, shared by all pages.
        self._view: RunView | None = None
        # What the controls show, and its version.
        self._controls: tuple[tuple[Any, ...], str] = ((), "")

    def draw(self) -> None:
        with gr.Row(elem_classes=["tp-buttons", "tp-first-buttons"]):
            check_button = gr.Button("Check", elem_id="tp-check")
            # Disabled until the form is restored: an earlier click would start a run with the form's defaults.
            self._start_button = gr.Button("Start", variant="primary", interactive=False, elem_id="tp-start")
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
        self.example_browser = ExampleBrowser(self._context, self._form)
        with gr.Row(elem_classes="tp-buttons"):
            hidden: dict[str, Any] = {"size": "sm", "visible": False}
            self._attach_button = gr.Button("Attach this LoRA", elem_id="tp-run-attach", **hidden)
            self._resume_button = gr.Button("Resume this run", elem_id="tp-run-resume", **hidden)
            self._copy_button = gr.Button("Copy this run's settings to the form", elem_id="tp-copy", **hidden)
        # Hidden boxes. Others follow their changes, because a stream of their own would be one more for each page.
        hidden = {"elem_classes": "tp-hidden"}
        self._beat = gr.HTML(elem_id="tp-beat", **hidden)
        model = self._context.host.model_status().model
        self.model = gr.Textbox(model, label="Model in memory", **hidden)
        self.ended = gr.Textbox(label="The last run, once it has ended", **hidden)
        self.working = gr.Textbox(label="The type of job that uses the model", elem_id="tp-working", **hidden)
        self._host_busy = gr.Textbox(label="Whether a job has the chat's model", elem_id="tp-host-busy", **hidden)
        self._version = gr.Textbox(label="Version number of the run controls", elem_id="tp-version", **hidden)
        self._follow_button = gr.Button("Follow again", elem_id="tp-again", **hidden)

    def connect(self, line: Any, restored: Callable[..., Any]) -> None:
        """Register the event handlers; `line` is the status line, `restored` the end of restoring the form."""
        self._status_line = line
        form = self._form.inputs()
        end_buttons = [self._attach_button, self._resume_button, self._copy_button]
        run = [self._panel, self._charts_part, self._charts, self._samples, *end_buttons]
        results = [self._response, self.made_from, *run]
        check_click, start_click = self.starting_clicks
        options: dict[str, Any] = {"what": "Check", "clears": {self.made_from: None}}
        self.check_event = add_handler(check_click, self._on_check, form, results, **options)
        add_handler(start_click, self._on_start, form, results, what="Start")
        response, attach, resume = self._response, self._attach_button.click, self._resume_button.click
        add_handler(attach, self._on_attach, None, response, what="Attaching the LoRA")
        fields = list(self._form.components.values())
        add_handler(resume, self._on_resume, None, [response, *fields], what="Resuming the run")
        add_handler(self._copy_button.click, self._on_copy, None, fields, what="Copying the settings")
        # The page follows the run from its start on, and again after a lost connection.
        outputs = [self._panel, line, self._charts, self._samples, self._beat, self._version]
        options = {"what": "Showing the run", "clears": {self._charts: "", self._samples: ""}}
        add_handler(restored, self._follow, None, outputs, js=load_script("come_back"), **options)
        add_handler(self._follow_button.click, self._follow, None, outputs, **options)
        own = [self._charts_part, *end_buttons, self._start_button, self.ended, self.model, self.working]
        own.append(self._host_busy)
        controls = [*own, *self.buttons.components, *self._queue.components]
        options = {"what": "Showing the run", "trigger_mode": "always_last"}
        add_handler(self._version.change, self._draw_controls, None, controls, **options)

    def _on_check(self, inputs: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
        """Check the form; the previous report and a failed run are removed at once."""
        context, values = self._context, self._form.values(inputs)
        checking = markup.paragraph("Checking ...", quiet=True)
        yield {self._response: checking, self.made_from: context.made_from(values), **self._without_failed_run()}
        settings, problems = settings_and_problems(values)
        preview = PreviewQuery(SHOWN_EXAMPLES)
        report = context.engine.check_start(settings, context.host, show=preview, problems=problems)
        lr_plan, own = "", context.host.own_process
        if report.memory and own is not None and own.unloads_chat:
            report = report.with_findings([note("", CHAT_IN_MEMORY)])
        if report.examples:
            lr_plan = lr_plan_html(settings, settings.steps.plan(report.examples))
        packing = settings.machine.packing != "off"
        yield {self._response: report_view.html(report, lr_plan, packing=packing)}

    async def _on_start(self, inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Start a run, or show why it cannot start; the answer before and a failed run are removed at once."""
        context, values = self._context, self._form.values(inputs)
        yield {self._response: "", self.made_from: context.made_from(values), **self._without_failed_run()}
        try:
            context.check_writable()
            settings = training_settings(values)
            # Whether the name exists is said before the run starts, as Check does.
            choose_run_folder(settings, context.host.folders, "")
            settings = with_final_name(settings, context.host.folders)
            work = partial(context.engine.train, settings, context.host)
            context.session.train(settings.what.name, context.host, work)
            # Gradio sends the last update once more when a stream ends, and so must not empty the panel again.
            yield {self._response: ""}
        except TrainingProError as error:
            yield {self._response: markup.problem(str(error), markup.outdated_notice("check"))}

    def _without_failed_run(self) -> dict[Any, Any]:
        """Updates that remove the last run from this page if it failed; its result stays otherwise."""
        job = self._context.session.latest("training")
        if job is None or job.end is None or job.end.outcome != "failed":
            return {}
        return {self._panel: "", self._charts: "", self._samples: "", self._charts_part: gr.update(visible=False)}

    def _on_copy(self) -> dict[Any, Any]:
        job = self._context.session.latest("training")
        unchanged = {field: gr.update() for field in self._form.components.values()}  # an empty dict is refused
        if job and (settings := settings_in_force(job.log.since(0))):
            unchanged |= self._form.updates(presets.copied(settings))
        return unchanged

    async def _on_attach(self) -> AsyncIterator[str]:
        async for status in self._context.attach_lora(self._last_run_name()):
            yield status

    def _on_resume(self) -> dict[Any, Any]:
        """Resume the last run; the panel shows its progress, and the form its saving and stopping rules."""
        self._context.resume_run(self._context.host.folders.loras / self._resumable_name())
        return {self._response: "", **self._form.updates(self._context.live.values)}

    def _last_run_name(self) -> str:
        """The name of the last run, if it has a folder among the LoRAs."""
        job = self._context.session.latest("training")
        folder = job.end.folder if job is not None and job.end is not None else None
        return folder.name if folder is not None and folder.parent == self._context.host.folders.loras else ""

    def _resumable_name(self) -> str:
        """The name of the last run; also of one that failed, whose end names no folder."""
        job = self._context.session.latest("training")
        if job is not None and job.end is not None and job.end.outcome == "failed":
            # Before its first step, a run has written nothing, and the folder has an older one of that name.
            began = any(isinstance(event, Step) for event in job.log.since(0))
            is_its_own = began or job is self._context.live.job
            return job.result_name if is_its_own else ""
        return self._last_run_name()

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
        name = "" if running else self._last_run_name()
        resumable = enabled and self._context.can_resume(self._resumable_name())
        # On the standalone page, Try it shows the replies.
        can_chat = enabled and bool(name) and not self._context.host.owns_process
        can_attach = can_chat and loras.has_lora(self._context.host.folders.loras / name)
        return {
            self._charts_part: gr.update(visible=view is not None and view.has_charts),
            self._copy_button: gr.update(visible=view is not None and view.plan is not None),
            self._attach_button: gr.update(visible=can_attach),
            self._resume_button: gr.update(visible=resumable),
            self._start_button: gr.update(interactive=enabled and not running),
            self.ended: view.job.title if view and not running else "",
            self.model: self._context.host.model_status().model,
            self.working: self._working(),
            self._host_busy: "yes" if self._context.session.uses_host_model else "",
            **self.buttons.button_updates(view),
            **self._queue.updates(),
        }

    def _working(self) -> str:
        """The type of job that uses the model; empty while the model is free."""
        job = self._context.session.current
        return job.kind if job else ""
