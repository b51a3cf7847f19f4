"""Test one step: measure memory and time of one training step, and find settings that fit the GPU."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.jobs import Job, ProbeDone, probe_extra_times
from ...settings import presets
from ...settings.parsing import training_settings
from ...train_utils import duration, plural, size
from ..base import Form, PageContext, add_handler, apply_button, follow_job, markup, outdated_notice


class ProbePanel:
    """Two buttons in the form: one measures, the other also fills in settings that fit."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        enabled = not self._context.read_only_reason()
        with gr.Row(elem_classes="tp-buttons"):
            self._test_button = gr.Button("Test one step", size="sm", interactive=enabled, elem_id="tp-probe")
            self._fit_button = gr.Button("Fit to my GPU", size="sm", interactive=enabled, elem_id="tp-fit")
        self._result = gr.HTML(elem_id="tp-probe-said", elem_classes="tp-said")
        self.made_from = gr.State()

    def connect(self) -> None:
        inputs, outputs = self._form.inputs(), [self._result, self.made_from, *self._form.components.values()]
        for button, fit in ((self._test_button, False), (self._fit_button, True)):
            add_handler(button.click, partial(self._on_click, fit=fit), inputs, outputs, what=button.value)

    async def _on_click(self, inputs: Mapping[Any, Any], *, fit: bool) -> AsyncIterator[dict[Any, Any]]:
        context, values, probed = self._context, self._form.values(inputs), None

        def start() -> Job:
            settings = training_settings({**values, "name": values.get("name") or "one-step"})
            context.check_writable()
            work = partial(context.engine.probe, settings, context.host)
            return context.session.start("probe", "Testing one step", context.host, work)

        async for message, events in follow_job(context.session, start):
            yield {self._result: message}
            probed = next((event for event in events if isinstance(event, ProbeDone)), probed)
        if probed is not None:
            changes = probed.fitting if fit else {}
            yield {
                self._result: probe_card(probed, values, fitted=fit),
                self.made_from: context.made_from({**values, **changes}),
                **self._form.updates(changes),
            }


def probe_card(probed: ProbeDone, values: Mapping[str, Any], *, fitted: bool) -> str:
    """The result of the probe, with a button for settings that fit unless they are already filled in."""
    figures = markup.figures(
        [
            ("time per step", duration(probed.seconds)),
            (f"whole run, {probed.steps:,} {plural(probed.steps, 'step')}", duration(probed.run_seconds)),
            *((f"additional time for {what}", how_long) for what, how_long in probe_extra_times(probed)),
            *([("peak memory in addition to the model", size(probed.peak))] if probed.peak else []),
            ("estimated by Check", size(probed.expected)),
            *([("batch size that does not fit", str(probed.too_large))] if probed.too_large else []),
            *([("free memory", size(probed.free))] if probed.free else []),
            *([("largest batch that fits", str(probed.largest_batch))] if probed.largest_batch else []),
        ]
    )
    changes = presets.describe_changes(values, probed.fitting)
    if not changes:
        advice = markup.paragraph("The run fits in memory without changes." if probed.fits else NOTHING_HELPS)
    elif fitted:
        advice = markup.paragraph(f"Settings changed so that the run fits in memory: {'; '.join(changes)}.")
    else:
        answer = "The run fits in memory." if probed.fits else "The run does not fit in memory."
        advice = Markup("<p>{} {}</p>").format(answer, apply_button("; ".join(changes), probed.fitting))
    mood = markup.usage_mood(probed.peak, probed.free)
    return markup.card("", outdated_notice("probe"), figures, advice, mood=mood)


NOTHING_HELPS = (
    "The run does not fit in memory. Changing the batch size, gradient checkpointing or the optimizer would not "
    "help. Load the model in 4-bit, use a lower cutoff or rank, or use a smaller model."
)
