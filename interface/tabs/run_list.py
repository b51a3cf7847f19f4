"""The list of runs as HTML: rows to choose by click or key, filtered by words, sorted by a column."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...core.host import Folders
from ...core.html import html
from ...records.folder import GRAPH, LOG, RECALL, LoraEntry, inventory, read_graph, read_recalls
from ...records.remote import read_progress
from ...records.report import best_evaluation, read_evaluations
from ...train_utils import natural_key, plural, size
from ..base import markup

PAGE = 200
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
    # By how much the loss of general text rose.
    forgot: float | None = None

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

    def matches(self, words: Iterable[str]) -> bool:
        """Whether the row contains all of these words."""
        text = f"{self.entry.name} {self.about} {self.date}".casefold()
        return all(word in text for word in words)


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
    "forgot": Column("Forgetting", lambda run: run.forgot, lambda run: _change(run.forgot)),
    "size": Column("Size", lambda run: run.entry.size, lambda run: size(run.entry.size)),
}


@dataclass(frozen=True)
class ListView:
    """What a page shows of the list. Unknown values, which only a forged request sends, count as the default.

    While `picking`, a click on a row chooses the run to compare with.
    """

    words: str = ""
    sort: str = NEWEST_FIRST
    limit: str = ""
    chosen: str = ""
    picking: bool = False

    @property
    def column(self) -> str:
        key = self.sort.removeprefix("-")
        return key if key in COLUMNS else "date"

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-") or self.sort not in COLUMNS

    @property
    def rows(self) -> int:
        return max(PAGE, int(self.limit)) if self.limit.isdecimal() and len(self.limit) < 9 else PAGE


def list_runs(folders: Folders) -> list[ListedRun]:
    """Read all runs from the disk."""
    entries = [_with_progress(entry, folders) for entry in inventory.list_entries(folders)]
    return [ListedRun(entry, validation_loss(entry.folder), *_recall(entry.folder)) for entry in entries]


def _with_progress(entry: LoraEntry, folders: Folders) -> LoraEntry:
    """A run in progress with its own figures, which are newer than those of its last checkpoint."""
    now = read_progress(entry.name, folders) if entry.status == "in progress" else None
    if now is None or not now.step:
        return entry
    return replace(entry, step=now.step, steps=now.steps, loss=now.smoothed_loss)


def validation_loss(folder: Path) -> float | None:
    """The best validation loss of a run, or None if it was never evaluated."""
    try:
        written = (folder / GRAPH).stat()
    except OSError:
        return None
    return _read_validation_loss(folder / GRAPH, written.st_mtime_ns, written.st_size)


@lru_cache(maxsize=4096)
def _read_validation_loss(graph: Path, _written: int, _size: int) -> float | None:
    """Read it from the graph; the time and size of the file are part of the cache's key."""
    best = best_evaluation(read_evaluations(read_graph(graph.parent)))
    return best.loss if best else None


def _recall(folder: Path) -> tuple[float | None, float | None]:
    """The recall of a run, and by how much the loss of general text rose."""
    written = []
    for name in (RECALL, LOG):
        with suppress(OSError):
            status = (folder / name).stat()
            written.append((status.st_mtime_ns, status.st_size))
    return _read_recall(folder, tuple(written)) if written else (None, None)


@lru_cache(maxsize=4096)
def _read_recall(folder: Path, _written: tuple[tuple[int, int], ...]) -> tuple[float | None, float | None]:
    """Read both from the records; the times and sizes of these are part of the cache's key."""
    recalls = read_recalls(folder)
    if not recalls:
        return None, None
    first, last = recalls[0].general_loss, recalls[-1].general_loss
    return recalls[-1].learned.recall, None if first is None or last is None else last - first


def list_html(runs: Sequence[ListedRun], view: ListView) -> str:
    """The list as HTML: the rows, and how many there are."""
    if not runs:
        return markup.paragraph("No runs yet.", quiet=True)
    words = view.words.casefold().split()
    matching = sort_runs([run for run in runs if run.matches(words)], view)
    shown = matching[: view.rows]
    columns = [key for key, column in COLUMNS.items() if key == view.column or any(map(column.text, matching))]
    heads = [_head(key, COLUMNS[key].label, view) for key in columns]
    rows = [_row(run, view, columns) for run in shown]
    table = html(LIST, heads=heads, rows=rows, sort_box=SORT_BOX) if shown else ""
    more = Markup(SHOW_MORE).format(LIMIT_BOX, view.rows + PAGE) if len(shown) < len(matching) else ""
    return markup.join([table, more, markup.paragraph(_summary(runs, matching, len(shown)), quiet=True)])


def sort_runs(runs: Sequence[ListedRun], view: ListView) -> list[ListedRun]:
    """Sort by the chosen column; runs without a value come last in both directions."""
    value = COLUMNS[view.column].value
    known = [run for run in runs if value(run) is not None]
    return sorted(known, key=value, reverse=view.descending) + [run for run in runs if value(run) is None]


def _summary(runs: Sequence[ListedRun], matching: Sequence[ListedRun], shown: int) -> str:
    total = size(sum(run.entry.size for run in runs))
    everything = f"{len(runs)} {plural(len(runs), 'run')}, {total}."
    if not matching:
        return f"No run matches the filter. {everything}"
    return everything if shown == len(runs) else f"{shown} of {everything}"


def _head(key: str, label: str, view: ListView) -> dict[str, str]:
    """A column head; a click sorts by it, and a second click turns the order around."""
    sorted_by = key == view.column
    order = ("descending" if view.descending else "ascending") if sorted_by else "none"
    falling_next = not view.descending if sorted_by else key in ("date", "size", "steps")
    sign = {"descending": " \u2193", "ascending": " \u2191", "none": ""}[order]
    return {"key": key, "label": label, "order": order, "sign": sign, "next": "-" * falling_next + key}


def _row(run: ListedRun, view: ListView, columns: Sequence[str]) -> dict[str, Any]:
    name, chosen = run.entry.name, run.entry.name == run_name(view.chosen)
    box = (not chosen and OTHER_BOX) if view.picking else CHOSEN_BOX
    texts = [COLUMNS[key].text(run) for key in columns if key != "name"]
    return {"name": name, "about": run.about, "texts": texts, "chosen": chosen, "box": box}


def run_name(chosen: str) -> str:
    """The run of 'story' or 'story/checkpoint-40'."""
    return chosen.partition("/")[0]


def _change(rise: float | None) -> str:
    """By how much the loss on general text rose; a loss that did not rise means that nothing was forgotten."""
    if rise is None:
        return ""
    shown = round(rise, 2)
    return f"{shown:+.2f}" if shown > 0 else "none"


def _format(figure: float | None, spec: str = ".3f") -> str:
    return "" if figure is None else f"{figure:{spec}}"
