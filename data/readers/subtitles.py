"""Subtitles (.srt, .vtt) to lines of speech, without numbers, times and formatting."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
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
    subtitles = [lines for lines in _split_subtitles(text.split("\n")) if lines]
    for lines in _without_repeats(subtitles) if _are_rolling(subtitles) else subtitles:
        speech = ""
        for line in lines:
            if speech and DASH.match(line):
                yield speech
                speech = ""
            speech += joint(speech, line) + line if speech else line
        if speech:
            yield speech


def _are_rolling(subtitles: Sequence[list[str]]) -> bool:
    """Whether subtitles of several lines mostly begin with the line that was shown last."""
    repeats = [before[-1] == lines[0] for before, lines in pairwise(subtitles) if len(lines) > 1]
    return bool(repeats) and sum(repeats) >= len(repeats) / 2


def _without_repeats(subtitles: Sequence[list[str]]) -> Iterator[list[str]]:
    """Subtitles without the lines that are still shown from the one before."""
    last = ""
    for lines in subtitles:
        yield lines[lines[0] == last :]
        last = lines[-1]


def _split_subtitles(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each subtitle, from its time to the line before the next one's number."""
    times = [number for number, line in enumerate(lines) if TIME.match(line)]
    for time_line, next_time in zip(times, [*times[1:], None], strict=True):
        own = lines[time_line + 1 : next_time]
        if next_time:
            own = _without_name(own)
        yield [text for line in _cut_at_note(own) if (text := _plain_text(line))]


def _without_name(lines: list[str]) -> list[str]:
    """The lines before a time without the number or name of its subtitle.

    It is usually a number, after a blank line, and right before the time. Two of these are enough: a name is no
    number, and some files have a blank line after every line.
    """
    last = max((number for number, line in enumerate(lines) if line.strip()), default=0)
    is_number = bool(lines) and lines[last].strip().isdecimal()
    follows_blank = last > 0 and not lines[last - 1].strip()
    precedes_time = last == len(lines) - 1
    return lines[:last] if is_number + follows_blank + precedes_time > 1 else lines


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
