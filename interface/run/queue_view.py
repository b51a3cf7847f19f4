"""The queue on the page: a button that adds the form, the waiting runs, and the results of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from ...core.errors import SettingsError, TrainingProError, error_message
from ...core.jobs import AutoStart, Request
from ...records.queue import EndedRun, Queue, QueuedRun, QueueRunner
from ...settings import presets
from ...train_utils import plural
from ..base import RELOAD, Form, PageContext, add_handler, apply_button, markup, private_options

ADD_LABEL = "Add to queue"
START_LABEL = "Start queue"
RESUME_LABEL = "Resume queue"
FOLLOW_LABEL = "Continue the queue after this run"


class QueueView:
    """Shows the queue file and the automatic start of the session; the run panel streams its updates."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self._runner = QueueRunner(context.host, context.engine, context.session)
        self._last_read = Queue()

    def draw_button(self) -> None:
        """Draw the button that adds the form, next to Start."""
        enabled = not self._context.read_only_reason()
        self._add_button = gr.Button(ADD_LABEL, interactive=enabled, elem_id="tp-queue-put")

    def draw(self) -> None:
        with suppress(TrainingProError, OSError):  # an error is shown above the list
            self._runner.recover()
        self._list = gr.HTML(elem_id="tp-queue", elem_classes="tp-said")
        self._start_button = gr.Button(RESUME_LABEL, visible=False, elem_id="tp-queue-go-on")
        self._wish_box = gr.Textbox(label="Queue", elem_id="tp-queue-wish", elem_classes="tp-hidden")

    def connect(self, answer: gr.HTML) -> None:
        """Register the event handlers; errors are shown in the box for the answers of Check and Start."""
        options = {"outputs": answer, "says": answer, **private_options()}
        add_handler(self._add_button.click, self._on_add, self._form.inputs(), what=ADD_LABEL, **options)
        add_handler(
            self._start_button.click,
            partial(self._run_action, lambda runner: runner.start()),
            None,
            what=RESUME_LABEL,
            **options,
        )
        add_handler(self._wish_box.change, self._on_wish, self._wish_box, what="Changing the queue", **options)

    def next_run_name(self) -> str:
        """The name of the run that starts automatically when the current one ends."""
        auto_start, job = self._context.session.auto_start, self._context.session.current
        if not auto_start.enabled or (job is not None and job.control.asked(Request.STOP)):
            return ""
        return next((run.name for run in self._read_queue()[0].waiting if not run.skipped), "")

    def _on_add(self, inputs: Mapping[Any, Any]) -> Iterator[str]:
        yield markup.paragraph("Checking the settings first ...", quiet=True)
        values = self._form.values(inputs)
        yield self._run_action(lambda runner: (self._context.parse_settings(values), runner.add(values)))

    def _on_wish(self, wish: str) -> str:
        try:
            action, number = json.loads(wish)["queue"].split()
            act = partial(_ACTIONS[action], number=int(number))
        except (ValueError, LookupError, TypeError, AttributeError):  # not written by the script of the page
            raise SettingsError([f"The page sent a request that can't be read. {RELOAD}"]) from None
        return self._run_action(act)

    def _run_action(self, action: Callable[[QueueRunner], object]) -> str:
        """Run an action on the queue. Returns an error as HTML, or nothing: the list shows the result."""
        try:
            self._context.check_writable()
            action(self._runner)
        except (TrainingProError, OSError) as error:
            return markup.problem(error_message(error))
        return ""

    @property
    def components(self) -> list[Any]:
        """What `updates` changes."""
        return [self._list, self._start_button, self._add_button]

    def state(self) -> tuple[Any, ...]:
        """The queue and the state of the session; the page is updated when it changes."""
        auto_start = self._context.session.auto_start
        return (
            *self._read_queue(),
            auto_start.enabled,
            auto_start.pending,
            auto_start.off_reason,
            self._training(),
        )

    def updates(self) -> dict[Any, Any]:
        """The list and the labels of the buttons."""
        auto_start, training = self._context.session.auto_start, self._training()
        queue, problem = self._read_queue()
        waiting = len(queue.waiting)
        can_start = bool(waiting) and not (auto_start.enabled and (training or auto_start.pending))
        list_html = queue_html(queue, auto_start, training=training)
        label = _start_label(waiting, auto_start, training=training)
        return {
            self._list: (markup.problem(problem) if problem else "") + list_html,
            self._start_button: gr.update(visible=can_start, value=label),
            self._add_button: gr.update(value="Add to queue after this run" if training else ADD_LABEL),
        }

    def _training(self) -> bool:
        job = self._context.session.current
        return job is not None and job.kind == "training"

    def _read_queue(self) -> tuple[Queue, str]:
        """The queue and what is damaged in it; if it cannot be read, the last one and the error."""
        try:
            self._last_read, problem = self._runner.read_with_damage()
        except (TrainingProError, OSError) as error:
            return self._last_read, error_message(error)
        return self._last_read, problem


