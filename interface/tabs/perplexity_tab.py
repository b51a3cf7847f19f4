"""The Perplexity tab: perplexity of a text or of rows, without a LoRA and with each chosen LoRA."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import PerplexityRequest
from ...core.errors import TrainingProError
from ...core.evaluations_table import COLUMNS, read_rows
from ...core.host import Folders
from ...core.jobs import Advice, Event, Job, Note, PerplexityMeasured, RowScores, Segment
from ...data import dataset_index
from ...data.readers import row_files
from ...records.folder import loras
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.parsing import ROW_SETTING_KEYS, row_settings
from ..base import (
    Form,
    PageContext,
    StopButton,
    add_handler,
    follow_job,
    markup,
    page_load,
    refresh_choices,
)
from ..train import data_menu

STRIP_WIDTH, STRIP_HEIGHT = 640, 18
STRIP = (
    '<svg viewBox="0 0 {width} {height}" class="tp-map tp-along" role="img" aria-label="{label}" '
    'preserveAspectRatio="none">{cells}</svg>'
)
CELL = (
    '<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{height}" class="tp-heat" '
    'fill-opacity="{opacity:.2f}"><title>{tooltip}</title></rect>'
)
STRIPS_EXPLANATION = (
    "{along}: the stronger the color, the lower the perplexity. All strips use the same scale. Hover "
    "over a strip to see the text at that point."
)
ALONG_TEXT, ALONG_ROWS = (
    "Along the text, from start to end",
    "In row order, from first to last",
)
ROW_COLUMNS = ("", "row", "context", "measured text", "perplexity", "tokens correct", "tokens")
ROWS_EXPLANATION = (
    "A row with a much higher perplexity than the others may contain an error. Look at this row in its file. "
    "The ranking takes into account that the perplexity of short rows varies more by chance."
)


def loss_strips(results: Sequence[PerplexityMeasured]) -> Markup:
    """The strips as HTML, all with one scale; empty for a text with a single segment."""
    shown_results = [result for result in results if len(result.stretches) > 1]
    if not shown_results:
        return Markup()
    losses = [segment.loss for result in shown_results for segment in result.stretches]
    scale = (min(losses), max(losses))
    explanation = STRIPS_EXPLANATION.format(along=ALONG_ROWS if shown_results[0].rows else ALONG_TEXT)
    strips = Markup("").join(_labeled_strip(result, *scale) for result in shown_results)
    return markup.paragraph(explanation, quiet=True) + strips


def _labeled_strip(result: PerplexityMeasured, best: float, worst: float) -> Markup:
    label = f"{lora_label(result.lora)}: perplexity along {result.dataset}, from start to end"
    cells = Markup("").join(_cells(result.stretches, best, worst))
    caption = markup.paragraph(f"{lora_label(result.lora)}{_extremes(result)}")
    return caption + Markup(STRIP).format(width=STRIP_WIDTH, height=STRIP_HEIGHT, label=label, cells=cells)


def _extremes(result: PerplexityMeasured) -> str:
    """The best and the worst known segment of a text; rows have tables of their own."""
    if result.rows:
        return ""
    by_loss = sorted(result.stretches, key=lambda segment: segment.loss)
    return f": lowest perplexity {_describe(by_loss[0])}; highest perplexity {_describe(by_loss[-1])}."


def lora_label(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def _cells(segments: Sequence[Segment], best: float, worst: float) -> Iterator[Markup]:
    width = STRIP_WIDTH / len(segments)
    for n, segment in enumerate(segments):
        opacity = 0.06 + 0.94 * (worst - segment.loss) / max(worst - best, 1e-9)
        tooltip = f"{n / len(segments):.0%}: {_describe(segment)}"
        yield Markup(CELL).format(x=n * width, width=width, height=STRIP_HEIGHT, opacity=opacity, tooltip=tooltip)


def _describe(segment: Segment) -> str:
    return f"“{segment.begins} …” (perplexity {segment.perplexity:.4g}, {segment.right:.0%} of tokens correct)"


def row_tables(measured: Sequence[PerplexityMeasured]) -> Markup:
    """The tables as HTML, all but the first folded; empty for a single row or a text."""
    results = [result for result in measured if result.least_known]
    if not results:
        return Markup()
    rows_without = {row.place: row for result in results if result.lora == "-" for row in result.rows}
    tables = Markup("").join(
        _table(result, rows_without if result.lora != "-" else {}, is_open=result is results[0])
        for result in results
    )
    return markup.paragraph(ROWS_EXPLANATION, quiet=True) + tables


def _table(result: PerplexityMeasured, rows_without: Mapping[str, RowScores], *, is_open: bool) -> Markup:
    """One table; `rows_without` has the same rows measured without a LoRA, if that was requested."""
    header = (*ROW_COLUMNS, "without a LoRA") if rows_without else ROW_COLUMNS
    title = f"{lora_label(result.lora)}: rows with the highest and lowest perplexity"
    template = Markup('<details{}><summary>{}</summary><div class="tp-rows">{}</div></details>')
    return template.format(" open" if is_open else "", title, markup.table(header, _rows(result, rows_without)))


def _rows(result: PerplexityMeasured, rows_without: Mapping[str, RowScores]) -> Iterator[tuple[str, ...]]:
    for label, rows in (("highest perplexity", result.least_known), ("lowest perplexity", result.best_known)):
        for n, row in enumerate(rows):
            cells = (
                label if n == 0 else "",
                row.place,
                row.read,
                row.begins,
                *(f"{row.perplexity:.4g}", f"{row.right:.0%}", f"{row.tokens:,}"),
            )
            yield (*cells, _perplexity_without_lora(rows_without.get(row.place))) if rows_without else cells


def _perplexity_without_lora(row: RowScores | None) -> str:
    """Empty if the row is not among the reported ones: very long lists are cut."""
    return f"{row.perplexity:.4g}" if row else ""


RESULT_COLUMNS = ("data", "model", "LoRA", "perplexity", "loss per token", "tokens correct", "tokens", "time")
# How the page names the columns of the host's table.
EARLIER_COLUMNS = ("Model", "LoRAs", "Data", "Perplexity", "Stride", "Window", "Date", "Comment")
MAX_EARLIER_ROWS = 30


class PerplexityTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self.stop_button = StopButton(context, "perplexity", "tp-perplexity-stop")

    def draw(self, tab: gr.Tab) -> None:
        enabled = not self._context.read_only_reason()
        gr.HTML(markup.paragraph(EXPLANATION, quiet=True))
        with gr.Row():
            self._data = gr.Dropdown([], label="Data", allow_custom_value=True, elem_id="tp-perplexity-data")
            options: dict[str, Any] = {
                "multiselect": True,
                "allow_custom_value": True,
                "elem_id": "tp-perplexity-loras",
            }
            self._loras = gr.Dropdown([], label="LoRAs and checkpoints to measure", **options)
        self._rows_note = gr.HTML(elem_id="tp-perplexity-read", elem_classes="tp-said")
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
            self.stop_button.draw()
        self._status = gr.HTML(elem_id="tp-perplexity-said", elem_classes="tp-said")
        self._results = gr.HTML(elem_id="tp-perplexity-found")
        self._earlier = gr.HTML(elem_id="tp-perplexity-earlier")
        form = {self._form.components[key] for key in ROW_SETTING_KEYS if key in self._form.components}
        inputs = {self._data, self._loras, self._include_base, self._window, self._stride, self._comment, *form}
        outputs = [self._status, self._results, self._earlier]
        options = {"what": "Perplexity", "clears": {self._results: ""}}
        add_handler(self._start_button.click, self._on_start, inputs, outputs, **options)
        self.stop_button.connect(self._status)
        opened = [tab.select, page_load()]
        refresh_choices(opened, self._loras, self._lora_names, keep=_existing_names)
        refresh_choices(opened, self._data, self._data_names)
        add_handler(opened, self._earlier_table, None, self._earlier, what="Listing earlier results")
        outputs = [self._rows_note, self._stride]
        changed = [self._data.change, tab.select]
        add_handler(changed, self._on_data_change, {self._data, *form}, outputs, what="Reading the dataset")

    def _lora_names(self) -> list[str]:
        return [*self._context.read_disk(lambda folders: loras.list_loadable(folders.loras), ())]

    def _data_names(self) -> list[str]:
        # Names without labels: in Gradio 4.37 a menu with custom values may send the label of a choice.
        return [name for _, name in data_menu.dataset_choices(self._context)]

    def _on_data_change(self, inputs: Mapping[Any, Any]) -> tuple[str, Any]:
        """Describe how rows are read; rows have no stride."""
        has_rows = self._has_rows(inputs[self._data])
        note = markup.paragraph(describe_row_settings(self._form.values(inputs)), quiet=True) if has_rows else ""
        return note, gr.update(interactive=not has_rows)

    def _has_rows(self, name: Any) -> bool:
        """Whether this dataset has rows; false for an unknown or half-typed name."""

        def has_row_file(folders: Folders) -> bool:
            (data,) = dataset_index.find_datasets([str(name or "")], folders)
            return any(map(row_files.is_row_file, dataset_index.dataset_files(data.path)))

        return self._context.read_disk(has_row_file, False)

    async def _on_start(self, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str, Any]]:
        status, events = "", list[Event]()
        async for status, new_events in follow_job(self._context.session, partial(self._start_job, inputs)):
            events += new_events
            yield status, results_html(events), gr.update()
        if events:
            yield status, results_html(events), self._earlier_table()

    def _start_job(self, inputs: Mapping[Any, Any]) -> Job:
        context = self._context
        context.check_writable()
        # The request of the form. Data are looked up by name, so the page gives no access to other files.
        name = str(inputs[self._data] or "").strip()
        request, settings = (
            (
                PerplexityRequest(
                    data=str(dataset_index.find_datasets([name], self._context.host.folders)[0].path)
                    if name
                    else "",
                    loras=tuple(inputs[self._loras] or ()),
                    include_base=bool(inputs[self._include_base]),
                    stride=0 if self._has_rows(name) else int(inputs[self._stride] or 0),
                    max_length=int(inputs[self._window] or 0),
                    comment=str(inputs[self._comment] or ""),
                )
            ),
            row_settings(self._form.values(inputs)),
        )
        work = partial(context.engine.perplexity, request, settings, context.host)
        return context.session.start("perplexity", f"Perplexity of {Path(request.data).name}", context.host, work)

    def _earlier_table(self) -> str:
        """The last rows of the evaluations table of the host."""
        try:
            recent = read_rows(self._context.host.folders.logs)[-MAX_EARLIER_ROWS:]
        except TrainingProError as error:
            return markup.problem(str(error))
        if not recent:
            return ""
        heading = markup.paragraph("Latest results in logs/evaluations.csv, newest first:", quiet=True)
        return heading + markup.table(EARLIER_COLUMNS, [_earlier_cells(row) for row in reversed(recent)])


def results_html(events: Sequence[Event]) -> str:
    """Notes and results of a job, the lowest perplexity first."""
    texts = [event.text for event in events if isinstance(event, (Note, Advice))]
    notes = markup.paragraph(" ".join(texts), quiet=True) if texts else ""
    results = [event for event in events if isinstance(event, PerplexityMeasured)]
    if not results:
        return notes
    best_first = sorted(results, key=lambda result: result.perplexity)
    table = markup.table(RESULT_COLUMNS, [_row(result) for result in best_first])
    return notes + table + loss_strips(best_first) + row_tables(best_first)


def _row(result: PerplexityMeasured) -> tuple[str, ...]:
    scores = f"{result.perplexity:.4f}", f"{result.loss:.4f}", f"{result.right:.1%}"
    return result.dataset, result.model, result.lora, *scores, f"{result.tokens:,}", f"{result.seconds:.1f} s"


def _earlier_cells(row: Mapping[str, str]) -> list[str]:
    """The cells of a row of the host's table; the perplexity is shortened as in the results above."""
    cells = {column: row.get(column) or "" for column in COLUMNS}
    with suppress(ValueError):  # the file may come from other programs
        cells["Perplexity"] = f"{float(cells['Perplexity']):.4f}"
    return list(cells.values())


def _existing_names(chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in chosen if name in names]


EXPLANATION = (
    "Perplexity measures how well the model predicts a text. Lower is better. On a text that was not in the "
    "training data, it shows whether a LoRA or a checkpoint improved the model. On the training text, it shows "
    "how much was memorized, and where. In chats and tables, only the tokens that you would train on count, and "
    "the rows with the highest and lowest perplexity are listed."
)


ALWAYS_SHOWN = ("format", "train_on")


def describe_row_settings(values: Mapping[str, Any]) -> str:
    """Name format, loss mask, and the settings that differ from their defaults."""
    present = {key: values[key] for key in ROW_SETTING_KEYS if key in values}
    changed = presets.differing_keys({key: SETTINGS[key].default for key in present}, present)
    keys = [key for key in present if key in (*ALWAYS_SHOWN, *changed)]
    text = "; ".join(f"{SETTINGS[key].label}: {presets.format_value(key, present[key])}" for key in keys)
    return (
        "Rows are read with the settings on the Train tab. Perplexity is measured on the tokens that "
        f"you would train on. {text}."
    )
