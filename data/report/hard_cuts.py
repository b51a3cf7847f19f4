"""Suggest hard cuts: marks, headings, empty lines between conversations, and the numbers of verses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...chunking import Text, escape_hard_cut
from ...core.findings import Finding, Suggestion, advice
from ...train_utils import format_count, plural
from ..examples import Source, TextSource, group_parts
from ..text import is_tagged

ORNAMENT_LINE = re.compile(r"^[ \t]*((?:[*#=~_•-][ \t]?){3,}|⁂)[ \t]*$", re.MULTILINE)
HEADING_WORDS = (
    "chapter|kapitel|chapitre|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|act|scene"
)
HEADING_NUMBERS = r"\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
CHINESE_HEADING = r"(第)[\d〇零一二三四五六七八九十百]{1,7}[回章卷節节話话部]"
HEADING = re.compile(
    rf"^(?:({HEADING_WORDS})[ \t]+(?:{HEADING_NUMBERS})\b|{CHINESE_HEADING}).{{0,60}}$",
    re.MULTILINE | re.IGNORECASE,
)
ORNAMENT_SIGNS = "*#=~_•⁂"  # signs that are used nowhere else, so lines with them may be indented
BLANK_LINES = re.compile(r"\n(?=[ \t]*\n[ \t]+\n|[ \t]+\n[ \t]*\n)[ \t]*\n[ \t]*\n")  # one of them has spaces
HEADING_CHARS, HEADING_SHARE = 80, 0.25  # a section that is only a heading; of all sections
MIN_HEADINGS, HEADINGS_PER_SECTION = 8, 2
BROKEN_SHARE = 0.1  # of the sections, which end in the middle of a sentence
HEADINGS_BETWEEN = 2  # lines of the heading of a page
MIN_MATCHES, MAX_CHARS = 2, 10**7
CONVERSATION_CUT = "\n\n"
MIN_CONVERSATIONS = 8
TAGGED_SHARE = 0.9  # of the lines, which begin with a speaker or a time
TALK_SHARE = 0.6  # of the conversations, which have several lines; of the lines, which have several words
TALK_WORDS = 4  # after the speaker, so that no table of keys and values is meant
VERSE_NUMBER = re.compile(r"^[ \t]*(\d{1,3}):(\d{1,3})[ \t]", re.MULTILINE)
VERSE_SHARE, MIN_VERSES = 0.5, 20  # of the lines
MAX_CHAPTERS_NAMED = 3


def suggest_hard_cuts(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """Suggest a hard cut for the first text that has none but has other marks, or whose headings stand alone."""
    texts = (source for source in sources if isinstance(source, TextSource))
    for source in texts:
        if source.part <= 1 and (suggestion := _suggest_hard_cut(source)):  # of a large file only the first part
            yield suggestion
            return


def _suggest_hard_cut(source: TextSource) -> Suggestion | None:
    if conversations := _suggest_conversations(source):
        return conversations
    if len(source.sliced.sections) > 1:
        return _suggest_wider_cut(source) or _suggest_headings(source)
    text = source.sliced.text[:MAX_CHARS]
    mark, count = _most_common_mark(text)
    if count >= MIN_MATCHES:
        reason = (
            f"{source.name}: {mark!r} appears {count} times at the start of a line, so it may separate sections."
        )
        return Suggestion("hard_cut", mark if mark[0] in ORNAMENT_SIGNS else f"\\n{mark}", reason)
    blank, count = _most_common(BLANK_LINES.findall(text))
    if count >= MIN_MATCHES:
        reason = (
            f"{source.name}: in {count} places, two blank lines follow each other but contain spaces, so the "
            "hard cut does not match them."
        )
        return Suggestion("hard_cut", escape_hard_cut(blank), reason)
    return None


def _suggest_wider_cut(source: TextSource) -> Suggestion | None:
    """One more line break, where headings are cut off from what they head."""
    hard_cut, text = source.sliced.units.rules.hard_cut, source.sliced.text[:MAX_CHARS]
    headings = _count_headings(text, hard_cut)
    if not headings or hard_cut.strip("\n"):
        return None
    wider = hard_cut + "\n"
    if len(text.split(wider)) < MIN_MATCHES + 1 or _count_headings(text, wider):
        return None
    return Suggestion(
        "hard_cut",
        escape_hard_cut(wider),
        f"{source.name}: {format_count(headings, 'section')} {plural(headings, 'has', 'have')} only a heading, so "
        "the model would learn to stop after a heading. To keep each heading with its text, add one more line "
        "break to the hard cut.",
    )


def _suggest_headings(source: TextSource) -> Suggestion | None:
    """The word of the headings, if most of them are inside sections. A table of contents repeats each of them."""
    text, sections = source.sliced.text[:MAX_CHARS], len(source.sliced.sections)
    headings = {match[0].strip(): match[match.lastindex or 0] for match in HEADING.finditer(text)}
    mark, count = _most_common(headings.values())
    if count < max(MIN_HEADINGS, HEADINGS_PER_SECTION * sections):
        return None
    reason = (
        f"{source.name}: {count:,} headings start with {mark!r}, but there are only {sections:,} sections, so "
        "most chapters are not separated."
    )
    return Suggestion("hard_cut", f"\\n{mark}", reason)


def check_page_breaks(sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield advice where the sections of a text end in the middle of a sentence, as at the pages of a scan."""
    for group in group_parts(source for source in sources if isinstance(source, TextSource)):
        count, sections = sum(map(_count_broken_ends, group)), sum(len(each.sliced.sections) for each in group)
        if count >= max(MIN_HEADINGS, BROKEN_SHARE * sections):
            yield advice(
                "hard_cut",
                f"{group[0].name}: {count:,} of {sections:,} sections end in the middle of a sentence, so these "
                "hard cuts are probably page breaks. The model would learn to stop there. Remove the page breaks "
                "from the text, or enter another separator under Hard cut.",
            )