def queue_html(queue: Queue, auto_start: AutoStart, *, training: bool) -> str:
    """The waiting runs, what happens next, and the results of finished runs."""
    if not queue.waiting and not queue.done:
        return ""
    waiting = len(queue.waiting)
    title = f"Queue: {waiting} {plural(waiting, 'waiting run')}" if waiting else "Queue: no waiting runs"
    parts = [
        f'<ol class="tp-queue">{"".join(f"<li>{_row_html(run)}</li>" for run in queue.waiting)}</ol>'
        if waiting
        else "",
        markup.paragraph(_explain_next(auto_start, training=training), quiet=True) if waiting else "",
        markup.html_list(map(_done_html, queue.done), quiet=True),
    ]
    return markup.card(title, *parts)


def _row_html(run: QueuedRun) -> str:
    """A waiting run with its buttons: up, down, remove, and back into the form."""
    data, epochs = presets.format_value("data", run.values.get("data", ())), run.values.get("epochs", 0)
    steps = f"{run.steps:,} {plural(run.steps, 'step')}"
    if not run.values.get("max_steps"):
        steps += f" in {presets.format_value('epochs', epochs)} {plural(epochs, 'epoch')}"
    buttons = "".join(_row_button(sign, action, label, run) for sign, action, label in _ROW_BUTTONS)
    skipped = markup.paragraph(f"Skipped: {run.skipped}", quiet=True) if run.skipped else ""
    description = f"<b>{escape(run.name)}</b> {escape(f'{data}; {steps}; {run.model}')}"
    return f"{description} {buttons}{apply_button('Load into form', run.values)}{skipped}"


def _row_button(sign: str, action: str, label: str, run: QueuedRun) -> str:
    tooltip = escape(f"{label}: {run.name}")
    return (
        f'<button type="button" class="tp-use" data-tp-queue="{action} {run.number}" title="{tooltip}" '
        f'aria-label="{tooltip}">{sign}</button>'
    )


def _done_html(run: EndedRun) -> str:
    return f"{escape(f'{run.name}: {run.outcome}. {run.text}')}{apply_button('Load into form', run.values)}"


def _explain_next(auto_start: AutoStart, *, training: bool) -> str:
    if auto_start.pending and not training:
        return "The next run starts as soon as the model is free."
    if auto_start.enabled and training:
        return "When the current run ends or fails, the next run starts. Pressing Stop also stops the queue."
    if auto_start.enabled:
        return f"The queue starts after the next run that you start, or right away if you press {START_LABEL}."
    reason = auto_start.off_reason or "After a restart, the queue does not start by itself."
    if training:
        return f"{reason} To continue the queue when the current run ends, press {FOLLOW_LABEL}."
    return f"{reason} Press {RESUME_LABEL}."


def _start_label(waiting: int, auto_start: AutoStart, *, training: bool) -> str:
    label = START_LABEL if auto_start.enabled else FOLLOW_LABEL if training else RESUME_LABEL
    return f"{label} ({waiting} waiting)"


_ROW_BUTTONS = (("\u2191", "up", "Up"), ("\u2193", "down", "Down"), ("\u2715", "away", "Remove"))
_ACTIONS: Mapping[str, Callable[..., None]] = {
    "up": lambda runner, number: runner.move(number, -1),
    "down": lambda runner, number: runner.move(number, 1),
    "away": lambda runner, number: runner.remove(number),
}
