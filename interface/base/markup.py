"""Small pieces of HTML, and sentences that several panels share. All text is escaped, except for Markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from ...core.html import html
from ...core.jobs import Job, Request, event_words, events
from ...records.report import charts
from ...settings.definitions import SETTINGS
from .form import FOLDED_ROWS, part_id

TABLE = (
    '<div class="tp-wide"><table class="tp-table"><tr>{% for text in header %}<th>{{ text }}</th>{% endfor %}</tr>'
    "{% for row in rows %}<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>{% endfor %}</table></div>"
)
FIGURES = (
    '<div class="tp-figures">{% for name, value in pairs %}<div><b>{{ value }}</b><span>{{ name }}</span></div>'
    "{% endfor %}</div>"
)
AXIS_SWITCH = (
    '<p class="tp-quiet">Axis: <span class="tp-by-step">steps</span><span class="tp-by-epoch">epochs</span> '
    '<button type="button" class="tp-use" data-tp-axis data-tp-focus="axis">Show '
    '<span class="tp-by-step">epochs</span><span class="tp-by-epoch">steps</span></button></p>'
)
BELL_SWITCH = (
    '<p class="tp-quiet">At the end of the run, play a sound and show a notice: <span class="tp-bell-on">on</span>'
    '<span class="tp-bell-off">off</span> <button type="button" class="tp-use" data-tp-bell data-tp-focus="bell">'
    'Turn <span class="tp-bell-on">off</span><span class="tp-bell-off">on</span></button></p>'
)
PROGRESS_BAR = (
    '<div class="tp-bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
    'aria-valuenow="{0:.0f}">'
    '<i style="width:{0:.1f}%"></i></div>'
)
SETTING_LINK = (
    '<a href="#tp-{{ key }}" data-tp-go="{{ key }}" data-tp-part="{{ part_id }}"'
    '{% if part_title %} title="Under {{ part_title }}"{% endif %}>{{ label }}</a>'
)
RESET_BUTTON = (
    '<button type="button" data-tp-key="{0}" data-tp-set="{1}" title="{2}" aria-label="{3}. {2}">\u21ba</button>'
)
# Of the results that show when the form has changed since.
NOTICES = {
    "check": "Settings have changed since this check. Press Check for a new report.",
    "example": "Settings have changed since this example was shown. Press Show again.",
    "probe": "Settings have changed since this test. Press 'Test one step' or 'Fit to my GPU' again.",
}
MAX_LIST_CHARS = 160  # of a list of names that is not folded
FLAG = re.compile(r" \(--[a-z-]+\)")
_KEY_BY_LABEL = {setting.label: key for key, setting in SETTINGS.items()}
_LABELS = "|".join(map(re.escape, sorted(_KEY_BY_LABEL, key=len, reverse=True)))
_LABEL_AFTER_UNDER = re.compile(rf"(?:(?<=\b[Uu]nder )|(?<=\b[Uu]nder '))({_LABELS})(?!\w)")


def join(parts: Iterable[str]) -> Markup:
    """Pieces that are HTML, one after the other."""
    return Markup("".join(parts))


def card(title: str, *parts: str, mood: str = "") -> Markup:
    """A framed box of parts that are HTML; `mood` is good, fair, bad or live and sets the color of its edge."""
    template = (
        '<div class="tp-card{% if mood %} tp-{{ mood }}{% endif %}">'
        "{% if title %}<h4>{{ title }}</h4>{% endif %}{{ content }}</div>"
    )
    return html(template, title=title, mood=mood, content=join(parts))


def paragraph(text: str, *, quiet: bool = False) -> Markup:
    lines = Markup("<br>").join(text.split("\n"))
    return Markup('<p class="tp-quiet">{}</p>' if quiet else "<p>{}</p>").format(lines)


def bullets(texts: Iterable[str], *, quiet: bool = False) -> Markup:
    items = Markup("").join(map(Markup("<li>{}</li>").format, texts))
    return Markup("<ul class=tp-quiet>{}</ul>" if quiet else "<ul>{}</ul>").format(items) if items else items


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    """A table with a header row; a wide one scrolls inside its own box."""
    return html(TABLE, header=header, rows=rows)


def phases(measured: Sequence[events.PhaseFigures]) -> Markup:
    """The table of the phases of hybrid batching; empty if the run has none."""
    rows = event_words.phase_table(measured)
    return table(rows[0], rows[1:]) if rows else Markup()


def recall(measured: Sequence[events.RecallMeasured]) -> Markup:
    """The recall along the data at the last measurement, and a table of all; empty if it was never measured."""
    rows = event_words.recall_table(measured)
    if not rows:
        return Markup()
    last = measured[-1]
    if not last.learned.passages:  # preferences were learned
        return fold("Loss on general text", table(rows[0], rows[1:]))
    title = (
        f"Recall at step {last.step}: {last.learned.recall:.0%}. Each segment of the bar is one passage, in the "
        "order of the data. The stronger the color, the higher the recall."
    )
    strip, parts = Markup(charts.draw_recall_strip(last.strip)), event_words.part_table(last)
    part_title = f"Recall by chapter or file, from {last.learned.passages} measured passages"
    by_part = fold(part_title, table(parts[0], parts[1:])) if parts else Markup()
    return join([paragraph(title, quiet=True), strip, fold("All measurements", table(rows[0], rows[1:])), by_part])


def evidence(event: events.EvidenceMeasured | None, measured: Sequence[events.RecallMeasured]) -> Markup:
    """What a LoRA learned, forgot and copies: a sentence, and a table; empty if it was never tested."""
    if event is None:
        return Markup()
    rows = event_words.evidence_table(event)
    verdict = event_words.evidence_verdict(event, measured[-1] if measured else None)
    return paragraph(verdict) + table(rows[0], rows[1:])


def curve(picture: str, colors: Mapping[str, str]) -> Markup:
    """A loss curve, the legend of its colors, and the switch between steps and epochs if its axis has both.

    clicks.js keeps the choice.
    """
    switch = Markup(AXIS_SWITCH) if "tp-by-epoch" in picture else Markup()
    key = Markup('<p class="tp-quiet tp-key">{}</p>').format(legend(colors.items()))
    return Markup(picture) + switch + key if picture else Markup()


def details(title: str, text: str) -> Markup:
    return fold(title, Markup("<pre>{}</pre>").format(text)) if text else Markup()


def legend(colors: Iterable[tuple[str, str]]) -> Markup:
    """The legend of a picture; a color and its label stay on one line."""
    entry = Markup('<span><i style="background:{}"></i>{}</span>')
    return Markup(" ").join(entry.format(color, label) for color, label in colors)


def fold(title: str, content: str) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(title, content)


def fold_long_list(text: str) -> Markup:
    """A text as HTML; a long list of names after a colon is folded under the words before the colon."""
    head, colon, names = text.partition(": ")
    is_list = colon and not any(" " in name for name in names.split(", "))
    return fold(f"{head}.", names) if is_list and len(text) > MAX_LIST_CHARS else Markup("{}").format(text)


def figures(pairs: Iterable[tuple[str, str]]) -> Markup:
    """A row of figures, each with the value above its name."""
    return html(FIGURES, pairs=pairs)


def usage_mood(needed: float, free: float) -> str:
    """How much of the free memory or disk would be used, as a mood; empty if it is unknown."""
    if not needed or not free:
        return ""
    return "good" if needed < 0.85 * free else "fair" if needed <= free else "bad"


def gauge(text: str, needed: float, free: float) -> Markup:
    """A line about needed and free memory or disk, with a colored edge."""
    template = '<p class="tp-gauge{% if mood %} tp-{{ mood }}{% endif %}">{{ text }}</p>'
    return html(template, text=text, mood=usage_mood(needed, free))


def progress_bar(share: float) -> Markup:
    return Markup(PROGRESS_BAR).format(100 * max(0.0, min(1.0, share)))


def problem(text: str, *parts: str) -> Markup:
    """A box with a problem, then parts that are HTML; each line of the text is a problem of its own."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) == 1:
        return card("", Markup("<p>{}</p>").format(link_settings(text)), *parts, mood="bad")
    return card(f"{len(lines)} problems to fix", bullets(map(link_settings, lines)), *parts, mood="bad")


