"""Scripts that are written without spaces between words, such as Chinese and Japanese; Korean has spaces."""

from __future__ import annotations

import re

UNSPACED = (
    "\u2e80-\u2fff\u3001-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff9f\uffe0-\uffe6"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
ANY_SCRIPT = "“”‘’…—·"  # marks of all scripts
UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")
LETTER, OTHERS = rf"(?=\w)[{UNSPACED}]", rf"[^\W{UNSPACED}]+"
WORD = re.compile(f"{LETTER}|{OTHERS}")
"""A word; in scripts without spaces, each letter is one."""
SPOKEN_WORD = re.compile(rf"{LETTER}|{OTHERS}(?:['\u2019]{OTHERS})*")  # "don't" is one
BETWEEN_SPACES = re.compile(rf"{LETTER}|[^\s{UNSPACED}]+")
LINE_BREAK = re.compile(
    rf"(?:(?<=[{UNSPACED}])[ \t]*\n[ \t\n]*(?=[{UNSPACED}{ANY_SCRIPT}])"
    rf"|(?<=[{ANY_SCRIPT}])[ \t]*\n[ \t\n]*(?=[{UNSPACED}]))"
)


def is_unspaced(letter: str) -> bool:
    """Whether a letter is of a script without spaces, in which lines wrap between any two letters."""
    return UNSPACED_LETTER.match(letter) is not None


def count_words(text: str) -> int:
    """Count what stands between spaces, and the letters of scripts without spaces."""
    return len(BETWEEN_SPACES.findall(text))


def joint(line: str, next_line: str) -> str:
    """What stands between two lines if they are joined: a space, or nothing in a script without spaces."""
    return "" if LINE_BREAK.search(f"{line[-1:]}\n{next_line[:1]}") else " "


def join_unspaced(text: str) -> str:
    """A text without the line breaks inside of passages in a script without spaces."""
    return LINE_BREAK.sub("", text)
