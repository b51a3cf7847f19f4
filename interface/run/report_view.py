"""The report of Check as HTML, the verdict first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from ...core.engine import PreviewQuery
from ...core.errors import TrainingProError, error_message
from ...core.findings import Suggestion
from ...records.report import svg
from ...settings.definitions import SETTINGS
from ...settings.parsing import training_settings
from ...train_utils import format_count, plural, size
from ..base import (
    Form,
    PageContext,
    ResultInputs,
    add_handler,
    apply_button,
    link_settings,
    markup,
    outdated_notice,
    private_options,
    setting_link,
)
from .charts import legend_entries, slice_map_svg

if TYPE_CHECKING:
    from ...data.report import (
        DatasetReport,
        ExamplePreview,
        LengthHistogram,
        PreviewPiece,
        RowReport,
        SourceReport,
        TextReport,
    )
    from ...data.text import SliceMap

# A name for a form without one; the examples do not depend on it.
PLACEHOLDER_NAME = "examples"


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
        return example.number, example_card(example, report.examples)


def _explain_no_match(report: DatasetReport, request: PreviewQuery) -> str:
    """Say why there is no example to show."""
    if not report.examples:
        return markup.problem("\n".join(report.problems))
    if not request.containing:
        count = f"The data has {format_count(report.examples, 'example')}."
        return markup.paragraph(f"There is no example {request.first:,}. {count}", quiet=True)
    searched = f"in examples 1 to {request.first:,}" if request.backward else f"from example {request.first:,} on"
    return markup.paragraph(f"{request.containing!r} was not found {searched}.", quiet=True)


MAX_MAPS = 6
TEXT_COLUMNS = ("data", "files", "sections", "contains", "blocks", "overlap blocks", "short blocks dropped")
ROW_COLUMNS = ("data", "rows", "examples", "trained tokens", "longest", "dropped or shortened")
_MOODS = {"ready": "good", "ready with advice": "fair", "not ready": "bad"}


def html(report: DatasetReport, plan: str = "", free: int = 0, choices: str = "", *, packing: bool = False) -> str:
    """The report as a card: `choices` is HTML below its problems, `plan` is HTML below its figures.

    `free` is the free memory in bytes. With `packing`, batches have no padding.
    """
    changes = [s for s in report.suggestions if not s.keep]
    suggestions = f", {format_count(len(changes), 'suggestion')}" if changes else ""
    # Expected and free memory and disk, as gauges in green, yellow, or red.
    parts = []
    if memory := report.memory:
        available = f" {size(free)} is available." if free else ""
        parts.append(
            markup.gauge(
                f"Memory for the model and the training steps: {memory.words()}.{available}", memory.total, free
            )
        )
    if disk := report.disk:
        parts.append(markup.gauge(f"Disk: {disk.words()}.", disk.most, disk.free))
    # Padding, stop tokens, and the validation split, one line each.
    lines = []
    if report.padding and not packing:
        shares = ", ".join(f"{_order_name(name)} {100 * n:.0f}%" for name, n in report.padding.items())
        lines.append(
            f"Padding makes the examples of a batch equally long. Share of padding by batch order: {shares}."
        )
    if report.stops:
        lines.append(f"Stop tokens: {report.stops.words()}.")
    if report.kept_aside:
        lines.append(f"Validation split: {report.kept_aside.words()}.")
    # Slice maps of the first few texts.
    maps = [sliced for source in report.sources for sliced in source.maps][:MAX_MAPS]
    legend = markup.legend(legend_entries([sliced for _, sliced in maps]))
    # Suggested settings, each with its reason and a button that applies it; what fits already is folded away.
    fitting = [s for s in report.suggestions if s.keep]
    buttons = [f"{_reason(s)} {apply_button(_button_text(s), s.values)}" for s in changes]
    values = {key: value for s in changes for key, value in s.values.items()}
    use_all = f"<p>{apply_button(f'use {_all_of(changes)} suggestions', values)}</p>" if len(changes) > 1 else ""
    as_it_is = markup.html_list(f"{_reason(s)} Keep <strong>{escape(s.words)}</strong>." for s in fitting)
    fine = plural(len(fitting), "is fine as it is", "are fine as they are")
    title = f"{len(fitting)} {'other ' * bool(changes)}{plural(len(fitting), 'setting')} {fine}"
    folded = f"<details><summary>{title}</summary>{as_it_is}</details>" if fitting else ""
    return markup.card(
        f"Check: {report.verdict}{suggestions}",
        outdated_notice("check"),
        markup.html_list(map(link_settings, report.problems)),
        choices,
        markup.html_list(map(link_settings, report.advice)),
        f"{markup.html_list(buttons)}{use_all}{folded}",
        _notes(report),
        _figures(report) if report.examples else "",
        plan,
        "".join(parts),
        markup.bullets(lines, quiet=True),
        _sources(report),
        _lengths(report.lengths),
        (
            "".join(_map_html(*named_map) for named_map in maps)
            + (f'<p class="tp-quiet tp-key">{legend}</p>' if maps else "")
        ),
        _examples(report.shown),
        mood=_MOODS[report.verdict],
    )


def _figures(report: DatasetReport) -> str:
    characters_lost = sum(s.text.characters_lost for s in report.sources if s.text)
    pairs = [
        ("examples", f"{report.examples:,}"),
        ("trained tokens per epoch", f"{report.trained_tokens:,}"),
        (f"tokens in the longest example (cutoff {report.cutoff})", str(report.longest)),
        ("steps per epoch", f"{report.steps_per_epoch:,}"),
        ("steps in total", f"{report.steps:,}"),
    ]
    return markup.figures(
        [
            *pairs,
            *(
                [("characters lost in slicing", f"{characters_lost:,}")]
                if any(s.text for s in report.sources)
                else []
            ),
        ]
    )


# not added: Markup escapes text that is added to it


def _notes(report: DatasetReport) -> str:
    """What else there is to know, under a heading of its own: a folded list may stand above it."""
    if not report.notes:
        return ""
    return markup.join([markup.paragraph("Good to know:", quiet=True), markup.bullets(report.notes, quiet=True)])


def _all_of(changes: Sequence[Suggestion]) -> str:
    return "both" if len(changes) == 2 else f"all {len(changes)}"


def _button_text(suggestion: Suggestion) -> str:
    """What the button does; line breaks are also counted in words."""
    text, value = f"{suggestion.verb} {suggestion.words}", suggestion.value
    breaks = value.count("\\n") if isinstance(value, str) and not value.replace("\\n", "") else 0
    return f"{text} ({format_count(breaks - 1, 'empty line')})" if breaks > 1 else text


def _reason(suggestion: Suggestion) -> str:
    return f"{setting_link(suggestion.key, SETTINGS[suggestion.key].label)}: {escape(suggestion.why)}"


def _order_name(name: str) -> str:
    return "with packing" if name == "packed" else name.replace("_", " ")


def _lengths(lengths: LengthHistogram) -> str:
    """A histogram of the lengths of the examples."""
    if len(lengths.counts) < 2:
        return ""
    caption = (
        f"Lengths of the examples. The longest has {format_count(lengths.longest, 'token')}. "
        f"Each bar covers a range of {format_count(lengths.width, 'token')}."
    )
    chart = svg.picture(320, 64, "tp-lengths", caption, _bars(lengths), preserveAspectRatio="none")
    return f"{markup.paragraph(caption, quiet=True)}{chart}"


def _bars(lengths: LengthHistogram) -> Iterator[str]:
    width, highest = 320 / len(lengths.counts), max(lengths.counts) or 1
    for n, count in enumerate(lengths.counts):
        height = 64 * count / highest
        tokens = f"{n * lengths.width + 1} to {(n + 1) * lengths.width} tokens"
        title = f"{tokens}: {count} {plural(count, 'example')}"
        yield svg.bar(n * width, 64 - height, width * 0.8, height, title)


def _examples(shown: Sequence[ExamplePreview]) -> str:
    """Examples as the model will see them. Trained tokens are underlined, special tokens framed."""
    if not shown:
        return ""
    title = f"{format_count(len(shown), 'example')}, as the model will see {plural(len(shown), 'it', 'them')}"
    examples = "".join([markup.paragraph(_EXPLANATION, quiet=True), *map(_example_html, shown)])
    return f"<details><summary>{title}</summary>{examples}</details>"


_EXPLANATION = (
    "The tokens that the model is trained on are underlined. Special tokens, such as the stop token, are boxed. "
    "The first token is never trained on, because no token comes before it."
)


def example_card(shown: ExamplePreview, of: int) -> str:
    """One example as a card; `of` is the number of all examples."""
    title = f"Example {shown.number:,} of {of:,}"
    notice = outdated_notice("example")
    return markup.card(
        title,
        notice,
        _example_html(shown),
        markup.paragraph(f"This is what the model will see. {_EXPLANATION}", quiet=True),
    )


def _example_html(shown: ExamplePreview) -> str:
    origin = markup.paragraph(f"{shown.source}, {shown.place}, {format_count(shown.tokens, 'token')}", quiet=True)
    return f'{origin}<pre class="tp-example">{"".join(map(_piece_html, shown.pieces))}</pre>'


def _piece_html(piece: PreviewPiece) -> str:
    style = _TRAINED_STYLE * piece.learned + _SPECIAL_STYLE * piece.special
    text = escape(piece.text)
    return f'<span style="{style}">{text}</span>' if style else text


_TRAINED_STYLE = "background:#2f9e5b33;text-decoration:underline;text-decoration-color:#2f9e5b;"
_SPECIAL_STYLE = "border:1px solid currentColor;border-radius:4px;padding:0 2px 3px;"


def _sources(report: DatasetReport) -> str:
    """A table of the texts and a table of the rows, if there are any."""
    sources = report.sources
    texts = [_table(TEXT_COLUMNS, [_text_cells(s, s.text) for s in sources if s.text])]
    rows = [_table(ROW_COLUMNS, [_row_cells(s, s.rows) for s in sources if s.rows])]
    mixture_line = f"Trained tokens by dataset: {report.mixture}." if len(sources) > 1 else ""
    notes = markup.bullets(dict.fromkeys(note for s in sources for note in s.notes), quiet=True)
    return "".join([*texts, *rows, markup.paragraph(mixture_line) if mixture_line else "", notes])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markup.table(head, rows) if rows else ""


def _text_cells(source: SourceReport, text: TextReport) -> list[str]:
    first, last = (source.files, text.parts), (text.blocks, text.overlaps, text.left_out)
    return [f"{source.name}: {source.what}", *_with_commas(first), text.units_text, *_with_commas(last)]


def _with_commas(numbers: Sequence[int]) -> list[str]:
    return [f"{n:,}" for n in numbers]


def _row_cells(source: SourceReport, rows: RowReport) -> list[str]:
    dropped = "; ".join(f"{count:,} {reason}" for count, reason in rows.exclusion_counts() if count)
    numbers = (rows.rows, source.examples, source.trained_tokens, source.lengths.longest)
    return [f"{source.name}: {source.what}", *(f"{n:,}" for n in numbers), dropped or "nothing"]


def _map_html(name: str, sliced: SliceMap) -> str:
    caption = markup.paragraph(f"{name}: {sliced.words}. {sliced.proof}.", quiet=True)
    return f"{caption}{slice_map_svg(sliced)}"
