"""Small pieces of HTML and the sentences that several panels share; every text of the user's is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape

from ...core.jobs import Ended, Stage
from ...train_utils import time_of_day
from .links import pointing, use


def card(title: str, *parts: str, mood: str = "") -> str:
    """A framed part of the page; `mood` is good, fair, bad or live."""
    head = f"<h4>{escape(title)}</h4>" if title else ""
    return f'<div class="tp-card{" tp-" + mood if mood else ""}">{head}{"".join(parts)}</div>'


def paragraph(text: str, *, quiet: bool = False) -> str:
    inside = escape(text).replace("\n", "<br>")
    return f'<p class="tp-quiet">{inside}</p>' if quiet else f"<p>{inside}</p>"


def bullets(texts: Iterable[str], *, quiet: bool = False) -> str:
    return listed(map(escape, texts), quiet=quiet)


def listed(rows: Iterable[str], *, quiet: bool = False) -> str:
    """Rows that are HTML already."""
    inside = "".join(f"<li>{row}</li>" for row in rows)
    return f"<ul{' class=tp-quiet' if quiet else ''}>{inside}</ul>" if inside else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows under their heads; wide ones scroll by themselves."""
    lines = [cells("th", head), *(cells("td", row) for row in rows)]
    return f'<div class="tp-wide"><table class="tp-table">{"".join(lines)}</table></div>'


def cells(tag: str, texts: Iterable[str]) -> str:
    """A row of a table; `tag` is th or td."""
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def folded(title: str, text: str) -> str:
    if not text:
        return ""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def code(words: Iterable[str]) -> str:
    """A line to be copied, which goes on in the next only between its words."""
    return f'<pre class="tp-code">{" ".join(f"<span>{escape(word)}</span>" for word in words)}</pre>'


def legend(colours: Iterable[tuple[str, str]]) -> str:
    """What each colour of a picture means; a colour and its words stay on one line."""
    pairs = (f'<i style="background:{colour}"></i>{escape(words)}' for colour, words in colours)
    return " ".join(f"<span>{pair}</span>" for pair in pairs)


def begun(text: str, most: int = 160) -> str:
    """A long list behind a colon is folded away behind the words before it."""
    head, colon, rest = text.partition(": ")
    if len(text) <= most or not colon:
        return escape(text)
    return f"<details><summary>{escape(head)}</summary>{escape(rest)}</details>"


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures at a glance: value above, name below."""
    rows = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in pairs)
    return f'<div class="tp-figures">{rows}</div>'


def mood(needed: float, free: float) -> str:
    """Green, yellow or red: how much of what is free would be taken; nothing where that is not known."""
    if not needed or not free:
        return ""
    return "good" if needed < 0.85 * free else "fair" if needed <= free else "bad"


def gauge(text: str, needed: float, free: float) -> str:
    """What something needs against what there is, with its colour at the side."""
    said = mood(needed, free)
    return f'<p class="tp-gauge{" tp-" + said if said else ""}">{escape(text)}</p>'


def bar(share: float) -> str:
    done = max(0.0, min(1.0, share))
    return (
        f'<div class="tp-bar" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{done * 100:.0f}"><i style="width:{done * 100:.1f}%"></i></div>'
    )


def problem(text: str) -> str:
    """Something that stands in the way; several lines are several problems."""
    lines = text.splitlines()
    if len(lines) == 1:
        return card("", f"<p>{pointing(text)}</p>", mood="bad")
    return card(f"{len(lines)} things to mend", listed(map(pointing, lines)), mood="bad")


def told(event: Stage | Ended) -> str:
    """What a job is at, or how it ended."""
    if isinstance(event, Stage):
        done = "" if event.share is None else bar(event.share)
        return paragraph(f"{event.text} ...", quiet=True) + done
    if event.outcome == "failed":
        return problem(event.text)
    return card("", paragraph(event.text), mood="good") if event.text else ""


def clock(seconds_from_now: float) -> str:
    """The time of day then: '06:40', or '06:40 tomorrow'."""
    now = time.time()
    return time_of_day(now + seconds_from_now, now)


def exists(name: str, what: str, going_on: str, chosen: str, free: str) -> str:
    """What stands under a name already, and what may be done about it, with a click each."""
    ways = {
        "continue": going_on,
        "replace": "replace it (a backup is kept)",
        "new_name": f"use a new name: {free}",
    }
    buttons = "".join(use(words, {"if_exists": way}, chosen=way == chosen) for way, words in ways.items() if words)
    return f'<p class="tp-quiet">{escape(name)} exists: {what}. {buttons}</p>'
