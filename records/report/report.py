"""report.html: the report on a run, in a single self-contained page, from the template of this name."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.html import html
from ...core.jobs import (
    Advice,
    CheckpointSaved,
    EvaluationDone,
    Event,
    EvidenceMeasured,
    JobEnded,
    LiveSettingsChanged,
    MachineUse,
    Note,
    PlanChanged,
    RecallMeasured,
    RunPlanned,
    SampleGenerated,
    Step,
    event_text,
    evidence_table,
    evidence_verdict,
    measure_phases,
    part_table,
    peak_memory_of,
    phase_table,
    recall_table,
    settings_in_force,
)
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...train_utils import duration, known_columns, size
from ..folder import LoraEntry
from .curve_svg import Mark, draw_curve
from .graph_file import read_evaluations, read_steps
from .recall_strip import draw_recall_strip
from .report_style import CSS
from .verdict import judge_run, read_verdict

LISTED_EVENTS = (
    RunPlanned,
    Note,
    Advice,
    CheckpointSaved,
    EvaluationDone,
    RecallMeasured,
    EvidenceMeasured,
    PlanChanged,
    LiveSettingsChanged,
    JobEnded,
)
KEYS_SHOWN_ELSEWHERE = ("name", "data")
EVALUATION_COLUMNS = (
    "Step",
    "Loss",
    "Perplexity",
    "Tokens predicted correctly",
    "Context gain",
    "Loss on each dataset",
)
TEMPLATE = Path(__file__).with_name("report.html")
Row = tuple[str, ...]
"""The texts of a row of a table."""
CURVES = (
    ("--smoothed", "smoothed loss"),
    ("--loss", "loss"),
    ("--kept", "validation loss"),
    ("--rate", "planned learning rate"),
    ("--mark", "checkpoint"),
)


@dataclass(frozen=True)
class ReportData:
    """The data of a report: the events of a run, and the records in its folder."""

    events: Sequence[Event]
    ended: JobEnded
    graph: Sequence[Mapping[str, Any]]
    samples: Sequence[SampleGenerated] = ()
    log: Mapping[str, Any] = field(default_factory=dict)
    lora: LoraEntry | None = None

    @property
    def plan(self) -> RunPlanned:
        """The last plan of the run."""
        return next(event for event in reversed(self.events) if isinstance(event, RunPlanned))


def render_report(data: ReportData) -> str:
    """Render the report as HTML."""
    began = next(event.at for event in data.events if isinstance(event, RunPlanned))
    curve, legend = _curve(data)
    return html(
        TEMPLATE.read_text(encoding="utf-8"),
        css=CSS,
        data=data,
        began_at=_format_time(began),
        ended_at=_format_time(data.ended.at),
        reasons=_reasons(data.ended),
        verdict=_verdict(data),
        figures=_figures(data),
        curve=curve,
        legend=legend,
        samples=_samples_by_prompt(data.samples),
        printable=_printable,
        event_rows=_event_rows(data),
        phases=phase_table(measure_phases(read_steps(data.graph), read_evaluations(data.graph))),
        evaluation_rows=_evaluation_rows(data.graph),
        **_recall(data),
        **_evidence(data),
        run_rows=_run_rows(data),
        setting_rows=_setting_rows(settings_in_force(data.events)),
        disk_rows=_disk_rows(data.lora) if data.lora else (),
    )


def _reasons(ended: JobEnded) -> list[str]:
    """Return why the run ended, without the verdict, which has a paragraph of its own."""
    lines = [line for line in ended.text.splitlines() if line.strip()]
    return lines[:1] if ended.verdict else lines


def _verdict(data: ReportData) -> str:
    """Return the verdict of the log, or for a run that broke off a verdict on its steps."""
    text = read_verdict(data.log)
    if not text and read_steps(data.graph):
        text = judge_run(
            data.graph,
            {},
            evaluates=bool(data.plan.evaluate_every),
            recalls=_recalls(data),
            planned=_planned_steps(data),
        ).text
    return text


def _figures(data: ReportData) -> list[tuple[str, str]]:
    steps, evaluations, peak = read_steps(data.graph), read_evaluations(data.graph), peak_memory_of(data.events)
    if not steps:
        return []
    first, last = steps[0], steps[-1]
    seconds = sum(s.seconds for s in steps)
    cards = [event.cards for event in data.events if isinstance(event, MachineUse)]
    kept_aside = [_loss_text(evaluation.loss) for evaluation in evaluations]
    pairs = [
        ("steps", f"{last.step} of {_planned_steps(data)}"),
        ("epochs", f"{last.epoch:.2f}"),
        ("smoothed loss", f"{_loss_text(first.smoothed)} → {_loss_text(last.smoothed)}"),
        ("validation loss", f"{kept_aside[0]} → {kept_aside[-1]}" if kept_aside else ""),
        ("training time", duration(seconds)),
        *run_speed(steps),
        (peak_name(max(cards, default=0)), size(peak) if peak else ""),
        ("on disk", size(data.lora.size) if data.lora else ""),
    ]
    return [(name, value) for name, value in pairs if value]


def peak_name(cards: int) -> str:
    """On a CPU the peak is that of the whole program, so it is higher than Check's estimate for the run."""
    return "peak GPU memory" if cards else "peak memory of the program"


