"""The buttons that control a run: each sends a request to it, and the run panel confirms the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import BusyError, SettingsError
from ...core.jobs import Job, Request, RunControl
from ...settings.definitions import SETTINGS
from ...settings.live_settings import LIVE_KEYS, LiveSettings
from ..base import Form, PageContext, add_handler, confirm_click, markup, private_options
from .run_view import RunView

Action = Callable[[RunControl], object]
EXTRA_EPOCHS = replace(SETTINGS["epochs"], label="More epochs")


class RunButtons:
    """Stop, Pause, Save checkpoint, Sample; and less common buttons under More."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._actions: dict[Any, Action] = {}

    def draw(self) -> None:
        with gr.Row(elem_classes=["tp-buttons", "tp-run-buttons"]):
            self._request_button("Stop", Request.STOP, "tp-stop", variant="stop")
            self._pause_button = self._button("Pause", _toggle_pause, "tp-pause")
            self._request_button("Save checkpoint", Request.CHECKPOINT, "tp-save")
            self._request_button("Sample", Request.SAMPLE, "tp-sample")

    def draw_more(self) -> None:
        self._more_part = gr.Accordion("More", open=False, visible=False, elem_id="tp-more")
        with self._more_part:
            with gr.Row(elem_classes="tp-buttons"):
                self._request_button("Evaluate", Request.EVALUATE, "tp-evaluate", size="sm")
                self._request_button("Wind down", Request.WIND_DOWN, "tp-wind-down", size="sm")
                self._button("Halve learning rate", _halve_rate, "tp-halve", size="sm")
            with gr.Row(elem_classes="tp-buttons"):
                self._epochs = gr.Number(1, label=EXTRA_EPOCHS.label, min_width=90, elem_id="tp-more-epochs")
                self._extend_button = gr.Button("Add epochs", size="sm", interactive=False, elem_id="tp-extend")
                self._request_button("Pause and free memory", Request.FREE_MEMORY, "tp-free", size="sm")
                self._discard_button = gr.Button(
                    "Stop and discard", interactive=False, size="sm", elem_id="tp-throw-away"
                )
            explained = (Markup("<b>{}</b>: {}").format(*entry) for entry in BUTTON_HELP.items())
            gr.HTML(markup.html_list(explained, quiet=True))

    def draw_live(self) -> None:
        """Draw the button that applies the live settings, next to these settings."""
        self._live_button = gr.Button("Apply to the current run", size="sm", visible=False, elem_id="tp-live")

    def _request_button(self, label: str, request: Request, elem_id: str, **options: Any) -> Any:
        return self._button(label, lambda control: control.ask(request), elem_id, **options)

    def _button(self, label: str, action: Action, elem_id: str, **options: Any) -> Any:
        button = gr.Button(label, interactive=False, elem_id=elem_id, **options)
        self._actions[button] = action
        return button

    def connect(self, form: Form, answer: Any) -> None:
        options = {"outputs": answer, "says": answer, **private_options()}
        for button, action in self._actions.items():
            on_click = partial(self._run_action, action)
            add_handler(button.click, on_click, None, what=button.value, **options)
        add_handler(self._extend_button.click, self._extend_run, self._epochs, what="Add epochs", **options)
        discard = partial(self._run_action, lambda control: control.ask(Request.DISCARD))
        confirm_click(
            self._discard_button,
            lambda _: "Delete all that this run has saved?",
            lambda _: {answer: discard()},
            set(),
            [answer],
            says=answer,
            **private_options(),
        )
        on_apply = partial(self._apply_live, form)
        add_handler(self._live_button.click, on_apply, form.inputs(), what="Changing the run", **options)

    def _extend_run(self, epochs: float | None) -> str:
        """Extend the run. The bounds are checked here, because Gradio would show a bare "Error"."""
        try:
            extra = EXTRA_EPOCHS.read(epochs)
        except ValueError as error:
            raise SettingsError([str(error)]) from None
        return self._run_action(lambda control: control.extend(extra))

    def _apply_live(self, form: Form, inputs: Mapping[Any, Any]) -> str:
        """Send the live settings of the form; they all take effect after the next step."""
        values = form.values(inputs)
        changes = {key: values[key] for key in LIVE_KEYS}
        message = self._run_action(lambda control: _change_live(control, lambda live: live.changed(changes)))
        self._context.live_values.update(changes)
        return message

    def _run_action(self, action: Action) -> str:
        """Apply an action to the run. The message is empty, since the run panel confirms the request."""
        action(current_run(self._context).control)
        return ""

    @property
    def components(self) -> list[Any]:
        return [*self._actions, self._discard_button, self._extend_button, self._more_part, self._live_button]

    def button_updates(self, view: RunView | None) -> dict[Any, Any]:
        """Updates that enable and label the buttons for this run."""
        running = view is not None and view.running and not self._context.read_only_reason()
        pending = view.job.control.pending if view is not None else frozenset()
        enabled = running and Request.STOP not in pending  # a run that is stopping can only be discarded
        others = {button: gr.update(interactive=enabled) for button in (*self._actions, self._extend_button)}
        return {
            **others,
            self._pause_button: gr.update(
                interactive=enabled, value="Resume" if Request.PAUSE in pending else "Pause"
            ),
            self._discard_button: gr.update(interactive=running and Request.DISCARD not in pending),
            self._more_part: gr.update(visible=running),
            self._live_button: gr.update(visible=enabled),
        }


def current_run(context: PageContext) -> Job:
    """The running training job; raises BusyError if there is none, or the page is read-only."""
    context.check_writable()
    job = context.session.latest("training")
    if job is None or not job.running:
        raise BusyError("No run is in progress.")
    return job


def _toggle_pause(control: RunControl) -> None:
    control.resume() if control.asked(Request.PAUSE) else control.ask(Request.PAUSE)


def _halve_rate(control: RunControl) -> None:
    _change_live(control, lambda live: replace(live, rate_factor=live.rate_factor / 2))


def _change_live(control: RunControl, change: Callable[[LiveSettings], LiveSettings]) -> None:
    if control.live is None:
        raise BusyError("The run has not started its first step yet. Try again in a moment.")
    control.live = change(control.live)


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
