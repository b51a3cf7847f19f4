"""Subtitles (.srt, .vtt) to lines of speech, without numbers, times and formatting."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...core.errors import DataError
from ..unspaced import joint
from . import text_files
from .paragraphs import Paragraph

TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->")
VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s([^<>]*)>")
FORMATTING = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
DASH = re.compile(r"\s*[-–—‐]")
PRONOUN = re.compile(r"I\b")  # the only capital letter that English has inside a sentence everywhere
STOPS = '.!?…:;"”’»)]♪'
LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{1000,};?")  # to no character; Python refuses such numbers


def read_paragraphs(path: Path, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """A line for each subtitle, or for each speaker in it; subtitles that divide a sentence share a line."""
    text, notes = text_files.read_text(path, name)
    if not any(map(TIME.match, text.split("\n"))):
        raise DataError(
            f"{name} has no timestamps, so it is not a subtitle file. If it is plain text, rename it to end in "
            ".txt."
        )
    return [Paragraph(line, line=True) for line in _join_divided(_speech_lines(text))], notes


def _join_divided(speech: Iterable[str]) -> Iterator[str]:
    """Join the lines that share a sentence."""
    parts: list[str] = []
    for line in speech:
        if parts and not _continues(parts[-1], line):
            yield " ".join(parts)
            parts = []
        parts.append(line)
    if parts:
        yield " ".join(parts)


def _continues(line: str, following: str) -> bool:
    """Whether a sentence goes on in the following line: it has no stop yet, and no speaker or sentence begins."""
    if line[-1] in STOPS or DASH.match(following):
        return False
    return line.endswith(",") or following[0].islower() or PRONOUN.match(following) is not None


def _speech_lines(text: str) -> Iterator[str]:
    previous = ""
    for subtitle in _split_subtitles(text.split("\n")):
        speech = ""
        for line in subtitle:
            if line == previous:
                continue  # rolling subtitles show each line twice
            previous = line
            if speech and DASH.match(line):
                yield speech
                speech = ""
            speech += joint(speech, line) + line if speech else line
        if speech:
            yield speech


def _split_subtitles(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each subtitle, from its time to the line before the next one's number."""
    times = [number for number, line in enumerate(lines) if TIME.match(line)]
    for time_line, end in zip(times, [*times[1:], len(lines) + 1], strict=True):
        own = lines[time_line + 1 : end - 1 if end <= len(lines) else end]
        if end <= len(lines) and lines[end - 1].strip() and not _is_name(lines, end - 1):
            own.append(lines[end - 1])
        yield [text for line in _cut_at_note(own) if (text := _plain_text(line))]


def _is_name(lines: list[str], number: int) -> bool:
    """Whether the line before a time is the subtitle's number or name."""
    return lines[number].strip().isdecimal() or not lines[number - 1].strip()


def _cut_at_note(lines: list[str]) -> Iterator[str]:
    """The lines before a comment or style block of a .vtt file, which begins after a blank line."""
    for number, line in enumerate(lines):
        if line.startswith(("NOTE", "STYLE", "REGION")) and number and not lines[number - 1].strip():
            return
        yield line


def _plain_text(line: str) -> str:
    """A line without formatting; a speaker in a voice tag is put in front of it."""
    spoken = VOICE.sub(lambda voice: f"{voice[1].lstrip()}: ", line)
    return html.unescape(LONG_REFERENCE.sub("\ufffd", FORMATTING.sub("", spoken))).strip()
