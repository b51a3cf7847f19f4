"""Runs as HTML: the list, to choose by click or key, the card of the chosen run, and the comparison of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.host import Folders
from ...core.html import html
from ...core.jobs import event_words, events
from ...records.folder import LoraEntry, inventory, run_files
from ...records.report import Mark, best_evaluation, read_evaluations, read_steps, read_verdict
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ...settings.live_settings import RATE_FACTOR
from ...train_utils import date_and_time, duration, format_count, natural_key, plural, size
from ..base import markup
from ..run import line_chart, loss_curve

MAX_ROWS = 200  # the filter finds the others
NEWEST_FIRST = "-date"
CHOSEN_BOX, OTHER_BOX, SORT_BOX = "tp-runs-chosen", "tp-runs-other", "tp-runs-sort"
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
# Settings that always differ, or say nothing about the training.
IGNORED_KEYS = frozenset({"name", "if_exists"})
PARTS = """<p>Use the actions below on:</p><ul class="tp-parts">{% for name, label, text in parts %}<li>
<button type="button" class="tp-use" data-tp-box="{{ box }}" data-tp-text="{{ name }}"
 data-tp-focus="part {{ name }}" aria-pressed="{{ 'true' if name == chosen else 'false' }}">
{{- label }}</button> {{ text }}</li>{% endfor %}</ul>"""


@dataclass(frozen=True)
class ListedRun:
    """A run in the list, with its validation loss, its recall and what it forgot."""

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
        return date_and_time(self.entry.when)

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


def list_runs(folders: Folders) -> list[ListedRun]:
    runs = []
    for entry in inventory.list_entries(folders):
        written = []
        for name in (run_files.GRAPH, run_files.RECALL, run_files.LOG):
            with suppress(OSError):
                status = (entry.folder / name).stat()
                written.append((name, status.st_mtime_ns, status.st_size))
        runs.append(ListedRun(entry, *read_figures(entry.folder, tuple(written))))
    return runs


@lru_cache(maxsize=4096)
def read_figures(
    folder: Path, _written: tuple[tuple[str, int, int], ...]
) -> tuple[float | None, float | None, float | None]:
    """The validation loss of what a run saved, its recall, and by how much the loss of general text rose."""
    # A graph has a line for each step, so it is read again only when the time or the size of a file has changed.
    saved, recalls = run_files.trained_steps(run_files.read_log(folder)), run_files.read_recalls(folder)
    evaluations = read_evaluations(run_files.read_graph(folder))
    losses = [each.loss for each in evaluations if math.isfinite(each.loss) and (not saved or each.step <= saved)]
    loss = losses[-1] if losses else None
    if not recalls:
        return loss, None, None
    first, last = recalls[0].general_loss, recalls[-1].general_loss
    recall = recalls[-1].learned.recall if recalls[-1].learned.passages else None
    return loss, recall, None if first is None or last is None else last - first


def list_html(
    runs: Sequence[ListedRun],
    words: str = "",
    sort: str = NEWEST_FIRST,
    chosen: str = "",
    *,
    picking: bool = False,
) -> str:
    """The list as HTML: the rows, and how many there are.

    While `picking`, a click on a row chooses the run to compare with.
    """
    if not runs:
        return markup.paragraph("No runs yet.", quiet=True)
    column = sort.removeprefix("-")
    column, descending = (column, sort.startswith("-")) if column in COLUMNS else ("date", True)

    matching = []
    for run in runs:
        text = f"{run.entry.name} {run.about} {run.date}".casefold()
        if all(word in text for word in words.casefold().split()):
            matching.append(run)
    # Runs without a value come last in both directions.
    value = COLUMNS[column].value
    known = sorted((run for run in matching if value(run) is not None), key=value, reverse=descending)
    shown = [*known, *(run for run in matching if value(run) is None)][:MAX_ROWS]

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
        is_chosen = run.entry.name == run_name(chosen)
        box = (not is_chosen and OTHER_BOX) if picking else CHOSEN_BOX
        cells = [COLUMNS[key].text(run) for key in columns if key != "name"]
        row = {"name": run.entry.name, "about": run.about, "texts": cells}
        rows.append({**row, "chosen": is_chosen, "box": box})
    table = html(LIST, heads=heads, rows=rows, sort_box=SORT_BOX) if shown else ""

    summary = f"{format_count(len(runs), 'run')}, {size(sum(run.entry.size for run in runs))}."
    if not matching:
        summary = f"No run matches the filter. {summary}"
    elif len(shown) < len(runs):
        summary = f"{len(shown)} of {summary}"
    if len(shown) < len(matching):
        summary = f"{summary} To find the others, filter or sort the list."
    return markup.join([table, markup.paragraph(summary, quiet=True)])


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


def run_card(entry: LoraEntry, chosen: str, progress: str = "") -> str:
    """The card of a run; `chosen` is its name or that of one of its checkpoints, `progress` how far it is."""
    folder, damage = entry.folder, list[str]()
    verdict = read_verdict(run_files.read_log(folder, damage))
    listed = ListedRun(entry)
    progressed = f"{listed.steps} {plural(entry.steps or entry.step, 'step')}" if entry.step else ""
    facts = " \u00b7 ".join(filter(None, (entry.status, entry.model, progressed, listed.date, size(entry.size))))
    # The loss curve, what the LoRA learned and forgot, and the phases of hybrid batching.
    graph = run_files.read_graph(folder, damage)
    steps, evaluations = read_steps(graph), read_evaluations(graph)
    marks = [Mark(part.step, part.name) for part in entry.parts if part.step and part.kind != "backup"]
    rates, words = [step.learning_rate for step in steps], ("learning rate", "checkpoint" if marks else "")
    curve = loss_curve(steps, rates, marks, evaluations, words) if steps else ""
    tested = folder / chosen.partition("/")[2]  # the run, or one of its checkpoints
    recalls = run_files.read_recalls(tested, damage)
    evidence = markup.evidence(run_files.read_evidence(tested, damage), recalls)
    # Buttons that choose the whole run, or one of its checkpoints and backups.
    parts = [(entry.name, "The final LoRA of the run", "")]
    for name, part in zip(entry.names[1:], entry.parts, strict=True):
        kind = f"{part.kind} that you saved" if part.name.endswith(run_files.MANUAL_SUFFIX) else part.kind
        parts.append((name, part.name, f"{kind}, {size(part.size)}"))
    # The report is in an iframe, because it is a page with its own styles; it has no scripts.
    try:
        page = (folder / run_files.REPORT).read_text(encoding="utf-8")
        frame = Markup('<iframe class="tp-report" title="Report" sandbox="" srcdoc="{}"></iframe>').format(page)
        report = markup.fold("The whole report", frame)
    except (OSError, UnicodeDecodeError):
        report = Markup()
    return markup.card(
        chosen,
        markup.paragraph(facts, quiet=True),
        progress,
        markup.paragraph(verdict) if verdict else "",
        curve,
        evidence,
        markup.recall(recalls),
        markup.phases(events.measure_phases(steps, evaluations)),
        *(
            markup.paragraph(sentence, quiet=True)
            for sentence in run_files.describe_damage([*damage, *entry.damage])
        ),
        html(PARTS, parts=parts, box=CHOSEN_BOX, chosen=chosen) if entry.parts else "",
        report,
    )


def comparison_html(first: LoraEntry, second: LoraEntry) -> str:
    """Two runs side by side: their losses, their figures, and the settings that differ."""
    runs = (first, second)
    graphs = [list(run_files.read_graph(run.folder)) for run in runs]
    smoothed, validation = {}, {}
    for run, graph in zip(runs, graphs, strict=True):
        smoothed[run.name] = [(step.step, step.smoothed) for step in read_steps(graph)]
        validation[run.name] = [(done.step, done.loss) for done in read_evaluations(graph)]
    # Figures that must not be compared.
    warnings = []
    if first.model != second.model:
        warnings.append("The runs use different models, so their losses can't be compared.")
    splits, other_splits = ({str(p["kept_aside"]) for p in graph if p.get("kept_aside")} for graph in graphs)
    if splits and other_splits and not splits & other_splits:
        why = "The runs used different validation splits, so their validation losses can't be compared."
        warnings.append(why)
    settings = []
    for run in runs:
        try:
            values = files.load_settings(run.folder / run_files.PARAMETERS).values
        except TrainingProError:
            values = {}
        if not values:
            warnings.append(f"The settings that {run.name} was trained with are unknown.")
        settings.append(values)
    rows: list[tuple[str, ...]] = []
    one, two = (_figures(run, graph) for run, graph in zip(runs, graphs, strict=True))
    for label in one:
        if one[label] or two[label]:
            rows.append((label, one[label] or "-", two[label] or "-"))
    if all(settings):
        # In the order of the form; a missing setting counts as its default.
        defaults = {key: setting.default for key, setting in SETTINGS.items()}
        left, right = ({**defaults, **values} for values in settings)
        for key in presets.differing_keys(left, right):
            if key not in IGNORED_KEYS:
                shown = (presets.format_value(key, values[key]) for values in (left, right))
                rows.append((SETTINGS[key].label, *shown))
    return markup.card(
        f"{first.name} and {second.name}",
        line_chart("Smoothed loss", smoothed),
        line_chart("Validation loss", validation),
        *(markup.paragraph(text, quiet=True) for text in warnings),
        markup.table(("", first.name, second.name), rows),
        markup.fill_button("tp-runs-other", "", "Close comparison"),
    )


def _figures(run: LoraEntry, graph: Sequence[run_files.GraphRecord]) -> dict[str, str]:
    """The figures of a run by their labels, empty where it has none."""
    best, recalls = best_evaluation(read_evaluations(graph)), run_files.read_recalls(run.folder)
    evidence, seconds = run_files.read_evidence(run.folder), sum(step.seconds for step in read_steps(graph))
    live_changes = []
    for change in run_files.read_log(run.folder).get("live_changes", ()):
        words = presets.describe_changes(change["before"], change["after"])
        if RATE_FACTOR in change["after"]:
            words.append(f"learning rate × {change['after'][RATE_FACTOR]}")
        live_changes.append(f"after step {change['step']}: {', '.join(words)}")
    return {
        "model": run.model,
        "steps": f"{run.step:,}" if run.step else "",
        "smoothed loss at the end": "" if run.loss is None else f"{run.loss:.4f}",
        "best validation loss": f"{best.loss:.4f} at step {best.step:,}" if best else "",
        "recall": f"{recalls[-1].learned.recall:.1%}" if recalls and recalls[-1].learned.passages else "",
        "tested": event_words.evidence_verdict(evidence, None) if evidence else "",
        "training time": duration(seconds) if seconds else "",
        "changed during the run": "; ".join(live_changes),
        "on disk": size(run.size),
    }
