"""The card of the chosen run: its figures, verdict and loss curve, its checkpoints to click, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.html import html
from ...core.jobs import evidence_verdict, measure_phases
from ...records.folder import (
    MANUAL_SUFFIX,
    PARAMETERS,
    REPORT,
    LoraEntry,
    LoraPart,
    describe_damage,
    read_evidence,
    read_graph,
    read_log,
    read_recalls,
)
from ...records.report import Mark, best_evaluation, draw_curve, read_evaluations, read_steps, read_verdict
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ...settings.live_settings import RATE_FACTOR
from ...train_utils import duration, plural, size
from ..base import fill_button, markup
from ..run import LOSS_LEGEND, VALIDATION_LEGEND, line_chart
from .run_list import CHOSEN_BOX, ListedRun

IGNORED_KEYS = frozenset({"name", "if_exists"})


@dataclass(frozen=True)
class RunRecords:
    """A run, read from its records."""

    entry: LoraEntry

    @cached_property
    def graph(self) -> list[Mapping[str, Any]]:
        return [*read_graph(self.entry.folder)]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run; empty if they cannot be read."""
        try:
            return files.load_settings(self.entry.folder / PARAMETERS).values
        except TrainingProError:
            return {}

    @property
    def validation_ids(self) -> set[str]:
        """Fingerprints of the validation splits."""
        return {str(entry["kept_aside"]) for entry in self.graph if entry.get("kept_aside")}


def comparison_html(first: LoraEntry, second: LoraEntry) -> str:
    """The comparison as HTML."""
    runs = (RunRecords(first), RunRecords(second))
    smoothed = {run.entry.name: [(s.step, s.smoothed) for s in read_steps(run.graph)] for run in runs}
    validation = {run.entry.name: [(e.step, e.loss) for e in read_evaluations(run.graph)] for run in runs}
    charts = line_chart("Smoothed loss", smoothed), line_chart("Validation loss", validation)
    warnings = [markup.paragraph(text, quiet=True) for text in _warnings(*runs)]
    table = markup.table(("", first.name, second.name), [*_figures(*runs), *_settings(*runs)])
    close = fill_button("tp-runs-other", "", "Close comparison")
    return markup.card(f"{first.name} and {second.name}", *charts, *warnings, table, close)


def _warnings(first: RunRecords, second: RunRecords) -> Iterator[str]:
    """Warnings about figures that must not be compared."""
    if first.entry.model != second.entry.model:
        yield "The runs use different models, so their losses can't be compared."
    if first.validation_ids and second.validation_ids and not first.validation_ids & second.validation_ids:
        yield "The runs used different validation splits, so their validation losses can't be compared."
    for run in (first, second):
        if not run.settings:
            yield f"The settings that {run.entry.name} was trained with are unknown."


def _figures(first: RunRecords, second: RunRecords) -> Iterator[tuple[str, str, str]]:
    for label, figure in FIGURES.items():
        left, right = figure(first), figure(second)
        if left or right:
            yield label, left or "-", right or "-"


def _settings(first: RunRecords, second: RunRecords) -> Iterator[tuple[str, str, str]]:
    """Settings that differ, in the order of the form; a missing one counts as its default."""
    if not first.settings or not second.settings:
        return
    defaults = {key: setting.default for key, setting in SETTINGS.items()}
    left, right = ({**defaults, **run.settings} for run in (first, second))
    for key in presets.differing_keys(left, right):
        if key not in IGNORED_KEYS:
            yield SETTINGS[key].label, presets.format_value(key, left[key]), presets.format_value(key, right[key])


def _best_validation_loss(run: RunRecords) -> str:
    best = best_evaluation(read_evaluations(run.graph))
    return f"{best.loss:.4f} at step {best.step:,}" if best else ""


def _recall(run: RunRecords) -> str:
    recalls = read_recalls(run.entry.folder)
    return f"{recalls[-1].learned.recall:.1%}" if recalls else ""


def _evidence(run: RunRecords) -> str:
    """What the LoRA forgot and copies, if it was tested."""
    event = read_evidence(run.entry.folder)
    return evidence_verdict(event, None) if event else ""


def _training_time(run: RunRecords) -> str:
    seconds = sum(step.seconds for step in read_steps(run.graph))
    return duration(seconds) if seconds else ""


