"""Test one step: what a run would take in memory and time, tried on the model; and settings that fit the card."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...core.jobs import Probed
from ...settings import presets
from ...settings.parsing import training_settings
from ...train_utils import duration, plural, size
from ..base import Form, Joined, follows, handle, markup, news, outdated, refused, said_last, use


class OneStep:
    """Two buttons in the form: one looks, the other also puts in what fits."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form

    def draw(self) -> None:
        may = not self._joined.host_says_read_only()
        with gr.Row(elem_classes="tp-buttons"):
            self._test = gr.Button("Test one step", size="sm", interactive=may, elem_id="tp-probe")
            self._fit = gr.Button("Fit to my card", size="sm", interactive=may, elem_id="tp-fit")
        self._said = gr.HTML(elem_id="tp-probe-said", elem_classes="tp-said")
        self.made_from = gr.State()

    def connect(self) -> None:
        inputs, outputs = self._form.inputs(), [self._said, self.made_from, *self._form.components.values()]
        trying = {"outputs": outputs, "says": self._said, **follows()}
        handle(self._test.click, partial(self._tried, fit=False), inputs, what="Test one step", **trying)
        handle(self._fit.click, partial(self._tried, fit=True), inputs, what="Fit to my card", **trying)

    async def _tried(self, given: Mapping[Any, Any], *, fit: bool) -> AsyncIterator[dict[Any, Any]]:
        joined, values = self._joined, self._form.values(given)
        try:
            settings = training_settings({**values, "name": values.get("name") or "one-step"})
            joined.refuse_where_read_only()
            work = partial(joined.engine.probe, settings, joined.host)
            job = joined.session.start("probe", "Testing one step", joined.host, work)
        except TrainingProError as error:
            async for said in refused(joined.session, error):
                yield {self._said: said}
            return
        said = ""
        yield {self._said: said}
        async for fresh in news(job):
            yield {self._said: (said := said_last(fresh, said))}
        probed = next((e for e in job.log.since(0) if isinstance(e, Probed)), None)
        if probed is not None:
            changes = probed.fitting if fit else {}
            made_from = joined.made_from({**values, **changes})
            yield {
                self._said: told(probed, values, fitted=fit),
                self.made_from: made_from,
                **self._form.shown(changes),
            }


def told(probed: Probed, values: Mapping[str, Any], *, fitted: bool) -> str:
    """What was found; and what to change so that it fits, with a button unless that is done."""
    figures = markup.figures(
        [
            ("a step", duration(probed.seconds)),
            (f"the run, {probed.steps:,} {plural(probed.steps, 'step')}", duration(probed.run_seconds)),
            *((f"more for {what}", how_long) for what, how_long in probed.beside),
            *([("memory at most, above the model", size(probed.peak))] if probed.peak else []),
            ("expected by Check", size(probed.expected)),
            *([("too many at once", str(probed.too_large))] if probed.too_large else []),
            *([("free for it", size(probed.free))] if probed.free else []),
            *([("largest batch that fits", str(probed.largest_batch))] if probed.largest_batch else []),
        ]
    )
    advice = _advice(probed, values, fitted=fitted)
    mood = markup.mood(probed.peak, probed.free)
    return markup.card("", outdated.notice("probe"), figures, advice, mood=mood)


def _advice(probed: Probed, values: Mapping[str, Any], *, fitted: bool) -> str:
    changes = presets.changes(values, probed.fitting)
    if not changes:
        return markup.paragraph("It fits as it is." if probed.fits else NOTHING_HELPS)
    if fitted:
        return markup.paragraph(f"Changed so that it fits: {'; '.join(changes)}.")
    return f"<p>{'It fits.' if probed.fits else 'It does not fit.'} {use('; '.join(changes), probed.fitting)}</p>"


NOTHING_HELPS = (
    "It does not fit, and no change of batch, checkpointing or optimizer makes it fit. Load the model in 4-bit, "
    "take a lower cutoff or rank, or a smaller model."
)
