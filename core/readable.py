"""Values and messages as people can read them: of bounded length, with every invisible character made visible."""

from __future__ import annotations

import re

# The most characters of a quoted value; the rest is cut off
MAX_VALUE_CHARS = 60
# The most characters of a path or other word without spaces; a longer one loses its middle
MAX_WORD_CHARS = 300
MAX_LINE_CHARS = 3000
ELLIPSIS = "\u2026"
# Control characters except line feed and tab, direction and zero-width marks, and lone surrogates
INVISIBLE_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARS + 1},}}")


def quote(value: object) -> str:
    """Format a value for a message: quoted, on one line, and not too long."""
    text = str(value)
    return repr(text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + ELLIPSIS)


def readable(text: str) -> str:
    """Return a message as it can be shown, sent and saved anywhere.

    A value in it may be long or have any character: a name from the disk may hold bytes that are not text.
    """
    visible = INVISIBLE_CHARACTERS.sub(_escape, text.replace("\r\n", "\n"))
    if len(visible) <= MAX_WORD_CHARS:
        return visible
    return "\n".join(_cut_middle(line, MAX_LINE_CHARS) for line in LONG_WORD.sub(_shorten, visible).split("\n"))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _shorten(match: re.Match[str]) -> str:
    return _cut_middle(match[0], MAX_WORD_CHARS)


def _cut_middle(text: str, limit: int) -> str:
    """Cut out the middle: what a value begins with matters, and what to do stands at the end."""
    return text if len(text) <= limit else text[: limit // 2] + ELLIPSIS + text[-limit // 2 :]
