"""The card of the chosen run: its figures, verdict and loss curve, its checkpoints to click, and its report."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from ...core.html import html
from ...core.jobs import measure_phases
from ...records.folder import (
    MANUAL_SUFFIX,
    REPORT,
    LoraEntry,
    LoraPart,
    describe_damage,
    read_evidence,
    read_graph,
    read_log,
    read_recalls,
)
from ...records.report import Mark, draw_curve, read_evaluations, read_steps, read_verdict
from ...train_utils import plural, size
from ..base import markup
from ..run import LOSS_LEGEND, VALIDATION_LEGEND
from .run_list import CHOSEN_BOX, ListedRun

PARTS = """<p>{{ title }}:</p><ul class="tp-parts">{% for name, label, text in parts %}<li>
<button type="button" class="tp-use" data-tp-box="{{ box }}" data-tp-text="{{ name }}"
 data-tp-focus="part {{ name }}" aria-pressed="{{ 'true' if name == chosen else 'false' }}">
{{- label }}</button> {{ text }}</li>{% endfor %}</ul>"""


def run_card(entry: LoraEntry, chosen: str, progress: str = "") -> str:
    """The card of a run; `chosen` is its name or that of one of its checkpoints, `progress` how far it is."""
    damage = list[str]()
    verdict = read_verdict(read_log(entry.folder, damage))
    listed = ListedRun(entry)
    steps = f"{listed.steps} {plural(entry.steps or entry.step, 'step')}" if entry.step else ""
    facts = " \u00b7 ".join(filter(None, (entry.status, entry.model, steps, listed.date, size(entry.size))))
    return markup.card(
        chosen,
        markup.paragraph(facts, quiet=True),
        progress,
        markup.paragraph(verdict) if verdict else "",
        *_curves(entry, damage),
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


def _curves(entry: LoraEntry, damage: list[str]) -> tuple[str, ...]:
    """The loss curve, what the LoRA learned and forgot, and the phases of hybrid batching."""
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
    return markup.curve(curve, colors), evidence, markup.recall(recalls), phases


def _report(folder: Path) -> str:
    """The report in an iframe, because it is a page with its own styles; it has no scripts."""
    try:
        page = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    frame = Markup('<iframe class="tp-report" title="Report" sandbox="" srcdoc="{}"></iframe>').format(page)
    return markup.fold("The whole report", frame)
