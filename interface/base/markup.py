"""Small pieces of HTML, and sentences that several panels share. All user text is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape

from ...core.jobs import JobEnded, Stage
from ...train_utils import time_of_day
from .links import apply_button, link_settings


def card(title: str, *parts: str, mood: str = "") -> str:
    """A framed box; `mood` is good, fair, bad or live and sets the color of its edge."""
    head = f"<h4>{escape(title)}</h4>" if title else ""
    return f'<div class="tp-card{" tp-" + mood if mood else ""}">{head}{"".join(parts)}</div>'


def paragraph(text: str, *, quiet: bool = False) -> str:
    content = escape(text).replace("\n", "<br>")
    return f'<p class="tp-quiet">{content}</p>' if quiet else f"<p>{content}</p>"


def bullets(texts: Iterable[str], *, quiet: bool = False) -> str:
    return html_list(map(escape, texts), quiet=quiet)


def html_list(rows: Iterable[str], *, quiet: bool = False) -> str:
    """A list of rows that are already HTML."""
    items = "".join(f"<li>{row}</li>" for row in rows)
    return f"<ul{' class=tp-quiet' if quiet else ''}>{items}</ul>" if items else ""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a header row; a wide one scrolls inside its own box."""
    lines = [table_row("th", header), *(table_row("td", row) for row in rows)]
    return f'<div class="tp-wide"><table class="tp-table">{"".join(lines)}</table></div>'


def table_row(tag: str, texts: Iterable[str]) -> str:
    """A row of a table; `tag` is th or td."""
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def details(title: str, text: str) -> str:
    if not text:
        return ""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def code(words: Iterable[str]) -> str:
    """Text to copy, with line breaks only between the words."""
    return f'<pre class="tp-code">{" ".join(f"<span>{escape(word)}</span>" for word in words)}</pre>'


def legend(colors: Iterable[tuple[str, str]]) -> str:
    """The legend of a picture; a color and its label stay on one line."""
    pairs = (f'<i style="background:{color}"></i>{escape(label)}' for color, label in colors)
    return " ".join(f"<span>{pair}</span>" for pair in pairs)


def fold_long_list(text: str, max_chars: int = 160) -> str:
    """A text as HTML; a long list after a colon is folded under the words before the colon."""
    head, colon, rest = text.partition(": ")
    if len(text) <= max_chars or not colon:
        return escape(text)
    return f"<details><summary>{escape(head)}</summary>{escape(rest)}</details>"


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """A row of figures, each with the value above its name."""
    rows = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in pairs)
    return f'<div class="tp-figures">{rows}</div>'


def usage_mood(needed: float, free: float) -> str:
    """How much of the free memory or disk would be used, as a mood; empty if it is unknown."""
    if not needed or not free:
        return ""
    return "good" if needed < 0.85 * free else "fair" if needed <= free else "bad"


def gauge(text: str, needed: float, free: float) -> str:
    """A line about needed and free memory or disk, with a colored edge."""
    level = usage_mood(needed, free)
    return f'<p class="tp-gauge{" tp-" + level if level else ""}">{escape(text)}</p>'


def progress_bar(share: float) -> str:
    share_shown = max(0.0, min(1.0, share))
    return (
        f'<div class="tp-bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{share_shown * 100:.0f}"><i style="width:{share_shown * 100:.1f}%"></i></div>'
    )


def problem(text: str) -> str:
    """A box with a problem; each line of the text is a problem of its own."""
    lines = text.splitlines()
    if len(lines) == 1:
        return card("", f"<p>{link_settings(text)}</p>", mood="bad")
    return card(f"{len(lines)} things to mend", html_list(map(link_settings, lines)), mood="bad")


def job_status(event: Stage | JobEnded) -> str:
    """The stage of a job, or how it ended."""
    if isinstance(event, Stage):
        progress = "" if event.share is None else progress_bar(event.share)
        return paragraph(f"{event.text} ...", quiet=True) + progress
    if event.outcome == "failed":
        return problem(event.text)
    return card("", paragraph(event.text), mood="good") if event.text else ""


def time_after(seconds_from_now: float) -> str:
    """The time of day after so many seconds: '06:40', or '06:40 tomorrow'."""
    now = time.time()
    return time_of_day(now + seconds_from_now, now)


def existing_name_line(name: str, description: str, continue_words: str, chosen: str, free: str) -> str:
    """A line about an existing run of this name, with a button for each way to proceed."""
    labels = {
        "continue": continue_words,
        "replace": "replace it (a backup is kept)",
        "new_name": f"use a new name: {free}",
    }
    buttons = "".join(
        apply_button(label, {"if_exists": choice}, chosen=choice == chosen)
        for choice, label in labels.items()
        if label
    )
    return f'<p class="tp-quiet">{escape(name)} exists: {description}. {buttons}</p>'
