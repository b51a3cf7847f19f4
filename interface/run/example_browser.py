"""Every example as the model will see it, one at a time: by its number, or by words that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import Showing
from ...core.errors import TrainingProError, in_words
from ...data.report import DatasetReport
from ...settings.parsing import training_settings
from ...train_utils import plural, several
from ..base import Form, Joined, MadeFrom, handle, markup, private
from . import report_view

STAND_IN = "examples"
"""A name for a form that has none yet: what is learned from does not depend on it."""


class Leafing:
    """A folded part of the page that leafs through what the form would train on."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form

    def draw(self) -> None:
        with gr.Accordion("The examples, one by one", open=False, elem_id="tp-leafing"):
            with gr.Row():
                self._number = gr.Number(
                    1, precision=0, label="Example", min_width=100, elem_id="tp-leafing-number"
                )
                self._holding = gr.Textbox(
                    label="Only those that hold", max_lines=1, scale=3, elem_id="tp-leafing-holding"
                )
            with gr.Row(elem_classes="tp-buttons"):
                self._before = gr.Button("Before", size="sm", elem_id="tp-leafing-before")
                self._show = gr.Button("Show", size="sm", elem_id="tp-leafing-show")
                self._next = gr.Button("Next", size="sm", elem_id="tp-leafing-next")
            self._said = gr.HTML(elem_id="tp-leafing-said", elem_classes="tp-said")
            self.made_from = gr.State()

    def connect(self) -> None:
        """After the form is drawn."""
        asked = {*self._form.inputs(), self._number, self._holding}
        told = [self._number, self._said, self.made_from]
        here = [self._show.click, self._number.submit, self._holding.submit]
        for event, by in ((here, 0), (self._next.click, 1), (self._before.click, -1)):
            leafed = partial(self._on_leafed, by=by)
            handle(event, leafed, asked, told, what="Showing the example", says=self._said, **private())

    def _on_leafed(self, given: Mapping[Any, Any], *, by: int) -> tuple[Any, str, MadeFrom]:
        """The example, and what it is made from."""
        return *self._leafed(given, by=by), self._joined.made_from(self._form.values(given))

    def _leafed(self, given: Mapping[Any, Any], *, by: int) -> tuple[Any, str]:
        """The example that stands there, or the next one on or back."""
        wanted = self._wanted(given, by)
        try:
            settings = training_settings({**self._form.values(given), "name": STAND_IN})
            report = self._joined.engine.check(settings, self._joined.host, show=wanted)
        except (TrainingProError, OSError) as error:
            return gr.update(), markup.problem(in_words(error))
        if not report.shown:
            return gr.update(), _nothing(report, wanted)
        (found,) = report.shown
        return found.number, report_view.example(found, report.examples)

    def _wanted(self, given: Mapping[Any, Any], by: int) -> Showing:
        number, holding = int(given[self._number] or 1), str(given[self._holding] or "")
        return Showing(1, max(1, number + by), holding.strip(), back=by < 0)


def _nothing(report: DatasetReport, wanted: Showing) -> str:
    """Why there is nothing to show."""
    if not report.examples:
        return markup.problem("\n".join(report.problems))
    if not wanted.holding:
        there = f"There {plural(report.examples, 'is', 'are')} {several(report.examples, 'example')}"
        return markup.paragraph(f"{there}, none with the number {wanted.first:,}.", quiet=True)
    where = f"Of examples 1 to {wanted.first:,}" if wanted.back else f"From example {wanted.first:,} on"
    return markup.paragraph(f"{where} none holds {wanted.holding!r}.", quiet=True)
