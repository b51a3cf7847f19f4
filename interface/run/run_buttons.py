"""The buttons that control a run: each sends a request to it, and the run panel confirms the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import BusyError, SettingsError
from ...core.jobs import Request, RunControl
from ...settings.definitions import SETTINGS
from ...settings.live_settings import LIVE_KEYS, LiveSettings
from ..base import Form, PageContext, add_handler, confirm_click, markup
from .run_view import RunView

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
            gr.HTML(markup.html_list(explained, quiet=True))
        own = [self._discard_button, self._extend_button, self._more_part, self._live_button]
        self.components = [*self._actions, *own]
        options = {"outputs": answer, "says": answer}
        for button, action in self._actions.items():
            add_handler(button.click, partial(self._run_action, action), None, what=button.value, **options)
        add_handler(self._extend_button.click, self._extend_run, epochs, what="Add epochs", **options)
        inputs = self._form.inputs()
        add_handler(self._live_button.click, self._apply_live, inputs, what="Changing the run", **options)
        confirm_click(
            self._discard_button,
            lambda _: "Delete all that this run has saved?",
            lambda _: {answer: self._run_action(Request.DISCARD)},
            set(),
            [answer],
            says=answer,
        )

    def _add_button(self, label: str, action: Request | Action, elem_id: str, **options: Any) -> Any:
        button = gr.Button(label, interactive=False, elem_id=elem_id, **options)
        self._actions[button] = action
        return button

    def _extend_run(self, epochs: float | None) -> str:
        """Extend the run. The bounds are checked here, because Gradio would show a bare "Error"."""
        try:
            extra = EXTRA_EPOCHS.read(epochs)
        except ValueError as error:
            raise SettingsError([str(error)]) from None
        return self._run_action(lambda control: control.extend(extra))

    def _apply_live(self, inputs: Mapping[Any, Any]) -> str:
        """Send the live settings of the form; they all take effect after the next step."""
        values = self._form.values(inputs)
        changes = {key: values[key] for key in LIVE_KEYS}
        message = self._run_action(lambda control: change_live(control, lambda live: live.changed(changes)))
        self._context.live_values.update(changes)
        return message

    def _run_action(self, action: Request | Action) -> str:
        """Send a request to the run, or apply an action to it. Empty, since the run panel confirms the request."""
        self._context.check_writable()
        job = self._context.running_job("training")
        if job is None:
            raise BusyError("No run is in progress.")
        if isinstance(action, Request):
            job.control.ask(action)
        else:
            action(job.control)
        return ""

    def button_updates(self, view: RunView | None) -> dict[Any, Any]:
        """Updates that enable and label the buttons for this run."""
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
