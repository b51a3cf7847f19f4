"""The buttons that control a run: each sends a wish to it, and the run panel confirms the wish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import BusyError, TrainingProError
from ...core.jobs import Job, RunControl
from ...settings.definitions import SETTINGS
from ...settings.live_settings import LiveSettings
from ..base import Form, PageContext, add_handler, markup, private_options
from .run_view import RunView

Wish = Callable[[RunControl[Any]], None]
EXTRA_EPOCHS = replace(SETTINGS["epochs"], label="Epochs more")


class RunButtons:
    """Stop, Pause, Save checkpoint, Sample; and less common buttons under More."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._wishes: dict[Any, Wish] = {}

    def draw(self) -> None:
        with gr.Row(elem_classes=["tp-buttons", "tp-run-buttons"]):
            self._button("Stop", RunControl.stop, "tp-stop", variant="stop")
            self._pause_button = self._button("Pause", _toggle_pause, "tp-pause")
            self._button("Save checkpoint", RunControl.save_checkpoint, "tp-save")
            self._button("Sample", RunControl.sample, "tp-sample")

    def draw_more(self) -> None:
        self._more_part = gr.Accordion("More", open=False, visible=False, elem_id="tp-more")
        with self._more_part:
            with gr.Row(elem_classes="tp-buttons"):
                self._button("Evaluate", RunControl.evaluate, "tp-evaluate", size="sm")
                self._button("Wind down", RunControl.wind_down, "tp-wind-down", size="sm")
                self._button("Halve the learning rate", partial(_scale_rate, 0.5), "tp-halve", size="sm")
            with gr.Row(elem_classes="tp-buttons"):
                self._epochs = gr.Number(1, label=EXTRA_EPOCHS.label, min_width=90, elem_id="tp-more-epochs")
                self._extend_button = gr.Button("Extend", size="sm", interactive=False, elem_id="tp-extend")
                self._button("Pause and free the card", RunControl.pause_and_free, "tp-free", size="sm")
                self._button("Stop and throw away", RunControl.throw_away, "tp-throw-away", size="sm")
            gr.HTML(markup.paragraph(EXPLANATION, quiet=True))

    def draw_live(self) -> None:
        """Draw the button that applies the live settings, next to these settings."""
        self._live_button = gr.Button("Use these for the running run", size="sm", visible=False, elem_id="tp-live")

    def _button(self, label: str, wish: Wish, elem_id: str, **options: Any) -> Any:
        button = gr.Button(label, interactive=False, elem_id=elem_id, **options)
        self._wishes[button] = wish
        return button

    def connect(self, form: Form, answer: Any) -> None:
        for button, wish in self._wishes.items():
            on_click = partial(self._send_wish, wish)
            add_handler(button.click, on_click, None, answer, what=button.value, says=answer, **private_options())
        add_handler(
            self._extend_button.click,
            self._extend_run,
            self._epochs,
            answer,
            what="Extend",
            says=answer,
            **private_options(),
        )
        on_apply = partial(self._apply_live, form)
        add_handler(
            self._live_button.click,
            on_apply,
            form.inputs(),
            answer,
            what="Changing the run",
            says=answer,
            **private_options(),
        )

    @property
    def components(self) -> list[Any]:
        return [*self._wishes, self._extend_button, self._more_part, self._live_button]

    def _extend_run(self, epochs: float | None) -> str:
        """Extend the run. The bounds are checked here, because Gradio would show a bare "Error"."""
        try:
            extra = EXTRA_EPOCHS.read(epochs)
        except ValueError as error:
            return markup.problem(str(error))
        return self._send_wish(lambda control: control.extend(extra))

    def _apply_live(self, form: Form, inputs: Mapping[Any, Any]) -> str:
        """Send the live settings of the form; they all take effect after the next step."""
        values = form.values(inputs)
        keys = LiveSettings().values().keys() & values.keys()
        return self._send_wish(
            lambda control: control.change(_live_settings(control).changed({k: values[k] for k in keys}))
        )

    def _send_wish(self, wish: Wish) -> str:
        """Send a wish to the run. Returns an error as HTML, or nothing: the run panel confirms the wish."""
        try:
            job = current_run(self._context)
            wish(job.control)
        except TrainingProError as error:
            return markup.problem(str(error))
        return ""

    def button_updates(self, view: RunView | None) -> dict[Any, Any]:
        """Updates that enable and label the buttons for this run."""
        enabled = view is not None and view.running and not self._context.read_only_reason()
        paused = view is not None and view.job.control.pausing
        pause = {self._pause_button: gr.update(interactive=enabled, value="Go on" if paused else "Pause")}
        buttons = [*self._wishes, self._extend_button]
        others = {button: gr.update(interactive=enabled) for button in buttons if button is not self._pause_button}
        return {
            **others,
            **pause,
            self._more_part: gr.update(visible=enabled),
            self._live_button: gr.update(visible=enabled),
        }


def current_run(context: PageContext) -> Job:
    """The running training job; raises BusyError if there is none, or the page is read-only."""
    context.check_writable()
    job = context.session.latest("training")
    if job is None or not job.running:
        raise BusyError("No run is going on.")
    return job


def _toggle_pause(control: RunControl[Any]) -> None:
    control.go_on() if control.pausing else control.pause()


def _scale_rate(factor: float, control: RunControl[Any]) -> None:
    live = _live_settings(control)
    control.change(replace(live, rate_factor=live.rate_factor * factor))


def _live_settings(control: RunControl[Any]) -> LiveSettings:
    """The current live settings of the run."""
    live: LiveSettings | None = control.live
    if live is None:
        raise BusyError("The run has not begun its first step yet: press again in a moment.")
    return live


EXPLANATION = (
    "Wind down: the learning rate falls to 0 in a few steps, then the run finishes. Extend: more epochs under a "
    "schedule drawn anew. Pause and free the card: a checkpoint is saved and the model leaves the memory until "
    "Go on is pressed. Throw away: what stood under this name before the run comes back."
)
