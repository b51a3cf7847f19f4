"""report.html: how a run went, on one page that needs nothing else; every text of the user's is escaped."""

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
    Ended,
    Evaluated,
    Event,
    LiveChanged,
    Narrator,
    Note,
    Planned,
    Progress,
    Replanned,
    Sampled,
    most_memory,
)
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...train_utils import duration, size
from ..folder import Kept
from .curve_svg import Mark, svg
from .graph_file import aside_losses, evaluations_of, number, points_of, steps_of
from .report_style import CSS
from .verdict import judge_run, read_verdict

TOLD = (Planned, Note, Advice, CheckpointSaved, Evaluated, Replanned, LiveChanged, Ended)
NAMED_APART = ("name", "data")
CURVES = (
    ("--smoothed", "smoothed loss"),
    ("--loss", "loss"),
    ("--kept", "loss on the part kept aside"),
    ("--rate", "learning rate, as planned"),
    ("--mark", "checkpoint"),
)


@dataclass(frozen=True)
class Story:
    """What is known of a run at its end: its events with the last one, and what lies in its folder."""

    events: Sequence[Event]
    ended: Ended
    graph: Sequence[Mapping[str, Any]]
    samples: Sequence[Sampled] = ()
    log: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept | None = None

    @property
    def plan(self) -> Planned:
        """The run as it was planned at last."""
        return next(event for event in reversed(self.events) if isinstance(event, Planned))


