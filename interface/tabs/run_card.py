"""The card of the chosen run, with its checkpoints to click and its report; and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.html import html
from ...core.jobs import event_words, events
from ...records.folder import (
    PARAMETERS,
    REPORT,
    LoraEntry,
    read_evidence,
    read_graph,
    read_log,
    read_recalls,
    run_files,
)
from ...records.report import Mark, best_evaluation, read_evaluations, read_steps, read_verdict
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ...settings.live_settings import RATE_FACTOR
from ...train_utils import duration, plural, size
from ..base import markup
from ..run import line_chart, loss_curve
from .run_list import CHOSEN_BOX, ListedRun

# Settings that always differ, or say nothing about the training.
IGNORED_KEYS = frozenset({"name", "if_exists"})
PARTS = """<p>Use the actions below on:</p><ul class="tp-parts">{% for name, label, text in parts %}<li>
<button type="button" class="tp-use" data-tp-box="{{ box }}" data-tp-text="{{ name }}"
 data-tp-focus="part {{ name }}" aria-pressed="{{ 'true' if name == chosen else 'false' }}">
{{- label }}</button> {{ text }}</li>{% endfor %}</ul>"""


def run_card(entry: LoraEntry, chosen: str, progress: str = "") -> str:
    """The card of a run; `chosen` is its name or that of one of its checkpoints, `progress` how far it is."""
    folder, damage = entry.folder, list[str]()
    verdict = read_verdict(read_log(folder, damage))
    listed = ListedRun(entry)
    progressed = f"{listed.steps} {plural(entry.steps or entry.step, 'step')}" if entry.step else ""
    facts = " \u00b7 ".join(filter(None, (entry.status, entry.model, progressed, listed.date, size(entry.size))))
    # The loss curve, what the LoRA learned and forgot, and the phases of hybrid batching.
    graph = read_graph(folder, damage)
    steps, evaluations = read_steps(graph), read_evaluations(graph)
    marks = [Mark(part.step, part.name) for part in entry.parts if part.step and part.kind != "backup"]
    rates, words = [step.learning_rate for step in steps], ("learning rate", "checkpoint" if marks else "")
    curve = loss_curve(steps, rates, marks, evaluations, words) if steps else ""
    recalls = read_recalls(folder, damage)
    evidence = markup.evidence(read_evidence(folder, damage), recalls)
    # Buttons that choose the whole run, or one of its checkpoints and backups.
    parts = [(entry.name, "The final LoRA of the run", "")]
    for name, part in zip(entry.names[1:], entry.parts, strict=True):
        kind = f"{part.kind} that you saved" if part.name.endswith(run_files.MANUAL_SUFFIX) else part.kind
        parts.append((name, part.name, f"{kind}, {size(part.size)}"))
    # The report is in an iframe, because it is a page with its own styles; it has no scripts.
    try:
        page = (folder / REPORT).read_text(encoding="utf-8")
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
    graphs = [list(read_graph(run.folder)) for run in runs]
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
            values = files.load_settings(run.folder / PARAMETERS).values
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
    best, recalls = best_evaluation(read_evaluations(graph)), read_recalls(run.folder)
    evidence, seconds = read_evidence(run.folder), sum(step.seconds for step in read_steps(graph))
    live_changes = []
    for change in read_log(run.folder).get("live_changes", ()):
        words = presets.describe_changes(change["before"], change["after"])
        if RATE_FACTOR in change["after"]:
            words.append(f"learning rate × {change['after'][RATE_FACTOR]}")
        live_changes.append(f"after step {change['step']}: {', '.join(words)}")
    return {
        "model": run.model,
        "steps": f"{run.step:,}" if run.step else "",
        "smoothed loss at the end": "" if run.loss is None else f"{run.loss:.4f}",
        "best validation loss": f"{best.loss:.4f} at step {best.step:,}" if best else "",
        "recall": f"{recalls[-1].learned.recall:.1%}" if recalls else "",
        "tested": event_words.evidence_verdict(evidence, None) if evidence else "",
        "training time": duration(seconds) if seconds else "",
        "changed during the run": "; ".join(live_changes),
        "on disk": size(run.size),
    }