def job_status(event: events.Stage | events.JobEnded) -> Markup:
    """The stage of a job, or how it ended."""
    if isinstance(event, events.Stage):
        progress = "" if event.share is None else progress_bar(event.share)
        return paragraph(f"{event.text} ...", quiet=True) + progress
    if event.outcome == "failed":
        return problem(event.text, details("Details", event.details))
    return card("", paragraph(event.text), mood="good") if event.text else Markup()


def download_card(job: Job) -> tuple[float | None, Markup]:
    """The share of a download that is done, None if unknown; and its progress or end as a card."""
    if (end := job.end) is not None:
        ended = card("", paragraph(end.text), mood="fair")
        return None, problem(end.text) if end.outcome == "failed" else ended
    log = job.log.since(0)
    fetched = next((event for event in reversed(log) if isinstance(event, events.DownloadProgress)), None)
    bar = [progress_bar(fetched.share), paragraph(event_words.event_text(fetched))] if fetched else []
    # The first note stays; a later one, or a stage, is over once bytes arrive again.
    first_note = next((event for event in log if isinstance(event, events.Note)), None)
    latest = next((event for event in reversed(log) if event is not first_note), None)
    status = latest.text if isinstance(latest, (events.Note, events.Stage)) else ""
    if job.control.asked(Request.STOP):
        status = "Stopping ..."
    texts = [status, first_note.text if first_note else ""]
    lines = [paragraph(text, quiet=True) for text in texts if text]
    return fetched.share if fetched else None, card(job.title, *bar, *lines, mood="live")


