"""The buttons that steer a run: each passes a wish on, and the panel says that it is heard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from ..core.control import RunControl
from ..core.errors import TrainingProError
from . import wording
from .gradio_versions import private
from .joined import Joined
from .run_view import RunView

Wish = Callable[[RunControl[Any]], None]


class Steering:
    """Stop, Pause, Save checkpoint, Sample; and under More what is wanted less often."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._wishes: dict[Any, Wish] = {}

    def draw(self) -> None:
        with gr.Row(elem_classes="tp-buttons"):
            self._button("Stop", RunControl.stop, "tp-stop", variant="stop")
            self._pause = self._button("Pause", _pause_or_go_on, "tp-pause")
            self._button("Save checkpoint", RunControl.save_checkpoint, "tp-save")
            self._button("Sample", RunControl.sample, "tp-sample")

    def draw_more(self) -> None:
        self._more = gr.Accordion("More", open=False, visible=False, elem_id="tp-more")
        with self._more, gr.Row(elem_classes="tp-buttons"):
            self._button("Evaluate", RunControl.evaluate, "tp-evaluate", size="sm")
            self._button("Stop and throw away", RunControl.throw_away, "tp-throw-away", size="sm")

    def _button(self, words: str, wish: Wish, elem_id: str, **how: Any) -> Any:
        button = gr.Button(words, interactive=False, elem_id=elem_id, **how)
        self._wishes[button] = wish
        return button

    def connect(self, answer: Any) -> None:
        for button, wish in self._wishes.items():
            button.click(partial(self._ask, wish), None, answer, **private())

    @property
    def components(self) -> list[Any]:
        return [*self._wishes, self._more]

    def _ask(self, wish: Wish) -> str:
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

    def states(self, view: RunView | None) -> dict[Any, Any]:
        """What can be pressed now."""
        running = view is not None and view.running
        may = running and not self._joined.host_says_read_only()
        paused = view is not None and view.job.control.pausing
        pause = {self._pause: gr.update(interactive=may, value="Go on" if paused else "Pause")}
        others = {button: gr.update(interactive=may) for button in self._wishes if button is not self._pause}
        return {**others, **pause, self._more: gr.update(visible=may)}


def _pause_or_go_on(control: RunControl[Any]) -> None:
    control.go_on() if control.pausing else control.pause()