def _count_broken_ends(source: TextSource) -> int:
    """Count the sections that begin with a lowercase letter after one without a stop; headings may be between."""
    text, sections = str(source.sliced.text), source.sliced.sections
    starts, ends = sections.content_start.tolist(), sections.content_end.tolist()
    is_open = [text[end - 1].isalpha() or text[end - 1] in ",;-" for end in ends]
    return sum(
        text[start].islower() and any(is_open[max(0, n - HEADINGS_BETWEEN - 1) : n])
        for n, start in enumerate(starts)
    )


def _count_headings(text: str, hard_cut: str) -> int:
    """Sections of a single short line, if they are a large part of all sections."""
    sections = [section for part in text.split(hard_cut) if (section := part.strip())] if hard_cut else []
    short = sum(len(section) <= HEADING_CHARS and "\n" not in section for section in sections)
    return short if short >= HEADING_SHARE * len(sections) else 0


def _most_common_mark(text: str) -> tuple[str, int]:
    """Return the most common mark and its count; of headings only the word, since their numbers differ."""
    return _most_common(
        match[match.lastindex or 0].rstrip()
        for pattern in (ORNAMENT_LINE, HEADING)
        for match in pattern.finditer(text)
    )


def _most_common(marks: Iterable[str]) -> tuple[str, int]:
    counts = Counter(marks)
    return counts.most_common(1)[0] if counts else ("", 0)


def _suggest_conversations(source: TextSource) -> Suggestion | None:
    """The empty line between the conversations of a chat log; a play has one between the speeches, too."""
    hard_cut, text = source.sliced.units.rules.hard_cut, source.sliced.text[:MAX_CHARS]
    parts = [part.splitlines() for part in text.split(CONVERSATION_CUT) if part.strip()]
    if hard_cut.strip("\n") or len(hard_cut) == len(CONVERSATION_CUT) or len(parts) < MIN_CONVERSATIONS:
        return None
    if len(parts) < 2 * len(source.sliced.sections) or not _are_conversations(parts):
        return None
    reason = (
        f"{source.name}: empty lines separate {len(parts):,} conversations. No block should contain text from "
        "more than one of them."
    )
    return Suggestion("hard_cut", escape_hard_cut(CONVERSATION_CUT), reason)


def _are_conversations(parts: Sequence[Sequence[str]]) -> bool:
    """Whether most parts have several lines, and nearly all lines begin with a speaker who says something."""
    lines = [line for part in parts for line in part]
    heads = [line.partition(":")[0] for line in lines]
    return (
        sum(len(part) > 1 for part in parts) >= TALK_SHARE * len(parts)
        and sum(len(line.split()) > TALK_WORDS for line in lines) >= TALK_SHARE * len(lines)
        and sum(map(str.isupper, heads)) < TAGGED_SHARE * len(heads)  # the characters of a play
        and sum(map(is_tagged, lines)) >= TAGGED_SHARE * len(lines)
    )


def describe_verses(text: Text) -> str:
    """What to do with a text whose lines are numbered by chapter and verse; empty for other texts.

    A hard cut is a fixed text, so it cannot stand for a number that changes.
    """
    verses = [(match[1], match[2]) for match in VERSE_NUMBER.finditer(text[:MAX_CHARS])]
    lines = sum(not line.isspace() for line in text[:MAX_CHARS].split("\n") if line)
    first_verses = dict(reversed(verses))
    if len(verses) < max(MIN_VERSES, VERSE_SHARE * lines) or len(first_verses) < MIN_MATCHES:
        return ""
    chapters = list(dict.fromkeys(chapter for chapter, _ in verses))[1 : MAX_CHAPTERS_NAMED + 1]
    named = ", ".join(f"{chapter}:{first_verses[chapter]}" for chapter in chapters)
    return (
        f"The verses of this text are numbered {':'.join(verses[0])} to {':'.join(verses[-1])}. A hard cut "
        "matches only one fixed string, so it can't match chapter numbers that change. Insert the hard cut before "
        f"the first verse of each chapter in your text (before {named} and so on)."
    )
