"""Subtitles (.srt, .vtt) to lines of speech, without numbers, times and formatting."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from ...core.errors import DataError
from ..unspaced import joint
from . import text_files
from .documents import Paragraph

TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->")
VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s([^<>]*)>")
FORMATTING = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
DASH = re.compile(r"\s*[-–—‐]")
PRONOUN = re.compile(r"I\b")  # the only capital letter that English has inside a sentence everywhere
STOPS = '.!?…:;"”’»)]♪'
LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{1000,};?")  # to no character; Python refuses such numbers


def read_subtitles(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """A line for each subtitle, or for each speaker in it; subtitles that divide a sentence share a line."""
    content, notes = text_files.decode_bytes(stream.read(), name)
    text = text_files.normalize_line_ends(content)
    if not any(map(TIME.match, text.split("\n"))):
        raise DataError(
            f"{name} has no timestamps, so it is not a subtitle file. If it is plain text, rename it to end in "
            ".txt."
        )
    subtitles = [lines for lines in _split_subtitles(text.split("\n")) if lines]
    # Rolling subtitles mostly begin with the line that was shown last: it is not said again.
    repeats = [before[-1] == lines[0] for before, lines in pairwise(subtitles) if len(lines) > 1]
    are_rolling = bool(repeats) and sum(repeats) >= len(repeats) / 2
    speeches: list[str] = []  # what is said, by one speaker each
    last = ""
    for lines in subtitles:
        for number, line in enumerate(lines[are_rolling and lines[0] == last :]):
            if not number or DASH.match(line):
                speeches.append(line)
            else:
                speeches[-1] += joint(speeches[-1], line) + line
        last = lines[-1]
    # Those that share a sentence are joined: the first has no stop yet, and no speaker or sentence begins.
    joined: list[str] = []
    for line in speeches:
        before = joined[-1] if joined else "."
        goes_on = before.endswith(",") or line[0].islower() or PRONOUN.match(line) is not None
        if before[-1] not in STOPS and not DASH.match(line) and goes_on:
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return [Paragraph(line, line=True) for line in joined], notes


def _split_subtitles(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each subtitle, from its time to the line before the next one's number."""
    times = [number for number, line in enumerate(lines) if TIME.match(line)]
    for time_line, next_time in zip(times, [*times[1:], None], strict=True):
        own = lines[time_line + 1 : next_time]
        if next_time and own:
            # Before a time is the number or name of its subtitle. It is usually a number, after a blank line, and
            # right before the time. Two of these are enough: a name is no number, and some files have a blank line
            # after every line.
            last = max((number for number, line in enumerate(own) if line.strip()), default=0)
            follows_blank, precedes_time = last > 0 and not own[last - 1].strip(), last == len(own) - 1
            if own[last].strip().isdecimal() + follows_blank + precedes_time > 1:
                own = own[:last]
        for number, line in enumerate(own):
            # After a blank line, these begin a comment or style block of a .vtt file.
            if line.startswith(("NOTE", "STYLE", "REGION")) and number and not own[number - 1].strip():
                own = own[:number]
                break
        # A speaker in a voice tag is put in front of the line.
        spoken = (VOICE.sub(lambda voice: f"{voice[1].lstrip()}: ", line) for line in own)
        plain = (html.unescape(LONG_REFERENCE.sub("\ufffd", FORMATTING.sub("", line))).strip() for line in spoken)
        yield list(filter(None, plain))
