"""The list of runs as HTML: rows to choose by click or key, filtered by words, sorted by a column."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...core.host import Folders
from ...core.html import html
from ...records.folder import LOG, LoraEntry, inventory, read_graph, read_recalls, run_files
from ...records.remote import read_progress
from ...records.report import best_evaluation, read_evaluations
from ...train_utils import format_count, natural_key, size
from ..base import markup

PAGE = 200  # rows; each press of "Show more" adds as many
NEWEST_FIRST = "-date"
CHOSEN_BOX, OTHER_BOX, SORT_BOX, LIMIT_BOX = "tp-runs-chosen", "tp-runs-other", "tp-runs-sort", "tp-runs-limit"
LIST = """<div class="tp-wide"><table class="tp-table tp-run-list" role="grid" aria-label="Runs">
<thead><tr>{% for head in heads %}<th scope="col" aria-sort="{{ head.order }}">
<button type="button" data-tp-box="{{ sort_box }}" data-tp-text="{{ head.next }}"
 data-tp-focus="sort {{ head.key }}">
{{- head.label }}<i aria-hidden="true">{{ head.sign }}</i></button></th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr aria-selected="{{ 'true' if row.chosen else 'false' }}"
{%- if row.box %} tabindex="0" data-tp-box="{{ row.box }}" data-tp-text="{{ row.name }}"
 data-tp-focus="run {{ row.name }}" data-tp-show="tp-runs-side"{% endif %}>
