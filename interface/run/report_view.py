"""The report of Check as a card, the verdict first, and the folded part that browses the training examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import PreviewQuery
from ...records.report import charts
from ...settings.definitions import SETTINGS
from ...settings.parsing import training_settings
from ...train_utils import format_count, plural, size
from ..base import Form, PageContext, add_handler, markup
from .charts import slice_maps

if TYPE_CHECKING:
    from ...data.report import DatasetReport, ExamplePreview, LengthHistogram, SourceReport
    from ...data.rows import preferences

TEXT_COLUMNS = ("data", "files", "sections", "contains", "blocks", "overlap blocks", "short blocks dropped")
ROW_COLUMNS = ("data", "rows", "examples", "trained tokens", "longest", "dropped or shortened")
DECIDED = {"": "", "switch": ", switched by you", "drop": ", dropped by you"}
MOODS = {"ready": "good", "ready with advice": "fair", "not ready": "bad"}
BARS_WIDTH, BARS_HEIGHT = 320, 64
EXPLANATION = (
    "The tokens that the model is trained on are underlined. Special tokens, such as the stop token, are boxed. "
    "The first token is never trained on, because no token comes before it."
)
TRAINED_STYLE = "background:#2f9e5b33;text-decoration:underline;text-decoration-color:#2f9e5b;"
SPECIAL_STYLE = "border:1px solid currentColor;border-radius:4px;padding:0 2px 3px;"


class ExampleBrowser:
    """A folded part of the page that shows the training examples, one by one, and lets users decide on pairs."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        with gr.Accordion("Browse examples", open=False, elem_id="tp-leafing"):
            with gr.Row():
                self._number = gr.Number(
                    1, precision=0, label="Example", min_width=100, elem_id="tp-leafing-number"
                )
                self._query = gr.Textbox(
                    label="Only examples that contain", max_lines=1, scale=3, elem_id="tp-leafing-holding"
                )
            with gr.Row(elem_classes="tp-buttons"):
                previous_button = gr.Button("Previous", size="sm", elem_id="tp-leafing-before")
                show_button = gr.Button("Show", size="sm", elem_id="tp-leafing-show")
                next_button = gr.Button("Next", size="sm", elem_id="tp-leafing-next")
                look: dict[str, Any] = {"size": "sm", "visible": False}
                switch_button = gr.Button("Switch replies", elem_id="tp-leafing-switch", **look)
                drop_button = gr.Button("Drop or keep", elem_id="tp-leafing-drop", **look)
            message = gr.HTML(elem_id="tp-leafing-said", elem_classes="tp-said")
            self.made_from, self._pair = gr.State(), gr.State("")
        inputs = {*self._form.inputs(), self._number, self._query, self._pair}
        outputs = [self._number, message, self.made_from, self._pair, switch_button, drop_button]
        options: dict[str, Any] = {"what": "Showing the example", "clears": {self.made_from: None}}
        show_events = [show_button.click, self._number.submit, self._query.submit]
        for event, by in ((show_events, 0), (next_button.click, 1), (previous_button.click, -1)):
            add_handler(event, partial(self._show, by=by), inputs, outputs, **options)
        add_handler(switch_button.click, partial(self._decide, decision="switch"), inputs, outputs, **options)
        add_handler(drop_button.click, partial(self._decide, decision="drop"), inputs, outputs, **options)

    def _decide(self, inputs: Mapping[Any, Any], *, decision: preferences.Decision) -> tuple[Any, ...]:
        """Switch or drop the preference that is shown, or take that back."""
        from ...data.rows import preferences  # with half of the readers: the page is drawn without

        self._context.check_writable()
        preferences.decide(self._context.host.folders.pairs, inputs[self._pair], decision)
        return self._show(inputs, by=0)

    def _show(self, inputs: Mapping[Any, Any], *, by: int) -> tuple[Any, ...]:
        """Show the requested example, or the next or previous one, and store its inputs."""
        number, query, values = inputs[self._number], inputs[self._query], self._form.values(inputs)
        made_from = self._context.made_from(values)
        first, query = max(1, int(number or 1) + by), str(query or "").strip()
        request = PreviewQuery(1, first, query, backward=by < 0, with_dropped=True)
        # The examples do not depend on the name, which may be missing.
        settings = training_settings({**values, "name": "examples"})
        if settings.preferences.compares:  # all pairs can be switched and dropped, also those to be held out
            settings = replace(settings, aside=replace(settings.aside, eval_share=0.0))
        report = self._context.engine.check(settings, self._context.host, show=request)
        shown, pair = gr.update(), ""
        if report.shown:
            (example,) = report.shown
            shown, pair = example.number, example.pair
            from ...data.rows import preferences

            decided = preferences.read_decisions(self._context.host.folders.pairs).get(pair, "")
            answer = example_card(example, report.examples, DECIDED[decided])
        elif not report.examples:
            answer = markup.problem("\n".join(report.problems))
        elif query:
            searched = f"in examples 1 to {first:,}" if by < 0 else f"from example {first:,} on"
            answer = markup.paragraph(f"{query!r} was not found {searched}.", quiet=True)
        else:
            count = format_count(report.examples, "example")
            answer = markup.paragraph(f"There is no example {first:,}. The data has {count}.", quiet=True)
        for_pairs = gr.update(visible=bool(pair))
        return shown, answer, made_from, pair, for_pairs, for_pairs