def page(story: Story) -> str:
    """The whole report."""
    name = escape(story.plan.name)
    parts = [
        _head(story),
        _part("The curve", _curve(story)),
        _part("What it says", _samples(story.samples)),
        _part("What happened", _events(story)),
        _part("Kept aside", _evaluations(story.graph)),
        _part("What ran", _what_ran(story)),
        _part("Settings that differ from the default", _settings(story.plan.settings)),
        _part("On disk", _disk(story.kept)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: {story.ended.outcome}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _part(title: str, inside: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{inside}\n</section>\n" if inside else ""


def _head(story: Story) -> str:
    ended, plan = story.ended, story.plan
    first = next(event.at for event in story.events if isinstance(event, Planned))
    said = "".join(f"<p>{escape(line)}</p>" for line in _reasons(ended))
    when = f"On {escape(plan.model)}, {_moment(first)} to {_moment(ended.at)}"
    details = (
        f"<details><summary>Details</summary><pre>{escape(ended.details)}</pre></details>" if ended.details else ""
    )
    return (
        f'<header class="{ended.outcome}">\n<h1>{escape(plan.name)}<span>{ended.outcome}</span></h1>\n'
        f'<p class="quiet">{when}</p>\n{said}{_verdict(story)}{details}\n{_figures(story)}\n</header>\n'
    )


def _reasons(ended: Ended) -> list[str]:
    """Why it ended; what is a verdict stands by itself."""
    lines = [line for line in ended.text.splitlines() if line.strip()]
    return lines[:1] if ended.verdict else lines


def _verdict(story: Story) -> str:
    """The log's own, or where a run broke off that of the steps that it has."""
    text = read_verdict(story.log)
    if not text and steps_of(story.graph):
        text = judge_run(story.graph, {}, evaluates=bool(story.plan.evaluate_every)).text
    return f'<p class="verdict">{escape(text)}</p>' if text else ""


def _figures(story: Story) -> str:
    steps = steps_of(story.graph)
    if not steps:
        return ""
    first, last, seconds = steps[0], steps[-1], sum(number(e.get("seconds")) for e in steps if e.get("seconds"))
    tokens = sum(int(e.get("tokens") or 0) for e in steps)
    pairs = [
        ("steps", f"{last['current_steps']} of {_steps(story)}"),
        ("epochs", f"{last['epoch']:.2f}"),
        ("smoothed loss", f"{_loss(first.get('smoothed_loss'))} → {_loss(last.get('smoothed_loss'))}"),
        *(
            (("kept aside", f"{_loss(k[0].loss)} → {_loss(k[-1].loss)}"),)
            if (k := evaluations_of(story.graph))
            else ()
        ),
        ("spent on training", duration(seconds)),
        ("a step", duration(seconds / len(steps))),
        ("tokens a second", f"{tokens / seconds:,.0f}" if seconds else "-"),
        *((("memory at most", size(most)),) if (most := most_memory(story.events)) else ()),
        *((("on disk", size(story.kept.size)),) if story.kept else ()),
    ]
    inside = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in pairs)
    return f'<dl class="figures">{inside}</dl>'


def _steps(story: Story) -> int:
    changed = [event.steps for event in story.events if isinstance(event, Replanned)]
    return changed[-1] if changed else story.plan.steps


def _curve(story: Story) -> str:
    """Drawn as on the page, from the first step of the run on, also of those before it went on."""
    points = points_of(story.graph)
    if not points:
        return ""
    rates = next((e.rates for e in reversed(story.events) if isinstance(e, (Planned, Replanned))), ())
    marks = [
        Mark(p.step, p.name) for p in (story.kept.parts if story.kept else ()) if p.step and p.kind != "backup"
    ]
    kept = aside_losses(story.graph)
    there = {"--kept": bool(kept), "--mark": bool(marks), "--rate": bool(rates)}
    key = "".join(
        f'<span><i style="background:var({colour})"></i>{words}</span>'
        for colour, words in CURVES
        if there.get(colour, True)
    )
    return f'{svg(points, rates, marks, kept)}\n<p class="key">{key}</p>'


def _samples(samples: Sequence[Sampled]) -> str:
    """Of each prompt both answers side by side: the last one open, those before it folded."""
    by_prompt: dict[str, list[Sampled]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    return "\n".join(_prompt(prompt, said) for prompt, said in by_prompt.items())


def _prompt(prompt: str, said: Sequence[Sampled]) -> str:
    *before, last = sorted(said, key=lambda one: one.step)
    earlier = "".join(f"<h4>After step {s.step}</h4>{_answer(s.text)}" for s in reversed(before) if s.step)
    folded = f"<details><summary>Earlier answers</summary>{earlier}</details>" if earlier else ""
    return (
        f'<p class="prompt">{escape(prompt)}</p>\n<div class="answers">'
        f"<div><h4>Without the LoRA</h4>{_answer(last.without)}</div>"
        f"<div><h4>With it, after step {last.step}</h4>{_answer(last.text)}{folded}</div></div>"
    )


def _answer(text: str) -> str:
    """What has no sign on a page is shown as a box."""
    seen = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return f'<p class="answer">{escape(seen) or "<em>nothing</em>"}</p>'


def _events(story: Story) -> str:
    """By the clock, in the console's words; of the steps only where it stood when something happened."""
    narrator, step, rows = Narrator(), 0, []
    for event in [*story.events, story.ended]:
        if isinstance(event, Progress):
            step = event.step
        elif isinstance(event, TOLD) and (line := narrator.line(event)):
            told = line.partition("\n")[0] if isinstance(event, Ended) else line
            kind = "advice" if isinstance(event, (Advice, Ended)) else ""
            rows.append(_row(("clock", _moment(event.at, story)), ("number", str(step or "")), (kind, told)))
    return _table(("Time", "After step", ""), rows)


def _evaluations(graph: Sequence[Mapping[str, Any]]) -> str:
    found = evaluations_of(graph)
    apart = any(e.by_source for e in found)
    rows = [
        _row(
            ("number", str(e.step)),
            ("number", _loss(e.loss)),
            ("number", f"{e.perplexity:.4g}"),
            ("number", f"{e.accuracy:.1%}"),
            *([("", ", ".join(f"{name} {_loss(loss)}" for name, loss in e.by_source.items()))] if apart else []),
        )
        for e in found
    ]
    head = ("Step", "Loss", "Perplexity", "Tokens guessed right", *(["Loss of each data set"] if apart else []))
    return _table(head, rows)


def _what_ran(story: Story) -> str:
    log, settings = story.log, story.plan.settings
    report = log.get("data")
    data: Mapping[str, Any] = report if isinstance(report, Mapping) else {}
    versions = log.get("versions")
    pairs: list[tuple[str, object]] = [
        ("Data", ", ".join(map(str, _list(settings.get("data"))))),
        ("Examples", data.get("examples")),
        ("Tokens, and of them learned", _both(data.get("tokens"), data.get("trained_tokens"))),
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


def _settings(values: Mapping[str, object]) -> str:
    """By their labels, in the order of the form."""
    different = presets.apart({key: setting.default for key, setting in SETTINGS.items()}, values)
    rows = [
        _row(
            ("quiet", SETTINGS[key].label),
            ("", _value(key, values[key])),
            ("quiet", _value(key, SETTINGS[key].default)),
        )
        for key in SETTINGS
        if key in different and key not in NAMED_APART
    ]
    return _table(("Setting", "Here", "Default"), rows) or "<p>None: everything is as it comes.</p>"


def _disk(kept: Kept | None) -> str:
    if kept is None:
        return ""
    words = {"checkpoint": "whole checkpoint", "LoRA only": "the LoRA of a checkpoint", "backup": "timed backup"}
    rows = [
        _row(
            ("", part.name), ("quiet", words.get(part.kind, "what stood here before")), ("number", size(part.size))
        )
        for part in kept.parts
    ]
    rest = kept.size - sum(part.size for part in kept.parts)
    rows.append(_row(("", "the LoRA and its records"), ("quiet", ""), ("number", size(rest))))
    return f'<p class="quiet">{escape(str(kept.folder))}</p>{_table((), rows)}'


def _table(head: Sequence[str], rows: Iterable[str]) -> str:
    inside = "".join(rows)
    if not inside:
        return ""
    top = f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr>" if head else ""
    return f'<div class="wide"><table>{top}{inside}</table></div>'


def _row(*cells: tuple[str, str]) -> str:
    """Cells, each by its kind and its text."""
    return f"<tr>{''.join(_cell(*cell) for cell in cells)}</tr>"


def _cell(kind: str, text: str) -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _moment(at: float, story: Story | None = None) -> str:
    """The clock; with the day where a run is longer than one, or nothing says which."""
    days = story is None or {time.localtime(e.at)[:3] for e in story.events} != {
        time.localtime(story.ended.at)[:3]
    }
    return time.strftime("%Y-%m-%d %H:%M" if days else "%H:%M:%S", time.localtime(at))


def _loss(value: object) -> str:
    found = number(value) if isinstance(value, (int, float)) else math.nan
    return f"{found:.4f}" if math.isfinite(found) else "no number"


def _both(one: object, other: object) -> str:
    return f"{one:,}, {other:,}" if isinstance(one, int) and isinstance(other, int) else ""


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def _value(key: str, value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return presets.shown(key, value) or "empty"
