"""Browse the examples as the model will see them, by number or by the text that they contain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from ...core.engine import PreviewQuery
from ...core.errors import TrainingProError, error_message
from ...settings.parsing import training_settings
from ...train_utils import format_count
from ..base import Form, PageContext, ResultInputs, add_handler, markup, private_options
from . import report_view

if TYPE_CHECKING:
    from ...data.report import DatasetReport

PLACEHOLDER_NAME = "examples"
"""A name for a form without one; the examples do not depend on it."""


class ExampleBrowser:
    """A folded part of the page that shows the training examples one by one."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        with gr.Accordion("Browse examples", open=False, elem_id="tp-leafing"):
            with gr.Row():
                self._number = gr.Number(
                    1, precision=0, label="Example", min_width=100, elem_id="tp-leafing-number"
                )
                self._query = gr.Textbox(
                    label="Only examples that contain", max_lines=1, scale=3, elem_id="tp-leafing-holding"
                )
            with gr.Row(elem_classes="tp-buttons"):
                self._previous_button = gr.Button("Previous", size="sm", elem_id="tp-leafing-before")
                self._show_button = gr.Button("Show", size="sm", elem_id="tp-leafing-show")
                self._next_button = gr.Button("Next", size="sm", elem_id="tp-leafing-next")
            self._message = gr.HTML(elem_id="tp-leafing-said", elem_classes="tp-said")
            self.made_from = gr.State()

    def connect(self) -> None:
        """Register the event handlers; call it after the form is drawn."""
        inputs = {*self._form.inputs(), self._number, self._query}
        outputs = [self._number, self._message, self.made_from]
        options = {"what": "Showing the example", "says": self._message, **private_options()}
        show_events = [self._show_button.click, self._number.submit, self._query.submit]
        for event, by in ((show_events, 0), (self._next_button.click, 1), (self._previous_button.click, -1)):
            add_handler(event, partial(self._on_click, by=by), inputs, outputs, **options)

    def _on_click(self, inputs: Mapping[Any, Any], *, by: int) -> tuple[Any, str, ResultInputs]:
        """Show the example, and store its inputs."""
        return *self._find_example(inputs, by=by), self._context.made_from(self._form.values(inputs))

    def _find_example(self, inputs: Mapping[Any, Any], *, by: int) -> tuple[Any, str]:
        """The number and the HTML of the requested example, or of the next or previous one."""
        number, query = int(inputs[self._number] or 1), str(inputs[self._query] or "")
        request = PreviewQuery(1, max(1, number + by), query.strip(), backward=by < 0)
        try:
            settings = training_settings({**self._form.values(inputs), "name": PLACEHOLDER_NAME})
            report = self._context.engine.check(settings, self._context.host, show=request)
        except (TrainingProError, OSError) as error:
            return gr.update(), markup.problem(error_message(error))
        if not report.shown:
            return gr.update(), _explain_no_match(report, request)
        (example,) = report.shown
        return example.number, report_view.example_card(example, report.examples)


def _explain_no_match(report: DatasetReport, request: PreviewQuery) -> str:
    """Say why there is no example to show."""
    if not report.examples:
        return markup.problem("\n".join(report.problems))
    if not request.containing:
        count = f"The data has {format_count(report.examples, 'example')}."
        return markup.paragraph(f"There is no example {request.first:,}. {count}", quiet=True)
    searched = f"in examples 1 to {request.first:,}" if request.backward else f"from example {request.first:,} on"
    return markup.paragraph(f"{request.containing!r} was not found {searched}.", quiet=True)
