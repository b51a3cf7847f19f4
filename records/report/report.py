"""report.html: the report on a run, in a single self-contained page, from the template of this name."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import jobs
from ...core.files import write_text
from ...core.host import Folders
from ...core.html import html
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...train_utils import date_and_time, duration, known_columns, size
from ..folder import REPORT, LoraEntry, inventory, read_graph, read_log, read_samples, run_files
from .charts import Mark, draw_curve, draw_exam, draw_recall_strip
from .graph_file import graph_entry, read_evaluations, read_steps
from .verdict import judge_run, read_verdict

LISTED_EVENTS = (
    *(jobs.RunPlanned, jobs.Note, jobs.Advice, jobs.CheckpointSaved, jobs.EvaluationDone, jobs.RecallMeasured),
    *(jobs.ExamAsked, jobs.EvidenceMeasured, jobs.PlanChanged, jobs.LiveSettingsChanged, jobs.JobEnded),
)
KEYS_SHOWN_ELSEWHERE = ("name", "data")
EVALUATION_COLUMNS = (
    *("Step", "Loss", "Perplexity", "Predicted as in the data", "Context gain", "Loss on each dataset"),
)
PART_KINDS = {"checkpoint": "full checkpoint", "LoRA only": "the LoRA of a checkpoint", "backup": "timed backup"}


@dataclass(frozen=True)
class ReportData:
    """The data of a report: the events of a run, and the records in its folder."""

    events: Sequence[jobs.Event]
    ended: jobs.JobEnded
    graph: Sequence[Mapping[str, Any]]
    samples: Sequence[jobs.SampleGenerated]
    log: run_files.RunLog
    lora: LoraEntry

    @property
    def plan(self) -> jobs.RunPlanned:
        """The last plan of the run."""
        return next(event for event in reversed(self.events) if isinstance(event, jobs.RunPlanned))

    @property
    def planned_steps(self) -> int:
        step_counts = [event.steps for event in self.events if isinstance(event, jobs.PlanChanged)]
        return step_counts[-1] if step_counts else self.plan.steps


def write_missing_report(folder: Path, folders: Folders) -> None:
    """Write the report of a run that was killed after its last record; an unwritable folder stays without."""
    log, events = read_log(folder), jobs.event_file.read_events(folder)
    is_run = any(isinstance(event, jobs.RunPlanned) for event in events)
    if log.get("ended") is None or not is_run or (folder / REPORT).exists():
        return
    entry, outcome = inventory.read_entry(folder, folders), log.get("ended") or "stopped"
    text = f"{folder.name!r} {outcome} at step {entry.step} of {entry.steps}."
    if reason := log.get("ended_because"):
        text = f"{text} Reason: {reason}."
    ended = jobs.JobEnded(at=entry.when, outcome=outcome, text=text, folder=folder)
    with suppress(OSError):
        write_report(folder, events, ended, folders)


def write_report(folder: Path, events: Sequence[jobs.Event], ended: jobs.JobEnded, folders: Folders) -> None:
    """Write the report on the run in this folder."""
    graph: Sequence[Mapping[str, Any]] = read_graph(folder)
    log = read_log(folder)
    if ended.folder is None:  # it crashed, and no records were written: the curve of its events
        every = (*next(event.earlier for event in events if isinstance(event, jobs.RunPlanned)), *events)
        graph = [graph_entry(event) for event in every if isinstance(event, (jobs.Step, jobs.EvaluationDone))]
        log = {}
    data = ReportData(events, ended, graph, read_samples(folder), log, inventory.read_entry(folder, folders))
    write_text(folder / REPORT, render_report(data))


def render_report(data: ReportData) -> str:
    """Render the report as HTML."""
    # A run of several segments may have several plans: it began with the first, and the last one holds.
    began = next(event.at for event in data.events if isinstance(event, jobs.RunPlanned))
    reasons = [line for line in data.ended.text.splitlines() if line.strip()]
    steps, evaluations = read_steps(data.graph), read_evaluations(data.graph)
    recalls = [event for event in (*data.plan.earlier, *data.events) if isinstance(event, jobs.RecallMeasured)]
    exams = [event for event in (*data.plan.earlier, *data.events) if isinstance(event, jobs.ExamAsked)]
    saved = run_files.trained_steps(data.log) or math.inf  # the run may have kept the weights of an earlier step
    recall = next((event for event in reversed(recalls) if event.step <= saved), None)
    verdict = read_verdict(data.log)
    if not verdict and steps:  # the run broke off
        evaluates, planned = bool(data.plan.evaluate_every), data.planned_steps
        verdict = judge_run(steps, evaluations, {}, evaluates=evaluates, recalls=recalls, planned=planned).text
    tested = next((event for event in reversed(data.events) if isinstance(event, jobs.EvidenceMeasured)), None)
    # The settings that differ from their defaults, by label, in the order of the form.
    defaults = {key: setting.default for key, setting in SETTINGS.items()}
    own = {**defaults, **jobs.settings_in_force(data.events)}
    setting_rows = []
    for key in presets.differing_keys(defaults, own):
        if key not in KEYS_SHOWN_ELSEWHERE:
            texts = (presets.format_value(key, value) or "empty" for value in (own[key], defaults[key]))
            setting_rows.append((SETTINGS[key].label, *texts))
    evaluation_rows: list[tuple[str, ...]] = [EVALUATION_COLUMNS]
    for e in evaluations:
        gain = "" if e.context_gain is None else f"{e.context_gain:.4f}"
        by_source = ", ".join(f"{name} {_loss_text(loss)}" for name, loss in e.by_source.items())
        figures = (_loss_text(e.loss), "" if e.pairs else f"{e.perplexity:.4g}", f"{e.accuracy:.1%}")
        evaluation_rows.append((str(e.step), *figures, gain, by_source))
    disk_rows: list[tuple[str, str, str]] = []
    for part in data.lora.parts:
        kind = PART_KINDS.get(part.kind, "backup of previous contents")
        disk_rows.append((part.name, kind, size(part.size)))
    rest = data.lora.size - sum(part.size for part in data.lora.parts)
    disk_rows.append(("the LoRA and its records", "", size(rest)))
    return html(
        Path(__file__).with_name("report.html").read_text(encoding="utf-8"),
        data=data,
        began_at=date_and_time(began),
        ended_at=date_and_time(data.ended.at),
        reasons=reasons[:1] if data.ended.verdict else reasons,  # the verdict has a paragraph of its own
        verdict=verdict,
        figures=_figures(data, steps, evaluations),
        **_curve(data, steps, evaluations),
        samples=_samples_by_prompt(data.samples),
        # A sample may have unprintable characters.
        printable=lambda text: "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text),
        event_rows=_event_rows(data),
        phases=jobs.event_words.phase_table(jobs.measure_phases(steps, evaluations)),
        evaluation_rows=known_columns(evaluation_rows),
        recall_rows=jobs.event_words.recall_table(recalls),
        part_rows=jobs.event_words.part_table(recall) if recall else (),
        strip=draw_recall_strip(recall.strip) if recall else "",
        exam=draw_exam(exams),
        evidence_rows=jobs.event_words.evidence_table(tested) if tested else (),
        evidence_verdict=jobs.event_words.evidence_verdict(tested, recall) if tested else "",
        run_rows=_run_rows(data),
        setting_rows=setting_rows,
        disk_rows=disk_rows,
    )


def _figures(
    data: ReportData, steps: Sequence[jobs.Step], evaluations: Sequence[jobs.EvaluationDone]
) -> list[tuple[str, str]]:
    if not steps:
        return []
    first, last, peak = steps[0], steps[-1], jobs.peak_memory_of(data.events)
    cards = [event.cards for event in data.events if isinstance(event, jobs.MachineUse)]
    kept_aside = [_loss_text(evaluation.loss) for evaluation in evaluations]
    shares = [evaluation.accuracy for evaluation in evaluations if evaluation.pairs]
    pairs = [
        ("steps", f"{last.step} of {data.planned_steps}"),
        ("epochs", f"{last.epoch:.2f}"),
        ("smoothed loss", f"{_loss_text(first.smoothed)} → {_loss_text(last.smoothed)}"),
        ("validation loss", f"{kept_aside[0]} → {kept_aside[-1]}" if kept_aside else ""),
        ("preferences followed", f"{shares[0]:.0%} → {shares[-1]:.0%}" if shares else ""),
        ("training time", duration(sum(s.seconds for s in steps))),
        *run_speed(steps),
        (peak_name(max(cards, default=0)), size(peak) if peak else ""),
        ("on disk", size(data.lora.size)),
    ]
    return [(name, value) for name, value in pairs if value]


def peak_name(cards: int) -> str:
    """On a CPU the peak is that of the whole program, so it is higher than Check's estimate for the run."""
    return "peak GPU memory" if cards else "peak memory of the program"


