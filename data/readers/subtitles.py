"""Subtitles (.srt, .vtt) to lines: what is said, without numbers, times and marks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import DataError
from . import text_files
from .paragraphs import Paragraph

TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->")
VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]*)>")
MARKS = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
DASH = re.compile(r"\s*[-–—‐]")
UNSPACED = re.compile(r"[\u2e80-\uffee]$")


def paragraphs(path: Path, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """A line for each subtitle, or for each who speaks in it."""
    text, notes = text_files.text_of(path, name)
    if not any(map(TIME.match, text.split("\n"))):
        raise DataError(f"{name} holds no times, so it is no file of subtitles. If it is text, rename it to .txt.")
    return [Paragraph(line, line=True) for line in _lines(text)], notes


def _lines(text: str) -> Iterator[str]:
    before = ""
    for subtitle in _subtitles(text.split("\n")):
        said = ""
        for line in subtitle:
            if line == before:
                continue  # subtitles that roll show each line twice
            before = line
            if said and DASH.match(line):
                yield said
                said = ""
            said += line if not said or UNSPACED.search(said) else " " + line
        if said:
            yield said


def _subtitles(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each, from its time to the line before the next one's number."""
    places = [number for number, line in enumerate(lines) if TIME.match(line)]
    for place, end in zip(places, [*places[1:], len(lines) + 1], strict=True):
        own = lines[place + 1 : end - 1 if end <= len(lines) else end]
        if end <= len(lines) and lines[end - 1].strip() and not _is_name(lines, end - 1):
            own.append(lines[end - 1])
        yield [bare for line in _until_note(own) if (bare := _bare(line))]


def _is_name(lines: list[str], number: int) -> bool:
    """Whether the line before a time is the subtitle's number or name."""
    return lines[number].strip().isdecimal() or not lines[number - 1].strip()


def _until_note(lines: list[str]) -> Iterator[str]:
    """Without what a file of .vtt says to itself behind a blank line."""
    for number, line in enumerate(lines):
        if line.startswith(("NOTE", "STYLE", "REGION")) and number and not lines[number - 1].strip():
            return
        yield line


def _bare(line: str) -> str:
    """A line without marks; who speaks, where a mark says it, stands before it."""
    return html.unescape(MARKS.sub("", VOICE.sub(r"\1: ", line))).strip()