<td><b>{{ row.name }}</b><span>{{ row.about }}</span></td>
{%- for text in row.texts %}<td>{{ text }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>"""
SHOW_MORE = (
    '<p><button type="button" class="tp-use" data-tp-box="{}" data-tp-text="{}" data-tp-focus="more">'
    "Show more</button></p>"
)


@dataclass(frozen=True)
class ListedRun:
    """A run in the list, with its best validation loss, its recall and what it forgot."""

    entry: LoraEntry
    validation_loss: float | None = None
    recall: float | None = None
    forgot: float | None = None  # by how much the loss of general text rose

    @property
    def about(self) -> str:
        """The second line of the row."""
        parts = (self.entry.status, self.entry.model, self.entry.note.replace("\n", " "))
        return " \u00b7 ".join(part for part in parts if part)

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.entry.when))

    @property
    def steps(self) -> str:
        step, steps = self.entry.step, self.entry.steps
        return f"{step:,} of {steps:,}" if steps and steps != step else f"{step:,}" if step else ""


@dataclass(frozen=True)
class Column:
    """A column: its label, the value that sorts it (None comes last), and its text in a row."""

    label: str
    value: Callable[[ListedRun], Any]
    text: Callable[[ListedRun], str]


COLUMNS: Mapping[str, Column] = {
    "name": Column("Name", lambda run: natural_key(run.entry.name), lambda run: run.entry.name),
    "date": Column("Date", lambda run: run.entry.when, lambda run: run.date),
    "steps": Column("Steps", lambda run: run.entry.step, lambda run: run.steps),
    "loss": Column("Smoothed loss", lambda run: run.entry.loss, lambda run: _format(run.entry.loss)),
    "validation": Column(
        "Validation loss", lambda run: run.validation_loss, lambda run: _format(run.validation_loss)
    ),
    "recall": Column("Recall", lambda run: run.recall, lambda run: _format(run.recall, ".0%")),
    "forgot": Column("Forgetting", lambda run: run.forgot, lambda run: _forgotten(run.forgot)),
    "size": Column("Size", lambda run: run.entry.size, lambda run: size(run.entry.size)),
}


@dataclass(frozen=True)
class ListView:
    """What a page shows of the list. While `picking`, a click on a row chooses the run to compare with."""

    words: str = ""
    sort: str = NEWEST_FIRST
    limit: str = ""
    chosen: str = ""
    picking: bool = False


def list_runs(folders: Folders) -> list[ListedRun]:
    """Read all runs from the disk."""
    runs = []
    for entry in inventory.list_entries(folders):
        now = read_progress(entry.name, folders) if entry.status == "in progress" else None
        if now is not None and now.step:
            # The run's own figures are newer than those of its last checkpoint.
            entry = replace(entry, step=now.step, steps=now.steps, loss=now.smoothed_loss)
        written = []
        for name in (run_files.GRAPH, run_files.RECALL, LOG):
            with suppress(OSError):
                status = (entry.folder / name).stat()
                written.append((name, status.st_mtime_ns, status.st_size))
        runs.append(ListedRun(entry, *read_figures(entry.folder, tuple(written))))
    return runs


@lru_cache(maxsize=4096)
def read_figures(
    folder: Path, _written: tuple[tuple[str, int, int], ...]
) -> tuple[float | None, float | None, float | None]:
    """The best validation loss of a run, its recall, and by how much the loss of general text rose."""
    # A graph has a line for each step, so it is read again only when the time or the size of a file has changed.
    best, recalls = best_evaluation(read_evaluations(read_graph(folder))), read_recalls(folder)
    loss = best.loss if best else None
    if not recalls:
        return loss, None, None
    first, last = recalls[0].general_loss, recalls[-1].general_loss
    return loss, recalls[-1].learned.recall, None if first is None or last is None else last - first


def list_html(runs: Sequence[ListedRun], view: ListView) -> str:
    """The list as HTML: the rows, and how many there are."""
    if not runs:
        return markup.paragraph("No runs yet.", quiet=True)
    sort = view.sort.removeprefix("-")
    column, descending = (sort, view.sort.startswith("-")) if sort in COLUMNS else ("date", True)
    # A forged request may ask for any number of rows.
    limit = max(PAGE, int(view.limit)) if view.limit.isdecimal() and len(view.limit) < 9 else PAGE

    words = view.words.casefold().split()
    matching = []
    for run in runs:
        text = f"{run.entry.name} {run.about} {run.date}".casefold()
        if all(word in text for word in words):
            matching.append(run)
    # Runs without a value come last in both directions.
    value = COLUMNS[column].value
    known = sorted((run for run in matching if value(run) is not None), key=value, reverse=descending)
    shown = [*known, *(run for run in matching if value(run) is None)][:limit]

    heads = []
    columns = [key for key in COLUMNS if key == column or any(map(COLUMNS[key].text, matching))]
    for key in columns:
        # A click sorts by the column, and a second click turns the order around.
        order, falls_next = "none", key in ("date", "size", "steps")
        if key == column:
            order, falls_next = "descending" if descending else "ascending", not descending
        sign = {"descending": " \u2193", "ascending": " \u2191", "none": ""}[order]
        head = {"key": key, "label": COLUMNS[key].label, "order": order, "sign": sign}
        heads.append({**head, "next": f"-{key}" if falls_next else key})
    rows = []
    for run in shown:
        chosen = run.entry.name == run_name(view.chosen)
        box = (not chosen and OTHER_BOX) if view.picking else CHOSEN_BOX
        cells = [COLUMNS[key].text(run) for key in columns if key != "name"]
        rows.append({"name": run.entry.name, "about": run.about, "texts": cells, "chosen": chosen, "box": box})
    table = html(LIST, heads=heads, rows=rows, sort_box=SORT_BOX) if shown else ""
    more = Markup(SHOW_MORE).format(LIMIT_BOX, limit + PAGE) if len(shown) < len(matching) else ""

    summary = f"{format_count(len(runs), 'run')}, {size(sum(run.entry.size for run in runs))}."
    if not matching:
        summary = f"No run matches the filter. {summary}"
    elif len(shown) < len(runs):
        summary = f"{len(shown)} of {summary}"
    return markup.join([table, more, markup.paragraph(summary, quiet=True)])


def run_name(chosen: str) -> str:
    """The run of 'story' or 'story/checkpoint-40'."""
    return chosen.partition("/")[0]


def _forgotten(rise: float | None) -> str:
    """By how much the loss on general text rose; a loss that did not rise means that nothing was forgotten."""
    if rise is None:
        return ""
    shown = round(rise, 2)
    return f"{shown:+.2f}" if shown > 0 else "none"


def _format(figure: float | None, spec: str = ".3f") -> str:
    return "" if figure is None else f"{figure:{spec}}"
