"""The buttons that steer a run: each passes a wish on, and the panel says that it is heard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import BusyError, TrainingProError
from ...core.jobs import Job, RunControl
from ...settings.definitions import SETTINGS
from ...settings.live_settings import Live
from ..base import Form, Joined, handle, markup, private
from .run_view import RunView

Wish = Callable[[RunControl[Any]], None]
MORE = replace(SETTINGS["epochs"], label="Epochs more")


class RunButtons:
    """Stop, Pause, Save checkpoint, Sample; and under More what is wanted less often."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._wishes: dict[Any, Wish] = {}

    def draw(self) -> None:
        with gr.Row(elem_classes=["tp-buttons", "tp-run-buttons"]):
            self._button("Stop", RunControl.stop, "tp-stop", variant="stop")
            self._pause = self._button("Pause", _pause_or_go_on, "tp-pause")
            self._button("Save checkpoint", RunControl.save_checkpoint, "tp-save")
            self._button("Sample", RunControl.sample, "tp-sample")

    def draw_more(self) -> None:
        self._more = gr.Accordion("More", open=False, visible=False, elem_id="tp-more")
        with self._more:
            with gr.Row(elem_classes="tp-buttons"):
                self._button("Evaluate", RunControl.evaluate, "tp-evaluate", size="sm")
                self._button("Wind down", RunControl.wind_down, "tp-wind-down", size="sm")
                self._button("Halve the learning rate", partial(_rate_times, 0.5), "tp-halve", size="sm")
            with gr.Row(elem_classes="tp-buttons"):
                self._epochs = gr.Number(1, label=MORE.label, min_width=90, elem_id="tp-more-epochs")
                self._extend = gr.Button("Extend", size="sm", interactive=False, elem_id="tp-extend")
                self._button("Pause and free the card", RunControl.pause_and_free, "tp-free", size="sm")
                self._button("Stop and throw away", RunControl.throw_away, "tp-throw-away", size="sm")
            gr.HTML(markup.paragraph(EXPLAINED, quiet=True))

    def draw_live(self) -> None:
        """Beside the settings that may change while a run goes on."""
        self._live = gr.Button("Use these for the running run", size="sm", visible=False, elem_id="tp-live")

    def _button(self, words: str, wish: Wish, elem_id: str, **how: Any) -> Any:
        button = gr.Button(words, interactive=False, elem_id=elem_id, **how)
        self._wishes[button] = wish
        return button

    def connect(self, form: Form, answer: Any) -> None:
        for button, wish in self._wishes.items():
            asked = partial(self._ask, wish)
            handle(button.click, asked, None, answer, what=button.value, says=answer, **private())
        handle(self._extend.click, self._longer, self._epochs, answer, what="Extend", says=answer, **private())
        change = partial(self._change, form)
        handle(self._live.click, change, form.inputs(), answer, what="Changing the run", says=answer, **private())

    @property
    def components(self) -> list[Any]:
        return [*self._wishes, self._extend, self._more, self._live]

    def _longer(self, epochs: float | None) -> str:
        """Bounds are ours to tell: Gradio says "Error"."""
        try:
            more = MORE.read(epochs)
        except ValueError as error:
            return markup.problem(str(error))
        return self._ask(lambda control: control.extend(more))

    def _change(self, form: Form, given: Mapping[Any, Any]) -> str:
        """The live settings as they stand in the form, swapped whole after the next step."""
        values = form.values(given)
        live = Live().values().keys() & values.keys()
        return self._ask(lambda control: control.change(_begun(control).changed({k: values[k] for k in live})))

    def _ask(self, wish: Wish) -> str:
        """Pass a wish on to the run; the panel says at once that it is heard."""
        try:
            job = running(self._joined)
            wish(job.control)
        except TrainingProError as error:
            return markup.problem(str(error))
        return ""

    def states(self, view: RunView | None) -> dict[Any, Any]:
        """What can be pressed now."""
        may = view is not None and view.running and not self._joined.host_says_read_only()
        paused = view is not None and view.job.control.pausing
        pause = {self._pause: gr.update(interactive=may, value="Go on" if paused else "Pause")}
        buttons = [*self._wishes, self._extend]
        others = {button: gr.update(interactive=may) for button in buttons if button is not self._pause}
        return {**others, **pause, self._more: gr.update(visible=may), self._live: gr.update(visible=may)}


def running(joined: Joined) -> Job:
    """The run that goes on; BusyError says why there is none to steer."""
    joined.refuse_where_read_only()
    job = joined.session.latest("training")
    if job is None or not job.running:
        raise BusyError("No run is going on.")
    return job


def _pause_or_go_on(control: RunControl[Any]) -> None:
    control.go_on() if control.pausing else control.pause()


def _rate_times(factor: float, control: RunControl[Any]) -> None:
    live = _begun(control)
    control.change(replace(live, rate_factor=live.rate_factor * factor))


def _begun(control: RunControl[Any]) -> Live:
    """The live settings in force."""
    live: Live | None = control.live
    if live is None:
        raise BusyError("The run has not begun its first step yet: press again in a moment.")
    return live


EXPLAINED = (
    "Wind down: the learning rate falls to 0 in a few steps, then the run finishes. Extend: more epochs under a "
    "schedule drawn anew. Pause and free the card: a checkpoint is saved and the model leaves the memory until "
    "Go on is pressed. Throw away: what stood under this name before the run comes back."
)