def apply_button(label: str, values: Mapping[str, object], *, chosen: bool = False) -> Markup:
    """An HTML button that puts these values into the form; `chosen` means that the form has them already."""
    pressed = Markup(' aria-pressed="true"') if chosen else ""
    template = Markup('<button type="button" class="tp-use" data-tp-set="{}"{}>{}</button>')
    # The label may be part of a sentence elsewhere; on a button it begins with a capital letter.
    return template.format(json.dumps(dict(values)), pressed, label[:1].upper() + label[1:])


def fill_button(box: str, text: str, label: str) -> Markup:
    """An HTML button that puts a text into the text box with the element id `box`."""
    template = Markup('<button type="button" class="tp-use" data-tp-box="{}" data-tp-text="{}">{}</button>')
    return template.format(box, text, label)


def setting_link(key: str, label: str) -> Markup:
    """An HTML link that jumps to a setting."""
    title = next((title for title, rows in FOLDED_ROWS.items() for row in rows if key in row), "")
    return html(SETTING_LINK, key=key, label=label, part_id=part_id(title) if title else "", part_title=title)


def reset_button(key: str, default: str) -> Markup:
    """An HTML button that resets a setting to its default. clicks.js attaches it to the changed setting."""
    setting, title = SETTINGS[key], f"Reset to the default: {default or 'empty'}"
    return Markup(RESET_BUTTON).format(key, json.dumps({key: setting.default}), title, setting.label)


def link_settings(text: str) -> Markup:
    """A sentence as HTML, with a link on the label of a setting at its start and after the word 'under'.

    Flags of the command line behind labels are left out.
    """
    label, colon, rest = FLAG.sub("", text).partition(":")
    if colon and label in _KEY_BY_LABEL:
        return setting_link(_KEY_BY_LABEL[label], label) + ":" + link_settings(rest)
    parts = _LABEL_AFTER_UNDER.split(FLAG.sub("", text))  # alternates: text, label, text, ...
    return Markup("").join(
        setting_link(_KEY_BY_LABEL[part], part) if n % 2 else part for n, part in enumerate(parts)
    )


def outdated_notice(kind: str) -> Markup:
    """The notice inside a result, hidden until the style sheet of `outdated_style` shows it."""
    return Markup('<p class="tp-outdated tp-outdated-{}">{}</p>').format(kind, NOTICES[kind])


def outdated_style(kinds: Iterable[str]) -> Markup:
    """A style sheet that shows the notices of these results, and dims what is below them; empty without kinds."""
    rule = Markup(
        "<style>.tp-card .tp-outdated-{0} {{display: block !important}} "
        ".tp-card .tp-outdated-{0} ~ * {{opacity: .5}}</style>"
    )
    return Markup("").join(rule.format(kind) for kind in kinds)