def run_speed(steps: Sequence[jobs.Step]) -> list[tuple[str, str]]:
    """The mean speed of these steps."""
    seconds, tokens = sum(s.seconds for s in steps), sum(s.tokens for s in steps)
    speed = f"{tokens / seconds:,.0f}" if seconds else "-"
    return [("time per step", duration(seconds / max(1, len(steps)))), ("tokens per second", speed)]


def _curve(
    data: ReportData, steps: Sequence[jobs.Step], evaluations: Sequence[jobs.EvaluationDone]
) -> dict[str, Any]:
    """Draw the curve as in the interface, with the steps from before the run was resumed, and its legend."""
    if not steps:
        return {"curve": "", "legend": ()}
    rates = next(
        (e.rates for e in reversed(data.events) if isinstance(e, (jobs.RunPlanned, jobs.PlanChanged))), ()
    )
    marks = [Mark(part.step, part.name) for part in data.lora.parts if part.step and part.kind != "backup"]
    legend = [
        ("--smoothed", "smoothed loss", True),
        ("--loss", "loss", True),
        ("--kept", "validation loss", evaluations),
        ("--rate", "planned learning rate", rates),
        ("--mark", "checkpoint", marks),
    ]
    curve = draw_curve(steps, rates, marks, evaluations)
    return {"curve": curve, "legend": [(color, words) for color, words, is_drawn in legend if is_drawn]}