def html(report: DatasetReport, plan: str = "", *, packing: bool = False) -> str:
    """The report as a card: `plan` is HTML below its figures. With `packing`, batches have no padding."""
    changes = [suggestion for suggestion in report.suggestions if not suggestion.keep]
    count = f", {format_count(len(changes), 'suggestion')}" if changes else ""
    notes = markup.bullets(report.notes, quiet=True)
    # Notes have a heading of their own, because a folded list may stand above them.
    notes_heading = markup.paragraph("Good to know:", quiet=True) if report.notes else ""
    # Expected and free memory and disk, as gauges in green, yellow, or red.
    gauges = []
    if memory := report.memory:
        available = f" {size(report.free_memory)} is available." if report.free_memory else ""
        text = f"Memory for the model and the training steps: {memory.words()}.{available}"
        gauges.append(markup.gauge(text, memory.total, report.free_memory))
    if disk := report.disk:
        gauges.append(markup.gauge(f"Disk: {disk.words()}.", disk.most, disk.free))
    lines = []
    if report.padding and not packing:
        names = {name: "with packing" if name == "packed" else name.replace("_", " ") for name in report.padding}
        shares = ", ".join(f"{names[name]} {100 * share:.0f}%" for name, share in report.padding.items())
        lines.append(
            f"Padding makes the examples of a batch equally long. Share of padding by batch order: {shares}."
        )
    if report.stops:
        lines.append(f"Stop tokens: {report.stops.words()}.")
    if report.kept_aside:
        lines.append(f"Validation split: {report.kept_aside.words()}.")
    shown, examples = report.shown, ""
    if shown:
        title = f"{format_count(len(shown), 'example')}, as the model will see {plural(len(shown), 'it', 'them')}"
        explained = [markup.paragraph(EXPLANATION, quiet=True), *map(example_html, shown)]
        examples = markup.fold(title, markup.join(explained))
    return markup.card(
        f"Check: {report.verdict}{count}",
        markup.outdated_notice("check"),
        markup.bullets(map(markup.link_settings, report.problems)),
        markup.bullets(map(markup.link_settings, report.advice)),
        _suggestions(report),
        notes_heading,
        notes,
        _figures(report) if report.examples else "",
        plan,
        *gauges,
        markup.bullets(lines, quiet=True),
        _sources(report.sources, report.mixture),
        _lengths(report.lengths),
        slice_maps([named for source in report.sources if source.text for named in source.text.maps]),
        examples,
        mood=MOODS[report.verdict],
    )


def _suggestions(report: DatasetReport) -> str:
    """Suggested settings, each with its reason and a button that applies it; what fits already is folded away."""
    changes, fitting = [], []
    values: dict[str, Any] = {}
    for suggestion in report.suggestions:
        link = markup.setting_link(suggestion.key, SETTINGS[suggestion.key].label)
        reason = Markup("{}: {} ").format(link, suggestion.why)
        if suggestion.keep:
            fitting.append(reason + Markup("Keep <strong>{}</strong>.").format(suggestion.words))
            continue
        value = suggestion.value
        text = f"{'turn' if isinstance(value, bool) else 'use'} {suggestion.words}"
        # Line breaks are hard to count with the eye, so they are also given as a number of empty lines.
        breaks = value.count("\\n") if isinstance(value, str) and not value.replace("\\n", "") else 0
        if breaks > 1:
            text += f" ({format_count(breaks - 1, 'empty line')})"
        changes.append(reason + markup.apply_button(text, suggestion.values))
        values |= suggestion.values
    parts = [markup.bullets(changes)]
    if len(changes) > 1:
        every = "both" if len(changes) == 2 else f"all {len(changes)}"
        parts.append(Markup("<p>{}</p>").format(markup.apply_button(f"use {every} suggestions", values)))
    if fitting:
        other, settings = "other " if changes else "", plural(len(fitting), "setting")
        fine = plural(len(fitting), "is fine as it is", "are fine as they are")
        parts.append(markup.fold(f"{len(fitting)} {other}{settings} {fine}", markup.bullets(fitting)))
    return markup.join(parts)


