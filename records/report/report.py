"""report.html: the report on a run, in a single self-contained page; all text of the user is escaped."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ...core.jobs import (
    Advice,
    CheckpointSaved,
    EvaluationDone,
    Event,
    JobEnded,
    LiveSettingsChanged,
    Note,
    PlanChanged,
    RunPlanned,
    SampleGenerated,
    Step,
    event_text,
    peak_memory_of,
)
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...train_utils import duration, size
from ..folder import LoraEntry
from .curve_svg import Mark, draw_curve
from .graph_file import read_evaluations, read_steps
from .report_style import CSS
from .verdict import judge_run, read_verdict

LISTED_EVENTS = (
    RunPlanned,
    Note,
    Advice,
    CheckpointSaved,
    EvaluationDone,
    PlanChanged,
    LiveSettingsChanged,
    JobEnded,
)
KEYS_SHOWN_ELSEWHERE = ("name", "data")
CURVES = (
    ("--smoothed", "smoothed loss"),
    ("--loss", "loss"),
    ("--kept", "loss on the part kept aside"),
    ("--rate", "learning rate, as planned"),
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
    kept: LoraEntry | None = None

    @property
    def plan(self) -> RunPlanned:
        """The last plan of the run."""
        return next(event for event in reversed(self.events) if isinstance(event, RunPlanned))


def render_report(story: ReportData) -> str:
    """Render the report as HTML."""
    name = escape(story.plan.name)
    sections = [
        _header(story),
        _section("The curve", _curve_section(story)),
        _section("What it says", _all_samples(story.samples)),
        _section("What happened", _event_table(story)),
        _section("Kept aside", _evaluation_table(story.graph)),
        _section("What ran", _run_table(story)),
        _section("Settings that differ from the default", _settings_table(story.plan.settings)),
        _section("On disk", _disk_table(story.kept)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: {story.ended.outcome}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(sections)}\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>\n" if content else ""


def _header(story: ReportData) -> str:
    ended, plan = story.ended, story.plan
    first = next(event.at for event in story.events if isinstance(event, RunPlanned))
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in _reasons(ended))
    time_span = f"On {escape(plan.model)}, {_format_time(first)} to {_format_time(ended.at)}"
    details = (
        f"<details><summary>Details</summary><pre>{escape(ended.details)}</pre></details>" if ended.details else ""
    )
    return (
        f'<header class="{ended.outcome}">\n<h1>{escape(plan.name)}<span>{ended.outcome}</span></h1>\n'
        f'<p class="quiet">{time_span}</p>\n{paragraphs}{_verdict(story)}{details}\n{_figures(story)}\n</header>\n'
    )


def _reasons(ended: JobEnded) -> list[str]:
    """Return why the run ended, without the verdict, which has a paragraph of its own."""
    lines = [line for line in ended.text.splitlines() if line.strip()]
    return lines[:1] if ended.verdict else lines


def _verdict(story: ReportData) -> str:
    """Return the verdict of the log, or for a run that broke off a verdict on its steps."""
    text = read_verdict(story.log)
    if not text and read_steps(story.graph):
        text = judge_run(story.graph, {}, evaluates=bool(story.plan.evaluate_every)).text
    return f'<p class="verdict">{escape(text)}</p>' if text else ""


def _figures(story: ReportData) -> str:
    steps = read_steps(story.graph)
    if not steps:
        return ""
    first, last = steps[0], steps[-1]
    seconds, tokens = sum(s.seconds for s in steps), sum(s.tokens for s in steps)
    pairs = [
        ("steps", f"{last.step} of {_planned_steps(story)}"),
        ("epochs", f"{last.epoch:.2f}"),
        ("smoothed loss", f"{_loss_text(first.smoothed)} → {_loss_text(last.smoothed)}"),
        *(
            (("kept aside", f"{_loss_text(k[0].loss)} → {_loss_text(k[-1].loss)}"),)
            if (k := read_evaluations(story.graph))
            else ()
        ),
        ("spent on training", duration(seconds)),
        ("a step", duration(seconds / len(steps))),
        ("tokens a second", f"{tokens / seconds:,.0f}" if seconds else "-"),
        *((("memory at most", size(most)),) if (most := peak_memory_of(story.events)) else ()),
        *((("on disk", size(story.kept.size)),) if story.kept else ()),
    ]
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in pairs)
    return f'<dl class="figures">{items}</dl>'


def _planned_steps(story: ReportData) -> int:
    step_counts = [event.steps for event in story.events if isinstance(event, PlanChanged)]
    return step_counts[-1] if step_counts else story.plan.steps


def _curve_section(story: ReportData) -> str:
    """Draw the curve as in the interface, with the steps from before the run was resumed."""
    steps = read_steps(story.graph)
    if not steps:
        return ""
    rates = next((e.rates for e in reversed(story.events) if isinstance(e, (RunPlanned, PlanChanged))), ())
    marks = [
        Mark(p.step, p.name) for p in (story.kept.parts if story.kept else ()) if p.step and p.kind != "backup"
    ]
    evaluations = read_evaluations(story.graph)
    has_curve = {"--kept": bool(evaluations), "--mark": bool(marks), "--rate": bool(rates)}
    legend = "".join(
        f'<span><i style="background:var({color})"></i>{words}</span>'
        for color, words in CURVES
        if has_curve.get(color, True)
    )
    return f'{draw_curve(steps, rates, marks, evaluations)}\n<p class="key">{legend}</p>'


def _all_samples(samples: Sequence[SampleGenerated]) -> str:
    """Show the answers to each prompt with and without the LoRA; earlier ones are collapsed."""
    by_prompt: dict[str, list[SampleGenerated]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    return "\n".join(_prompt_samples(prompt, answers) for prompt, answers in by_prompt.items())


def _prompt_samples(prompt: str, samples: Sequence[SampleGenerated]) -> str:
    *earlier_samples, last = sorted(samples, key=lambda sample: sample.step)
    earlier_answers = "".join(
        f"<h4>After step {s.step}</h4>{_answer(s.text)}" for s in reversed(earlier_samples) if s.step
    )
    collapsed = (
        f"<details><summary>Earlier answers</summary>{earlier_answers}</details>" if earlier_answers else ""
    )
    return (
        f'<p class="prompt">{escape(prompt)}</p>\n<div class="answers">'
        f"<div><h4>Without the LoRA</h4>{_answer(last.without)}</div>"
        f"<div><h4>With it, after step {last.step}</h4>{_answer(last.text)}{collapsed}</div></div>"
    )


def _answer(text: str) -> str:
    """Replace unprintable characters, as they may occur in a sample, with U+FFFD."""
    printable = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
    return f'<p class="answer">{escape(printable) or "<em>nothing</em>"}</p>'


def _event_table(story: ReportData) -> str:
    """List the events with time and step, in the words of the console."""
    step, rows = 0, []
    for event in [*story.events, story.ended]:
        if isinstance(event, Step):
            step = event.step
        elif isinstance(event, LISTED_EVENTS) and (text := event_text(event)):
            text = text.partition("\n")[0] if isinstance(event, JobEnded) else text
            kind = "advice" if isinstance(event, (Advice, JobEnded)) else ""
            rows.append(_row(("clock", _format_time(event.at, story)), ("number", str(step or "")), (kind, text)))
    return _table(("Time", "After step", ""), rows)


def _evaluation_table(graph: Sequence[Mapping[str, Any]]) -> str:
    evaluations = read_evaluations(graph)
    has_sources = any(e.by_source for e in evaluations)
    rows = [
        _row(
            ("number", str(e.step)),
            ("number", _loss_text(e.loss)),
            ("number", f"{e.perplexity:.4g}"),
            ("number", f"{e.accuracy:.1%}"),
            *(
                [("", ", ".join(f"{name} {_loss_text(loss)}" for name, loss in e.by_source.items()))]
                if has_sources
                else []
            ),
        )
        for e in evaluations
    ]
    head = (
        "Step",
        "Loss",
        "Perplexity",
        "Tokens guessed right",
        *(["Loss of each data set"] if has_sources else []),
    )
    return _table(head, rows)


def _run_table(story: ReportData) -> str:
    log, settings = story.log, story.plan.settings
    report = log.get("data")
    data: Mapping[str, Any] = report if isinstance(report, Mapping) else {}
    versions = log.get("versions")
    pairs: list[tuple[str, object]] = [
        ("Data", ", ".join(map(str, _as_list(settings.get("data"))))),
        ("Examples", data.get("examples")),
        ("Tokens, and of them learned", _format_counts(data.get("tokens"), data.get("trained_tokens"))),
        ("Cutoff", data.get("cutoff")),
        ("Model", f"{story.plan.model} {log.get('base_model_class', '')}".strip()),
        ("Loaded as", log.get("loaded_as")),
        ("Computed in", log.get("computed_in")),
        ("Layers with a LoRA", log.get("projections")),
        ("Schedule", log.get("schedule")),
        ("Device", log.get("device")),
        ("Versions", ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""),
    ]
    return _table(
        (), [_row(("quiet", name), ("", str(value))) for name, value in pairs if value not in (None, "")]
    )


def _settings_table(values: Mapping[str, object]) -> str:
    """List the settings that differ from their defaults, by label, in the order of the form."""
    changed_keys = presets.differing_keys({key: setting.default for key, setting in SETTINGS.items()}, values)
    rows = [
        _row(
            ("quiet", SETTINGS[key].label),
            ("", _format_value(key, values[key])),
            ("quiet", _format_value(key, SETTINGS[key].default)),
        )
        for key in SETTINGS
        if key in changed_keys and key not in KEYS_SHOWN_ELSEWHERE
    ]
    return _table(("Setting", "Here", "Default"), rows) or "<p>None: everything is as it comes.</p>"


def _disk_table(kept: LoraEntry | None) -> str:
    if kept is None:
        return ""
    kinds = {"checkpoint": "whole checkpoint", "LoRA only": "the LoRA of a checkpoint", "backup": "timed backup"}
    rows = [
        _row(
            ("", part.name), ("quiet", kinds.get(part.kind, "what stood here before")), ("number", size(part.size))
        )
        for part in kept.parts
    ]
    rest = kept.size - sum(part.size for part in kept.parts)
    rows.append(_row(("", "the LoRA and its records"), ("quiet", ""), ("number", size(rest))))
    return f'<p class="quiet">{escape(str(kept.folder))}</p>{_table((), rows)}'


def _table(head: Sequence[str], rows: Iterable[str]) -> str:
    body = "".join(rows)
    if not body:
        return ""
    header = f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr>" if head else ""
    return f'<div class="wide"><table>{header}{body}</table></div>'


def _row(*cells: tuple[str, str]) -> str:
    """Render a row of cells, each given by its CSS class and text."""
    return f"<tr>{''.join(_cell(*cell) for cell in cells)}</tr>"


def _cell(kind: str, text: str) -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _format_time(at: float, story: ReportData | None = None) -> str:
    """Format a time; without the date if `story` is given and its run began and ended on the same day."""
    with_date = story is None or {time.localtime(e.at)[:3] for e in story.events} != {
        time.localtime(story.ended.at)[:3]
    }
    return time.strftime("%Y-%m-%d %H:%M" if with_date else "%H:%M:%S", time.localtime(at))


def _loss_text(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "no number"


def _format_counts(a: object, b: object) -> str:
    return f"{a:,}, {b:,}" if isinstance(a, int) and isinstance(b, int) else ""


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def _format_value(key: str, value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return presets.format_value(key, value) or "empty"
