"""Words that a line break divides at a hyphen, which are written as elsewhere in the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

WORD = re.compile(r"\w+(?:-\w+)*")
LAST_WORD = re.compile(r"(\w+(?:-\w+)*)-?$")
# "Vor- und Nachteile", "nineteenth- and twentieth-century": the hyphen stands for the end of the second word.
SUSPENDED = re.compile(r"(?:und|oder|bzw|and)\b")
DIVIDED = re.compile(r"\w[-\u2010]\s*\n")


def find_words(texts: Iterable[str]) -> Collection[str]:
    """The words of the texts, if a line break divides any of them."""
    divided = list(texts)
    if not any(map(DIVIDED.search, divided)):
        return ()
    return {word[0].lower() for text in divided for word in WORD.finditer(text)}


def has_hyphen(line: str, next_line: str, words: Collection[str]) -> bool | None:
    """Whether the word from a line to the next one is written with a hyphen elsewhere; None if it is nowhere."""
    last, first = LAST_WORD.search(line), WORD.match(next_line)
    if not last or not first:
        return None
    if (last[1] + first[0]).lower() in words:
        return False
    return True if f"{last[1]}-{first[0]}".lower() in words else None