def _figures(report: DatasetReport) -> str:
    texts = [source.text for source in report.sources if source.text]
    figures = [
        ("examples", f"{report.examples:,}"),
        ("trained tokens per epoch", f"{report.trained_tokens:,}"),
        (f"tokens in the longest example (cutoff {report.cutoff})", str(report.longest)),
        ("steps per epoch", f"{report.steps_per_epoch:,}"),
        ("steps in total", f"{report.steps:,}"),
    ]
    if texts:
        figures.append(("characters lost in slicing", f"{sum(text.characters_lost for text in texts):,}"))
    return markup.figures(figures)


def _sources(sources: Sequence[SourceReport], mixture: str) -> str:
    """A table of the texts and a table of the rows, if there are any."""
    texts, rows, parts = [], [], []
    for source in sources:
        what = f"{source.name}: {source.what}"
        if text := source.text:
            blocks = (f"{number:,}" for number in (text.blocks, text.overlaps, text.left_out))
            texts.append([what, f"{source.files:,}", f"{text.parts:,}", text.units_text, *blocks])
        if of_rows := source.rows:
            numbers = (of_rows.rows, source.examples, source.trained_tokens, source.lengths.longest)
            dropped = "; ".join(f"{count:,} {reason}" for count, reason in of_rows.exclusion_counts() if count)
            rows.append([what, *(f"{number:,}" for number in numbers), dropped or "nothing"])
    if texts:
        parts.append(markup.table(TEXT_COLUMNS, texts))
    if rows:
        parts.append(markup.table(ROW_COLUMNS, rows))
    if len(sources) > 1:
        parts.append(markup.paragraph(f"Trained tokens by dataset: {mixture}."))
    notes = dict.fromkeys(note for source in sources for note in source.notes)
    return markup.join([*parts, markup.bullets(notes, quiet=True)])


def _lengths(lengths: LengthHistogram) -> str:
    """A histogram of the lengths of the examples."""
    if len(lengths.counts) < 2:
        return ""
    width, highest = BARS_WIDTH / len(lengths.counts), max(lengths.counts) or 1
    bars = []
    for n, count in enumerate(lengths.counts):
        height = BARS_HEIGHT * count / highest
        tokens = f"{n * lengths.width + 1} to {(n + 1) * lengths.width} tokens"
        title = f"{tokens}: {count} {plural(count, 'example')}"
        bars.append(charts.bar(n * width, BARS_HEIGHT - height, width * 0.8, height, title))
    caption = (
        f"Lengths of the examples. The longest has {format_count(lengths.longest, 'token')}. "
        f"Each bar covers a range of {format_count(lengths.width, 'token')}."
    )
    look = {"preserveAspectRatio": "none"}
    chart = charts.picture(BARS_WIDTH, BARS_HEIGHT, "tp-lengths", caption, bars, **look)
    return f"{markup.paragraph(caption, quiet=True)}{chart}"


def example_card(shown: ExamplePreview, of: int, decided: str = "") -> str:
    """One example as a card; `of` is the number of all examples, and `decided` ends the title."""
    explained = markup.paragraph(f"This is what the model will see. {EXPLANATION}", quiet=True)
    title = f"Example {shown.number:,} of {of:,}{decided}"
    return markup.card(title, markup.outdated_notice("example"), example_html(shown), explained)


def example_html(shown: ExamplePreview) -> str:
    """An example as the model will see it. Trained tokens are underlined, special tokens framed."""
    origin = markup.paragraph(f"{shown.source}, {shown.place}, {format_count(shown.tokens, 'token')}", quiet=True)
    pieces = []
    for piece in shown.pieces:
        style = TRAINED_STYLE * piece.learned + SPECIAL_STYLE * piece.special
        text = escape(piece.text)
        pieces.append(f'<span style="{style}">{text}</span>' if style else text)
    return f'{origin}<pre class="tp-example">{"".join(pieces)}</pre>'