def run_speed(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """The mean speed of these steps."""
    seconds, tokens = sum(s.seconds for s in steps), sum(s.tokens for s in steps)
    speed = f"{tokens / seconds:,.0f}" if seconds else "-"
    return [("time per step", duration(seconds / max(1, len(steps)))), ("tokens per second", speed)]


def _planned_steps(data: ReportData) -> int:
    step_counts = [event.steps for event in data.events if isinstance(event, PlanChanged)]
    return step_counts[-1] if step_counts else data.plan.steps


def _curve(data: ReportData) -> tuple[str, list[tuple[str, str]]]:
    """Draw the curve as in the interface, with the steps from before the run was resumed, and its legend."""
    steps, evaluations = read_steps(data.graph), read_evaluations(data.graph)
    if not steps:
        return "", []
    rates = next((e.rates for e in reversed(data.events) if isinstance(e, (RunPlanned, PlanChanged))), ())
    parts = data.lora.parts if data.lora else ()
    marks = [Mark(part.step, part.name) for part in parts if part.step and part.kind != "backup"]
    has_curve = {"--kept": bool(evaluations), "--mark": bool(marks), "--rate": bool(rates)}
    legend = [(color, words) for color, words in CURVES if has_curve.get(color, True)]
    return draw_curve(steps, rates, marks, evaluations), legend


def _samples_by_prompt(
    samples: Sequence[SampleGenerated],
) -> list[tuple[str, list[SampleGenerated], SampleGenerated]]:
    """Each prompt with its earlier samples, the latest first, and its last one."""
    by_prompt: dict[str, list[SampleGenerated]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    for answers in by_prompt.values():
        answers.sort(key=lambda sample: sample.step)
    return [(prompt, [s for s in answers[-2::-1] if s.step], answers[-1]) for prompt, answers in by_prompt.items()]


def _printable(text: str) -> str:
    """Replace unprintable characters, as they may occur in a sample, with U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _event_rows(data: ReportData) -> list[tuple[str, tuple[str, str, str]]]:
    """The events with time and step, in the words of the console, each after the CSS class of its words."""
    step, rows = 0, []
    for event in [*data.events, data.ended]:
        if isinstance(event, Step):
            step = event.step
        elif isinstance(event, LISTED_EVENTS) and (line := event_text(event)):
            text = line.partition("\n")[0] if isinstance(event, JobEnded) else line
            css_class = "advice" if isinstance(event, (Advice, JobEnded)) else ""
            rows.append((css_class, (_format_time(event.at, data), str(step or ""), text)))
    return rows


def _evaluation_rows(graph: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The evaluations, their header first; with the loss of each dataset if there are several."""
    rows: list[Row] = [EVALUATION_COLUMNS]
    for e in read_evaluations(graph):
        gain = "" if e.context_gain is None else f"{e.context_gain:.4f}"
        by_source = ", ".join(f"{name} {_loss_text(loss)}" for name, loss in e.by_source.items())
        figures = (_loss_text(e.loss), f"{e.perplexity:.4g}", f"{e.accuracy:.1%}", gain, by_source)
        rows.append((str(e.step), *figures))
    return known_columns(rows)


def _recall(data: ReportData) -> dict[str, Any]:
    """The recall at each measurement, along the data, and by chapter at the last one."""
    measured = _recalls(data)
    return {
        "recall_rows": recall_table(measured),
        "part_rows": part_table(measured[-1]) if measured else (),
        "strip": draw_recall_strip(measured[-1].strip) if measured else "",
    }


def _evidence(data: ReportData) -> dict[str, Any]:
    """What the LoRA learned, forgot and copies, if it was tested."""
    event = next((event for event in reversed(data.events) if isinstance(event, EvidenceMeasured)), None)
    if event is None:
        return {"evidence_rows": (), "evidence_verdict": ""}
    recalls = _recalls(data)
    verdict = evidence_verdict(event, recalls[-1] if recalls else None)
    return {"evidence_rows": evidence_table(event), "evidence_verdict": verdict}


def _recalls(data: ReportData) -> list[RecallMeasured]:
    return [event for event in (*data.plan.earlier, *data.events) if isinstance(event, RecallMeasured)]


def _run_rows(data: ReportData) -> list[Row]:
    log, report, versions = data.log, data.log.get("data"), data.log.get("versions")
    counts: Mapping[str, Any] = report if isinstance(report, Mapping) else {}
    pairs = [
        ("Data", ", ".join(map(str, _as_list(data.plan.settings.get("data"))))),
        ("Examples", counts.get("examples")),
        ("Tokens", _format_counts(counts.get("tokens"), counts.get("trained_tokens"))),
        ("Cutoff", counts.get("cutoff")),
        ("Model", f"{data.plan.model} {log.get('base_model_class', '')}".strip()),
        ("Loaded as", log.get("loaded_as")),
        ("Compute type", log.get("computed_in")),
        ("Layers with a LoRA", log.get("projections")),
        ("Schedule", log.get("schedule")),
        ("Device", log.get("device")),
        ("Versions", ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def _setting_rows(values: Mapping[str, object]) -> list[Row]:
    """The settings that differ from their defaults, by label, in the order of the form."""
    defaults = {key: setting.default for key, setting in SETTINGS.items()}
    changed_keys = presets.differing_keys(defaults, values)
    return [
        (SETTINGS[key].label, _format_value(key, values[key]), _format_value(key, defaults[key]))
        for key in SETTINGS
        if key in changed_keys and key not in KEYS_SHOWN_ELSEWHERE
    ]


def _disk_rows(lora: LoraEntry) -> list[Row]:
    kinds = {"checkpoint": "full checkpoint", "LoRA only": "the LoRA of a checkpoint", "backup": "timed backup"}
    parts = [
        (part.name, kinds.get(part.kind, "backup of previous contents"), size(part.size)) for part in lora.parts
    ]
    rest = lora.size - sum(part.size for part in lora.parts)
    return [*parts, ("the LoRA and its records", "", size(rest))]


def _format_time(at: float, data: ReportData | None = None) -> str:
    """Format a time; without the date if `data` is given and its run began and ended on the same day."""
    with_date = data is None or {time.localtime(e.at)[:3] for e in data.events} != {
        time.localtime(data.ended.at)[:3]
    }
    return time.strftime("%Y-%m-%d %H:%M" if with_date else "%H:%M:%S", time.localtime(at))


def _loss_text(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "not finite"


def _format_counts(a: object, b: object) -> str:
    return f"{a:,} ({b:,} trained)" if isinstance(a, int) and isinstance(b, int) else ""


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def _format_value(key: str, value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return presets.format_value(key, value) or "empty"
