"""The Perplexity tab: perplexity of a text or of rows, without a LoRA and with each chosen LoRA."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import PerplexityRequest
from ...core.errors import TrainingProError
from ...core.evaluations_table import COLUMNS, read_rows
from ...core.jobs import Advice, Event, Note, PerplexityMeasured, Segment
from ...data import dataset_index
from ...records.folder import loras
from ...records.report import charts
from ...settings.parsing import row_settings
from ..base import Form, PageContext, StopButton, add_handler, markup, page_load, refresh_choices
from ..train import data_menu

EXPLANATION = (
    "Perplexity measures how well the model predicts a text. Lower is better. On a text that was not in the "
    "training data, it shows whether a LoRA or a checkpoint improved the model. On the training text, it shows "
    "how much was memorized, and where. Chats and tables are read with the settings of the Train tab: only the "
    "tokens that you would train on count, and the rows with the highest and lowest perplexity are listed."
)
STRIP_WIDTH, STRIP_HEIGHT = 640, 18
STRIPS_EXPLANATION = (
    "{along}: the stronger the color, the lower the perplexity. All strips use the same scale. Hover "
    "over a strip to see the text at that point."
)
ROW_COLUMNS = ("", "row", "context", "measured text", "perplexity", "tokens correct", "tokens")
ROWS_EXPLANATION = (
    "A row with a much higher perplexity than the others may contain an error. Look at this row in its file. "
    "The ranking takes into account that the perplexity of short rows varies more by chance."
)
RESULT_COLUMNS = ("data", "model", "LoRA", "perplexity", "loss per token", "tokens correct", "tokens", "time")
# How the page names the columns of the host's table.
EARLIER_COLUMNS = ("Model", "LoRAs", "Data", "Perplexity", "Stride", "Window", "Date", "Comment")
MAX_EARLIER_ROWS = 30


class PerplexityTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, tab: gr.Tab, form: Form) -> None:
        self._context, self._form = context, form
        enabled = not self._context.read_only_reason()
        gr.HTML(markup.paragraph(EXPLANATION, quiet=True))
        with gr.Row():
            self._data = gr.Dropdown([], label="Data", allow_custom_value=True, elem_id="tp-perplexity-data")
            options: dict[str, Any] = {"multiselect": True, "allow_custom_value": True}
            label = "LoRAs and checkpoints to measure"
            self._loras = gr.Dropdown([], label=label, elem_id="tp-perplexity-loras", **options)
        with gr.Row():
            self._include_base = gr.Checkbox(True, label="Also measure without a LoRA", min_width=260)
            help_text = "0 uses the model's context length, at most 2048 tokens."
            self._window = gr.Number(0, precision=0, label="Window (tokens)", info=help_text)
            options = {
                "info": "For raw text: how far the window moves each time. With 0, it moves by half its size.",
                "elem_id": "tp-perplexity-stride",
            }
            self._stride = gr.Number(0, precision=0, label="Stride (tokens)", **options)
            self._comment = gr.Textbox(label="Comment", max_lines=1)
        with gr.Row(elem_classes="tp-buttons"):
            options = {"variant": "primary", "interactive": enabled, "elem_id": "tp-perplexity-go"}
            self._start_button = gr.Button("Measure", **options)
            self._stop_button = StopButton(self._context, "perplexity", "tp-perplexity-stop")
        self._status = gr.HTML(elem_id="tp-perplexity-said", elem_classes="tp-said")
        self._results = gr.HTML(elem_id="tp-perplexity-found")
        self._earlier = gr.HTML(elem_id="tp-perplexity-earlier")
        request = {self._data, self._loras, self._include_base, self._window, self._stride, self._comment}
        outputs = [self._status, self._results, self._earlier]
        options = {"what": "Perplexity", "clears": {self._results: ""}}
        add_handler(self._start_button.click, self._on_start, request | form.row_inputs(), outputs, **options)
        self._stop_button.connect(self._status)
        opened, context = [tab.select, page_load()], self._context
        refresh_choices(
            opened,
            self._loras,
            lambda: [*context.read_disk(lambda folders: loras.list_loadable(folders.loras), ())],
            keep=lambda chosen, names: [name for name in chosen if name in names],
        )
        # Names without labels: in Gradio 4.37 a menu with custom values may send the label of a choice. Once 4.37
        # goes, `dataset_choices` itself will do.
        refresh_choices(opened, self._data, lambda: [name for _, name in data_menu.dataset_choices(context)])
        add_handler(opened, self._earlier_table, None, self._earlier, what="Listing earlier results")

    async def _on_start(self, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str, Any]]:
        context, status, events = self._context, "", list[Event]()
        # Data are looked up by name, so the page gives no access to other files.
        name = str(inputs[self._data] or "").strip()
        data = str(dataset_index.find_datasets([name], context.host.folders)[0].path) if name else ""
        request = PerplexityRequest(
            data=data,
            loras=tuple(inputs[self._loras] or ()),
            include_base=bool(inputs[self._include_base]),
            stride=int(inputs[self._stride] or 0),
            max_length=int(inputs[self._window] or 0),
            comment=str(inputs[self._comment] or ""),
        )
        settings = row_settings(self._form.values(inputs))
        work, title = partial(context.engine.perplexity, request, settings, context.host), Path(data).name
        async for status, new_events in context.follow_job("perplexity", f"Perplexity of {title}", work):
            events += new_events
            yield status, results_html(events), gr.update()
        if events:
            yield status, results_html(events), self._earlier_table()

    def _earlier_table(self) -> str:
        """The last rows of the evaluations table of the host."""
        try:
            recent = read_rows(self._context.host.folders.logs)[-MAX_EARLIER_ROWS:]
        except TrainingProError as error:
            return markup.problem(str(error))
        if not recent:
            return ""
        rows = []
        for row in reversed(recent):
            cells = {column: row.get(column) or "" for column in COLUMNS}
            with suppress(ValueError):  # the file may come from other programs
                cells["Perplexity"] = f"{float(cells['Perplexity']):.4f}"
            rows.append(list(cells.values()))
        heading = markup.paragraph("Latest results in logs/evaluations.csv, newest first:", quiet=True)
        return heading + markup.table(EARLIER_COLUMNS, rows)


def results_html(events: Sequence[Event]) -> str:
    """Notes and results of a job, the lowest perplexity first."""
    texts = [event.text for event in events if isinstance(event, (Note, Advice))]
    notes = markup.paragraph(" ".join(texts), quiet=True) if texts else Markup()
    results = sorted(
        (event for event in events if isinstance(event, PerplexityMeasured)), key=lambda result: result.perplexity
    )
    if not results:
        return notes
    rows = []
    for result in results:
        scores = f"{result.perplexity:.4f}", f"{result.loss:.4f}", f"{result.right:.1%}"
        sizes = f"{result.tokens:,}", f"{result.seconds:.1f} s"
        rows.append((result.dataset, result.model, result.lora, *scores, *sizes))
    return notes + markup.table(RESULT_COLUMNS, rows) + loss_strips(results) + row_tables(results)


def loss_strips(results: Sequence[PerplexityMeasured]) -> Markup:
    """A strip for each result, all with one scale; empty for a text with a single segment."""
    results = [result for result in results if len(result.stretches) > 1]
    if not results:
        return Markup()
    losses = [segment.loss for result in results for segment in result.stretches]
    best, worst = min(losses), max(losses)
    along = "In row order, from first to last" if results[0].rows else "Along the text, from start to end"
    parts = [markup.paragraph(STRIPS_EXPLANATION.format(along=along), quiet=True)]
    for result in results:
        segments, caption = result.stretches, lora_label(result.lora)
        if not result.rows:  # rows have tables of their own
            low, *_, high = sorted(segments, key=lambda segment: segment.loss)
            caption += f": lowest perplexity {describe_segment(low)}; highest perplexity {describe_segment(high)}."
        width = STRIP_WIDTH / len(segments)
        cells = []
        for n, segment in enumerate(segments):
            opacity = 0.06 + 0.94 * (worst - segment.loss) / max(worst - best, 1e-9)
            tooltip = f"{n / len(segments):.0%}: {describe_segment(segment)}"
            look = {"class_": "tp-heat", "fill_opacity": f"{opacity:.2f}"}
            cells.append(charts.bar(n * width, 0, width, STRIP_HEIGHT, tooltip, **look))
        label = f"{lora_label(result.lora)}: perplexity along {result.dataset}, from start to end"
        look = {"preserveAspectRatio": "none"}
        strip = charts.picture(STRIP_WIDTH, STRIP_HEIGHT, "tp-map tp-along", label, cells, **look)
        parts += [markup.paragraph(caption), Markup(strip)]
    return markup.join(parts)


def lora_label(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def describe_segment(segment: Segment) -> str:
    return f"“{segment.begins} …” (perplexity {segment.perplexity:.4g}, {segment.right:.0%} of tokens correct)"


def row_tables(results: Sequence[PerplexityMeasured]) -> Markup:
    """The tables as HTML, all but the first folded; empty for a single row or a text."""
    results = [result for result in results if result.least_known]
    if not results:
        return Markup()
    # The same rows measured without a LoRA, if that was requested.
    without_lora = (row for result in results if result.lora == "-" for row in result.rows)
    rows_without = {(row.place, row.read, row.begins): row for row in without_lora}  # a chat has several exchanges
    parts = [markup.paragraph(ROWS_EXPLANATION, quiet=True)]
    for result in results:
        compared = bool(rows_without) and result.lora != "-"
        cells = []
        for label, rows in (("highest perplexity", result.least_known), ("lowest perplexity", result.best_known)):
            for n, row in enumerate(rows):
                scores = (f"{row.perplexity:.4g}", f"{row.right:.0%}", f"{row.tokens:,}")
                line = [label if n == 0 else "", row.place, row.read, row.begins, *scores]
                if compared:
                    # It may be missing, because very long lists of rows are cut.
                    without = rows_without.get((row.place, row.read, row.begins))
                    line.append(f"{without.perplexity:.4g}" if without else "")
                cells.append(line)
        table = markup.table((*ROW_COLUMNS, "without a LoRA") if compared else ROW_COLUMNS, cells)
        title = f"{lora_label(result.lora)}: rows with the highest and lowest perplexity"
        folded = Markup('<details{}><summary>{}</summary><div class="tp-rows">{}</div></details>')
        parts.append(folded.format(" open" if result is results[0] else "", title, table))
    return markup.join(parts)
