"""The queue on the page: a button that adds the form, the waiting runs, and the results of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import TrainingProError, error_message
from ...core.html import html
from ...core.jobs import AutoStart, Request
from ...records.queue import Queue, QueueRunner
from ...settings import presets
from ...train_utils import format_count, plural
from ..base import Form, PageContext, add_handler, markup

ADD_LABEL = "Add to queue"
START_LABEL = "Start queue"
RESUME_LABEL = "Resume queue"
FOLLOW_LABEL = "Continue the queue after this run"
# By the word that clicks.js sends with the number of a run: the sign of the button, its tooltip, what it does.
ROW_BUTTONS: Mapping[str, tuple[str, str, Callable[[QueueRunner, int], object]]] = {
    "up": ("\u2191", "Up", lambda runner, number: runner.move(number, -1)),
    "down": ("\u2193", "Down", lambda runner, number: runner.move(number, 1)),
    "away": ("\u2715", "Remove", QueueRunner.remove),
}
WAITING = """<ol class="tp-queue">{% for run, about, more in rows %}<li><b>{{ run.name }}</b> {{ about }}
{% for action, button in buttons.items() %}
<button type="button" class="tp-use"
 data-tp-queue="{{ action }} {{ run.number }}" title="{{ button[1] }}: {{ run.name }}"
 aria-label="{{ button[1] }}: {{ run.name }}">{{ button[0] }}</button>
{%- endfor %}{{ more }}</li>{% endfor %}</ol>"""


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

    def draw(self, answer: gr.HTML) -> None:
        """Draw the queue, and register the event handlers; errors are shown in the box `answer`."""
        with suppress(TrainingProError, OSError):  # an error is shown above the list
            self._runner.recover()
        self._list = gr.HTML(elem_id="tp-queue", elem_classes="tp-said")
        self._start_button = gr.Button(RESUME_LABEL, visible=False, elem_id="tp-queue-go-on")
        request_box = gr.Textbox(label="Queue", elem_id="tp-queue-wish", elem_classes="tp-hidden")
        self.components = [self._list, self._start_button, self._add_button]
        add_handler(self._add_button.click, self._on_add, self._form.inputs(), answer, what=ADD_LABEL)
        start = partial(self._run_action, QueueRunner.start)
        add_handler(self._start_button.click, start, None, answer, what=RESUME_LABEL)
        add_handler(request_box.change, self._on_request, request_box, answer, what="Changing the queue")

    def next_run_name(self) -> str:
        """The name of the run that starts automatically when the current one ends."""
        auto_start, job = self._context.session.auto_start, self._context.session.current
        if not auto_start.enabled or (job is not None and job.control.asked(Request.STOP)):
            return ""
        return next((run.name for run in self._read_queue()[0].waiting if not run.skipped), "")

    def state(self) -> tuple[Any, ...]:
        """The queue and the state of the session; the page is updated when it changes."""
        auto_start = self._context.session.auto_start
        state = (auto_start.enabled, auto_start.pending, auto_start.off_reason, self._context.in_run)
        return (*self._read_queue(), *state)

    def updates(self) -> dict[Any, Any]:
        """The list and the labels of the buttons."""
        auto_start, training = self._context.session.auto_start, self._context.in_run
        queue, problem = self._read_queue()
        waiting = len(queue.waiting)
        can_start = bool(waiting) and not (auto_start.enabled and (training or auto_start.pending))
        shown = [markup.problem(problem)] if problem else []
        label = START_LABEL if auto_start.enabled else FOLLOW_LABEL if training else RESUME_LABEL
        return {
            self._list: markup.join([*shown, queue_html(queue, auto_start, training=training)]),
            self._start_button: gr.update(visible=can_start, value=f"{label} ({waiting} waiting)"),
            self._add_button: gr.update(value="Add to queue after this run" if training else ADD_LABEL),
        }

    def _on_add(self, inputs: Mapping[Any, Any]) -> Iterator[str]:
        yield markup.paragraph("Checking the settings first ...", quiet=True)
        yield self._run_action(lambda runner: runner.add(self._form.values(inputs)))

    def _on_request(self, request: str) -> str:
        action, number = json.loads(request)["queue"].split()
        (_, _, act), run_number = ROW_BUTTONS[action], int(number)
        return self._run_action(lambda runner: act(runner, run_number))

    def _run_action(self, action: Callable[[QueueRunner], object]) -> str:
        """Run an action on the queue; it returns nothing, since the list shows the result."""
        self._context.check_writable()
        action(self._runner)
        return ""

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
    rows = []
    for run in queue.waiting:
        data, epochs = presets.format_value("data", run.values.get("data", ())), run.values.get("epochs", 0)
        steps = format_count(run.steps, "step")
        if not run.values.get("max_steps"):
            steps += f" in {presets.format_value('epochs', epochs)} {plural(epochs, 'epoch')}"
        skipped = [markup.paragraph(f"Skipped: {run.skipped}", quiet=True)] if run.skipped else []
        more = markup.join([markup.apply_button("Load into form", run.values), *skipped])
        rows.append((run, f"{data}; {steps}; {run.model}", more))
    waiting = [html(WAITING, rows=rows, buttons=ROW_BUTTONS)] if rows else []
    if rows:
        waiting.append(markup.paragraph(_explain_next(auto_start, training=training), quiet=True))
    ended = Markup("{}: {}. {}{}")
    done = (
        ended.format(run.name, run.outcome, run.text, markup.apply_button("Load into form", run.values))
        for run in queue.done
    )
    count = format_count(len(rows), "waiting run") if rows else "no waiting runs"
    return markup.card(f"Queue: {count}", *waiting, markup.bullets(done, quiet=True))


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
