"""Runs that were cut off, offered when the page is opened: go on, keep as it is, throw away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import SavingError, TrainingProError
from ...core.host import Folders
from ...records.folder import PARAMETERS, CutOff, crashed_runs
from ...settings import files
from ...settings.parsing import training_settings
from ..base import Joined, handle, markup, on_load, private

Act = Callable[[CutOff, Folders], str]


class Unfinished:
    """A card that is there only while such runs are."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    def draw(self) -> None:
        self._card = gr.Group(visible=False, elem_id="tp-unfinished")
        with self._card:
            self._said = gr.HTML(elem_id="tp-unfinished-said")
            with gr.Row(elem_classes="tp-buttons"):
                self._run = gr.Dropdown(
                    [], label="Which one", allow_custom_value=True, min_width=160, elem_id="tp-unfinished-run"
                )
                self._go_on = gr.Button("Go on", variant="primary", elem_id="tp-unfinished-go-on")
                self._keep = gr.Button("Keep as it is", elem_id="tp-unfinished-keep")
                self._throw = gr.Button("Throw away", elem_id="tp-unfinished-throw")
        self._done = gr.HTML(elem_id="tp-unfinished-done", elem_classes="tp-said")

    def connect(self) -> None:
        offered = [self._card, self._said, self._run]
        for button, act in (
            (self._go_on, self._going_on),
            (self._keep, self._kept),
            (self._throw, self._thrown_away),
        ):
            outputs = [self._done, *offered]
            told = {"what": button.value, "says": self._done, **private()}
            handle(button.click, partial(self._do, act), {self._run}, outputs, **told)
        looking = {"what": "Looking for runs that were cut off", "says": self._said}
        on_load(self._offered, offered, **looking, clears={self._card: gr.update(visible=True)}, **private())

    def _offered(self) -> tuple[Any, str, Any]:
        runs = self._runs()
        told = markup.card("Cut off", markup.bullets(map(in_words, runs)), mood="fair") if runs else ""
        names = [run.name for run in runs]
        return gr.update(visible=bool(runs)), told, gr.update(choices=names, value=names[0] if names else None)

    def _runs(self) -> list[CutOff]:
        if self._joined.host_says_read_only():
            return []
        try:
            runs = crashed_runs.cut_off_runs(self._joined.host.folders)
        except (TrainingProError, OSError):
            return []
        return [run for run in runs if not self._joined.trains(run.name)]

    def _do(self, act: Act, given: Mapping[Any, Any]) -> tuple[Any, ...]:
        def done(folders: Folders) -> str:
            run = next((run for run in self._runs() if run.name == given[self._run]), None)
            if run is None:
                raise SavingError("That run is not cut off any more. Open the page anew.")
            return act(run, folders)

        return (self._joined.said_of(done), *self._offered())

    def _going_on(self, run: CutOff, folders: Folders) -> str:
        """Under its own settings, to the bit as if it had never been cut off."""
        joined = self._joined
        loaded = files.load(run.folder / PARAMETERS, folders.datasets)
        # Under the name of its folder, which may have been given another one since.
        settings = training_settings({**loaded.values, "name": run.name, "if_exists": "continue"})
        work = partial(joined.engine.train, settings, joined.host, resume="newest")
        joined.session.train(run.name, joined.host, work)
        return f"{run.name} goes on."

    def _kept(self, run: CutOff, folders: Folders) -> str:
        crashed_runs.keep(run, folders)
        return f"{run.name} is a LoRA as of step {run.safe_step}."

    def _thrown_away(self, run: CutOff, folders: Folders) -> str:
        crashed_runs.throw_away(run, folders)
        return f"{run.name} is thrown away."


def in_words(run: CutOff) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at))
    steps = f" of {run.steps}" if run.steps else ""
    return f"{run.name} was cut off at {when}, at step {run.step}{steps}. It can go on: {run.lost}."