def _samples_by_prompt(
    samples: Sequence[jobs.SampleGenerated],
) -> list[tuple[str, list[jobs.SampleGenerated], jobs.SampleGenerated]]:
    """Each prompt with its earlier samples, the latest first, and its last one."""
    by_prompt: dict[str, list[jobs.SampleGenerated]] = {}
    for sample in sorted(samples, key=lambda sample: sample.step):
        by_prompt.setdefault(sample.prompt, []).append(sample)
    in_order = dict.fromkeys(sample.prompt for sample in samples)
    return [(p, [s for s in by_prompt[p][-2::-1] if s.step], by_prompt[p][-1]) for p in in_order]


def _event_rows(data: ReportData) -> list[tuple[str, tuple[str, str, str]]]:
    """The events with time and step, in the words of the console, each after the CSS class of its words."""
    # The date is shown only if the run did not begin and end on the same day.
    days = {time.localtime(event.at)[:3] for event in (*data.events, data.ended)}
    clock = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M"
    step, rows = 0, []
    for event in [*data.events, data.ended]:
        if isinstance(event, jobs.Step):
            step = event.step
        elif isinstance(event, LISTED_EVENTS) and (line := jobs.event_text(event)):
            text = line.partition("\n")[0] if isinstance(event, jobs.JobEnded) else line
            css_class = "advice" if isinstance(event, (jobs.Advice, jobs.JobEnded)) else ""
            rows.append((css_class, (time.strftime(clock, time.localtime(event.at)), str(step or ""), text)))
    return rows


def _run_rows(data: ReportData) -> list[tuple[str, ...]]:
    log, report, versions = data.log, data.log.get("data"), data.log.get("versions")
    counts: Mapping[str, Any] = report if isinstance(report, Mapping) else {}
    tokens, trained, names = counts.get("tokens"), counts.get("trained_tokens"), data.plan.settings.get("data")
    known = isinstance(tokens, int) and isinstance(trained, int)
    pairs = [
        ("Data", ", ".join(map(str, names)) if isinstance(names, (list, tuple)) else names),
        ("Examples", counts.get("examples")),
        ("Tokens", f"{tokens:,} ({trained:,} trained)" if known else ""),
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


def _loss_text(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "not finite"
