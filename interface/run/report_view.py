"""What Check found, as a readable report: the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...data.report import (
    DatasetReport,
    Lengths,
    Piece,
    RowReport,
    Shown,
    SourceReport,
    TextReport,
    left_out,
    mixture,
)
from ...data.text import SliceMap, unit_said, units_said
from ...settings.definitions import SETTINGS
from ...train_utils import plural, several, size, times_seen
from ..base import markup, outdated, pointing, use, way_to
from . import plan_svg

MOST_MAPS = 6
TEXT_HEAD = ("data", "files", "parts", "made of", "blocks", "overlaps", "left out")
ROW_HEAD = ("data", "rows", "examples", "tokens it learns from", "longest", "left out")
_MOODS = {"ready": "good", "ready with advice": "fair", "not ready": "bad"}


def html(report: DatasetReport, plan: str = "", free: int = 0) -> str:
    """The report as a card; `plan` is drawn between its figures and the details, `free` is memory in bytes."""
    return markup.card(
        f"Check: {report.verdict}",
        outdated.notice("check"),
        markup.listed(map(pointing, report.problems)),
        markup.listed(map(pointing, report.advice)),
        markup.bullets(report.notes, quiet=True),
        _figures(report) if report.examples else "",
        plan,
        _suggestions(report),
        _needs(report, free),
        _expected(report),
        _sources(report.sources),
        _lengths(report.lengths),
        _maps(report.sources),
        _examples(report.shown),
        mood=_MOODS[report.verdict],
    )


def _figures(report: DatasetReport) -> str:
    lost = sum(s.text.characters_lost for s in report.sources if s.text)
    shown = [
        ("examples", f"{report.examples:,}"),
        ("tokens it learns from", f"{report.trained_tokens:,}"),
        (f"longest, of {report.cutoff} tokens", str(report.longest)),
        ("steps an epoch", f"{report.steps_per_epoch:,}"),
        ("steps in all", f"{report.steps:,}"),
    ]
    return markup.figures(
        [*shown, *([("characters lost", f"{lost:,}")] if any(s.text for s in report.sources) else [])]
    )


def _suggestions(report: DatasetReport) -> str:
    """What would fit better, each with its reason and a button that puts it in."""
    return markup.listed(
        f"{way_to(s.key, SETTINGS[s.key].label)}: {escape(s.why)} {use(f'use {s.words}', {s.key: s.value})}"
        for s in report.suggestions
    )


def _needs(report: DatasetReport, free: int) -> str:
    """Memory and disk expected against what is there: green, yellow or red."""
    parts = []
    if memory := report.memory:
        there = f" ({size(free)} are there for it)" if free else ""
        parts.append(markup.gauge(f"Memory expected{there}: {memory.words()}.", memory.total, free))
    if disk := report.disk:
        parts.append(markup.gauge(f"Disk: {disk.words()}.", disk.most, disk.free))
    return "".join(parts)


def _expected(report: DatasetReport) -> str:
    """Padding, stop tokens, what is kept aside, one line each."""
    said = []
    if report.padding:
        shares = ", ".join(f"{name.replace('_', ' ')} {100 * n:.0f} %" for name, n in report.padding.items())
        said.append(f"Share of a step that is padding: {shares}.")
    if report.stops:
        said.append(f"Will it stop: {report.stops.words()}.")
    if report.kept_aside:
        said.append(f"Kept aside for testing: {report.kept_aside.words()}.")
    return markup.bullets(said, quiet=True)


def _lengths(lengths: Lengths) -> str:
    """A bar for each step of lengths."""
    if len(lengths.counts) < 2:
        return ""
    bars = "".join(_bar(lengths, n) for n in range(len(lengths.counts)))
    words = f"Lengths of the examples, in tokens: up to {lengths.longest}, {lengths.width} a bar."
    return markup.paragraph(words, quiet=True) + f'<svg {_CHART} aria-label="{escape(words)}">{bars}</svg>'


_CHART = 'viewBox="0 0 320 64" role="img" preserveAspectRatio="none" class="tp-lengths"'
_CHART_WIDTH, _CHART_HEIGHT = 320, 64


def _bar(lengths: Lengths, number: int) -> str:
    wide, count = _CHART_WIDTH / len(lengths.counts), lengths.counts[number]
    tall = _CHART_HEIGHT * count / max(lengths.counts)
    tokens = f"{number * lengths.width + 1} to {(number + 1) * lengths.width} tokens"
    place = f'x="{number * wide:.1f}" y="{_CHART_HEIGHT - tall:.1f}" width="{wide * 0.8:.1f}" height="{tall:.1f}"'
    return f"<rect {place}><title>{tokens}: {count} {plural(count, 'example')}</title></rect>"


def _examples(shown: Sequence[Shown]) -> str:
    """Examples as the model will see them: what is learned is tinted and underlined, special tokens are framed."""
    if not shown:
        return ""
    many = f"{len(shown)} {plural(len(shown), 'example')}"
    told = "".join(map(_one, shown))
    return f"<details><summary>{many}. As the model will see them; {_KEY}</summary>{told}</details>"


_KEY = "what it learns is underlined, special tokens are framed"


def example(shown: Shown, of: int) -> str:
    """One of so many, on a card of its own."""
    title = f"Example {shown.number:,} of {of:,}"
    notice = outdated.notice("example")
    return markup.card(
        title, notice, _one(shown), markup.paragraph(f"As the model will see it; {_KEY}.", quiet=True)
    )


def _one(shown: Shown) -> str:
    where = markup.paragraph(f"{shown.source}, {shown.place}, {several(shown.tokens, 'token')}", quiet=True)
    return f'{where}<pre class="tp-example">{"".join(map(_piece, shown.pieces))}</pre>'


def _piece(piece: Piece) -> str:
    style = _LEARNED * piece.learned + _SPECIAL * piece.special
    text = escape(piece.text)
    return f'<span style="{style}">{text}</span>' if style else text


_LEARNED = "background:#2f9e5b33;text-decoration:underline;text-decoration-color:#2f9e5b;"
_SPECIAL = "border:1px solid currentColor;border-radius:4px;padding:0 2px 3px;"


def _sources(sources: tuple[SourceReport, ...]) -> str:
    """One table for texts, one for rows, each where there are some."""
    texts = [_table(TEXT_HEAD, [_text_cells(s, s.text) for s in sources if s.text])]
    rows = [_table(ROW_HEAD, [_row_cells(s, s.rows) for s in sources if s.rows])]
    mixed = f"Mixture, in tokens it learns from: {mixture(sources)}." if len(sources) > 1 else ""
    notes = markup.bullets((note for s in sources for note in s.notes), quiet=True)
    return "".join([*texts, *rows, markup.paragraph(mixed) if mixed else "", notes])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markup.table(head, rows) if rows else ""


def _text_cells(source: SourceReport, text: TextReport) -> list[str]:
    before, behind = (source.files, text.parts), (text.blocks, text.overlaps, text.left_out)
    made_of = units_said(text.sentences, text.lines)
    return [f"{source.name}: {source.what}", *_grouped(before), made_of, *_grouped(behind)]


def _grouped(numbers: Sequence[int]) -> list[str]:
    return [f"{n:,}" for n in numbers]


def _row_cells(source: SourceReport, rows: RowReport) -> list[str]:
    gone = "; ".join(f"{count:,} {what}" for count, what in left_out(rows) if count)
    numbers = (rows.rows, source.examples, source.trained_tokens, source.lengths.longest)
    return [f"{source.name}: {source.what}", *(f"{n:,}" for n in numbers), gone or "nothing"]


def _maps(sources: tuple[SourceReport, ...]) -> str:
    """How each text is cut and how often its parts are seen; the first few texts."""
    drawn = [found for source in sources for found in source.maps][:MOST_MAPS]
    key = markup.legend(plan_svg.colours([found for _, found in drawn]))
    return "".join(_map(*each) for each in drawn) + (f'<p class="tp-quiet tp-key">{key}</p>' if drawn else "")


def _map(name: str, found: SliceMap) -> str:
    seen, unit = found.seen, unit_said(found.sentences, found.lines)
    words = (
        f"{name}: blocks end at {found.ends}; each {unit} is seen {times_seen(seen.least, seen.most)} a pass, "
        f"{seen.mean:g} on average; "
        f"{found.growth:.2f} times the tokens of the text are trained; {found.proof}"
    )
    return markup.paragraph(words, quiet=True) + plan_svg.slice_map(found)