def _live_changes(run: RunRecords) -> str:
    """What the user changed while the run went on."""
    words = []
    for change in read_log(run.entry.folder).get("live_changes", ()):
        changed = presets.describe_changes(change["before"], change["after"])
        if RATE_FACTOR in change["after"]:
            changed.append(f"learning rate × {change['after'][RATE_FACTOR]}")
        words.append(f"after step {change['step']}: {', '.join(changed)}")
    return "; ".join(words)


FIGURES: Mapping[str, Callable[[RunRecords], str]] = {
    "model": lambda run: run.entry.model,
    "steps": lambda run: f"{run.entry.step:,}" if run.entry.step else "",
    "smoothed loss at the end": lambda run: "" if run.entry.loss is None else f"{run.entry.loss:.4f}",
    "best validation loss": _best_validation_loss,
    "recall": _recall,
    "tested": _evidence,
    "training time": _training_time,
    "changed during the run": _live_changes,
    "on disk": lambda run: size(run.entry.size),
}


PARTS = """<p>{{ title }}:</p><ul class="tp-parts">{% for name, label, text in parts %}<li>
<button type="button" class="tp-use" data-tp-box="{{ box }}" data-tp-text="{{ name }}"
 data-tp-focus="part {{ name }}" aria-pressed="{{ 'true' if name == chosen else 'false' }}">
{{- label }}</button> {{ text }}</li>{% endfor %}</ul>"""


def run_card(entry: LoraEntry, chosen: str, progress: str = "") -> str:
    """The card of a run; `chosen` is its name or that of one of its checkpoints, `progress` how far it is."""
    damage = list[str]()
    verdict = read_verdict(read_log(entry.folder, damage))
    listed = ListedRun(entry)
    progressed = f"{listed.steps} {plural(entry.steps or entry.step, 'step')}" if entry.step else ""
    facts = " \u00b7 ".join(filter(None, (entry.status, entry.model, progressed, listed.date, size(entry.size))))
    # The loss curve, what the LoRA learned and forgot, and the phases of hybrid batching.
    folder = entry.folder
    graph = read_graph(folder, damage)
    steps, evaluations = read_steps(graph), read_evaluations(graph)
    rates = [step.learning_rate for step in steps]
    marks = [Mark(part.step, part.name) for part in entry.parts if part.step and part.kind != "backup"]
    curve = draw_curve(steps, rates, marks, evaluations) if steps else ""
    phases = markup.phases(measure_phases(steps, evaluations))
    recalls = read_recalls(folder, damage)
    evidence = markup.evidence(read_evidence(folder, damage), recalls)
    colors = LOSS_LEGEND | {"#c98a10": "learning rate"} | ({"#2f9e5b": "checkpoint"} if marks else {})
    colors |= VALIDATION_LEGEND if evaluations else {}
    return markup.card(
        chosen,
        markup.paragraph(facts, quiet=True),
        progress,
        markup.paragraph(verdict) if verdict else "",
        markup.curve(curve, colors),
        evidence,
        markup.recall(recalls),
        phases,
        *(markup.paragraph(sentence, quiet=True) for sentence in describe_damage([*damage, *entry.damage])),
        _parts(entry, chosen),
        _report(entry.folder),
    )


def _parts(entry: LoraEntry, chosen: str) -> str:
    """Buttons that choose the whole run, or one of its checkpoints and backups."""
    if not entry.parts:
        return ""
    whole, *names = entry.names
    parts = [
        (name, part.name, f"{_kind(part)}, {size(part.size)}")
        for name, part in zip(names, entry.parts, strict=True)
    ]
    title = "Use the actions below on"
    parts = [(whole, "The final LoRA of the run", ""), *parts]
    return html(PARTS, title=title, parts=parts, box=CHOSEN_BOX, chosen=chosen)


def _kind(part: LoraPart) -> str:
    return f"{part.kind} that you saved" if part.name.endswith(MANUAL_SUFFIX) else part.kind


def _report(folder: Path) -> str:
    """The report in an iframe, because it is a page with its own styles; it has no scripts."""
    try:
        page = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    frame = Markup('<iframe class="tp-report" title="Report" sandbox="" srcdoc="{}"></iframe>').format(page)
    return markup.fold("The whole report", frame)
