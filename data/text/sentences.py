"""Find the ends of sentences in any language: rules for punctuation, and tables of words for each language.

A stop ends a sentence unless the text after it continues it (a lowercase letter, no space), or the word before it
is an abbreviation, an initial or an ordinal. A line end does too, except in wrapped prose. The words of all
languages are in languages.json and used together, so that no text's language has to be guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from ...chunking import Flags, Ints
from . import footnotes
from .lines import NARROW_LINE, OPENERS, RAGGED_CHARS, WIDE_LINE, WIDEST_LINE, Lines, find_wrapped, split_lines

STRETCH_CHARS = 1 << 20  # text processed at a time
WORD_CHARS = 32  # searched before a dot
MAX_UNFINISHED = 0.02  # of the long lines; a text with more has lines that need no stop
MAX_DIVIDED = 0.25  # of the paragraphs that follow a blank line
LOOK_BACK = 2000  # characters searched for the beginning of a sentence

SPACED_STOPS = ".!?…‽؟۔⸮⁇⁈⁉;\u037e:"
UNSPACED = "፧。！？｡।॥։።᙮။។༎།．"
WIDE_DOT = "．"  # also a decimal point, and in a row an ellipsis
SCRIPT_STOPS = {  # the Greek question mark looks like a semicolon, the Armenian full stop like a colon
    ";": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "\u037e": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    ":": re.compile("[\u0530-\u058f]"),
}
BRACKETS = ("[", "(")
TITLE_CLOSERS = ("》", "〉")
CODE = "`"
CONTINUATIONS = frozenset(",;:.!?)…")
CLOSERS = r"`_*\"'”’»›)\]}」』】）》〉“‘«‹"
THAI = "\u0e00-\u0eff"
SPEAKER_CHARS = 40
MIN_SPEECHES, MAX_SPEAKERS = 8, 0.5  # in a stretch; names per speech
STOP = re.compile(
    rf"([{SPACED_STOPS}{UNSPACED}])([{SPACED_STOPS}{UNSPACED}]*)"
    rf"((?:[{CLOSERS}]|[ \u00a0\u202f]»(?!\w)|[\u2009\u200a\u202f][’”]|\[\d+\])*)"
    rf"(?=(\s*)((?:[{re.escape(OPENERS)}]\s?)*)(\S?))"
)
LAST_STOP = re.compile(rf"[{SPACED_STOPS}{UNSPACED}][{CLOSERS}]*\s*$")
UNSPACED_CLOSERS = "\"'”’»›)]}」』】）》〉"
STOPLESS = re.compile(f"[{THAI}]")
SENTENCES = re.compile(rf"[.!?…][{CLOSERS}]? ")  # inside a line: prose, which a page break divides
LETTER = re.compile(r"[^\W\d_]")
ELISION = re.compile(r".*['’]")
INITIALS = re.compile(r"(?:[^\W\d_][.\-]{1,2})*[^\W\d_]")
NUMBERING = re.compile(r"\d{1,3}|[ivxlc]+")
ROMAN = r"c?(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
ROMAN_NUMBER = re.compile(  # a single letter needs a number after it
    rf"(?!\w\b){ROMAN}(?<=[ivxlc])\b(?!['’])|{ROMAN}(?<=[ivxlc])\.?\s*\d", re.IGNORECASE
)
DATE = re.compile(r"\d{1,2}\.|\d{4}\b")
NEXT_WORD = re.compile(r"([^\W\d_]+)(?!\.)\b")
FOUR_WORDS = re.compile(r"[^\W\d_]+(?:\.?\s+[^\W\d_]+){0,3}")
ADVERBS = frozenset(("almost", "then", "only", "again"))


def find_sentence_ends(text: str) -> Ints:
    """Where the sentences of a text end: after the last dot, quote or bracket, or after the line end."""
    parts: list[Ints] = [np.zeros(0, np.int64)]
    for start, end in split_stretches(text):
        part = text[start:end]
        parts.append(merge_ends(part, split_lines(part), find_stop_ends(part)) + start)
    return np.concatenate(parts)


def merge_ends(text: str, lines: Lines, stops: Ints) -> Ints:
    """The ends of the sentences in a stretch: at line ends, at stops, and at the end of the stretch."""
    ends: Ints = np.unique(np.concatenate([_line_ends(lines), stops]))
    ends = footnotes.move_ends(text, ends[~_is_after_speaker(lines, ends)])
    return np.append(ends[ends != len(text)], [len(text)] if text else ends[:0])


def _is_after_speaker(lines: Lines, places: Ints) -> Flags:
    """Whether a place divides the name of a speaker, on a line of its own as in plays, from the speech."""
    short = np.flatnonzero((lines.lengths <= SPEAKER_CHARS) & lines.capital)
    names = [number for number in short if _is_speaker(lines.texts[number])]
    if len(names) < MIN_SPEECHES or len({lines.texts[number] for number in names}) > MAX_SPEAKERS * len(names):
        return np.zeros(len(places), bool)  # headings do not repeat as the names of speakers do
    starts = np.cumsum(lines.lengths + 1) - lines.lengths - 1
    filled = np.append(np.flatnonzero(~lines.blank), len(lines.texts) - 1)
    speeches = starts[filled[np.searchsorted(filled[:-1], names, side="right")]]
    name_ends = starts[names] + lines.lengths[names]
    name_before = np.searchsorted(name_ends, places, side="right") - 1
    return (name_before >= 0) & (places <= speeches[name_before])


def _is_speaker(line: str) -> bool:
    return line.isupper() and line.endswith((".", ":"))


def find_stop_ends(text: str) -> Ints:
    """The place after each stop that ends a sentence; in scripts without stops, after the space that does."""
    return np.fromiter(chain(_stop_ends(text), _spaced_ends(text)), np.int64)


def split_stretches(text: str) -> Iterator[tuple[int, int]]:
    """Parts of a long text that end with a paragraph, else with a line; one at a time is processed."""
    start = 0
    while end := stretch_end(text, start):
        yield start, end
        start = end
    yield start, len(text)


def read_stretches(chunks: Iterable[str]) -> Iterator[str]:
    """The stretches of a text that is read in chunks; a line longer than a stretch ends with a word."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        while len(rest) > 2 * STRETCH_CHARS:
            end = (
                stretch_end(rest, 0) or rest.rfind(" ", STRETCH_CHARS, 2 * STRETCH_CHARS) + 1 or 2 * STRETCH_CHARS
            )
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def stretch_end(text: str, start: int) -> int:
    """Where the stretch that starts here ends; 0 where it reaches to the end of the text."""
    window = start + STRETCH_CHARS, start + 2 * STRETCH_CHARS
    if len(text) <= window[1]:
        return 0
    end = text.find("\n\n", *window) + 2
    return end if end >= 2 else text.find("\n", *window) + 1


def _line_ends(lines: Lines) -> Ints:
    """Line ends that end a sentence: of paragraphs, verse, lists and headings, not of wrapped prose."""
    _, width, prose = find_wrapped(lines)
    full = lines.lengths > width - RAGGED_CHARS
    follows = ~lines.item[1:] & ~lines.blank[1:]
    small = lines.small[1:] & ~(lines.blank & _last_filled(lines, _stopped(lines)))[:-1]
    continued = prose[:-1] & (full[:-1] | small) & follows
    breaks = lines.small[1:] | _breaks_before_names(lines)
    broken = np.flatnonzero((width[:-1] > WIDEST_LINE) & breaks & follows)
    continued[broken] = [SENTENCES.search("\n".join(lines.texts[n : n + 2])) is not None for n in broken]
    continued |= _blank_lines_inside_sentences(lines)
    ends = np.cumsum(lines.lengths + 1)[:-1]
    return ends[~continued & ~lines.blank[1:]]  # the last of several newlines


def _breaks_before_names(lines: Lines) -> Flags:
    """Which line ends may be page breaks before a name: the line stops inside a sentence, as few others do."""
    long = lines.lengths >= WIDE_LINE
    breaks = (long & _unfinished(lines))[:-1] & lines.capital[1:]
    return breaks & (breaks.sum() <= MAX_UNFINISHED * long.sum())


def _blank_lines_inside_sentences(lines: Lines) -> Flags:
    """Which ends of blank lines divide a sentence, as in scans: no stop before, a small letter after.

    Where many do, the text has no capitals or no stops.
    """
    paragraphs = lines.blank[:-1] & ~lines.blank[1:]
    inside = paragraphs & lines.small[1:] & ~lines.item[1:] & _last_filled(lines, _unfinished(lines))[:-1]
    return inside & (inside.sum() <= MAX_DIVIDED * paragraphs.sum())


def _last_filled(lines: Lines, flags: Flags) -> Flags:
    """For each line the flag of the last line up to it that is not blank."""
    number = np.arange(len(lines.texts))
    last: Flags = flags[np.maximum.accumulate(np.where(lines.blank, 0, number))]
    return last


def _stopped(lines: Lines) -> Flags:
    """Which lines end with a stop, in quotes or brackets or not."""
    return np.array([LAST_STOP.search(line) is not None for line in lines.texts])


def _unfinished(lines: Lines) -> Flags:
    """Which lines end with a word, or a comma after one."""
    return np.array([line.rstrip().rstrip(",")[-1:].isalpha() for line in lines.texts])


def _stop_ends(text: str) -> Iterator[int]:
    """Behind each full stop, question mark and the like that ends a sentence."""
    last = 0
    for stop in STOP.finditer(text):
        rule = _unspaced_end if text[stop.end(2) - 1] in UNSPACED else _spaced_end
        if end := rule(text, stop, last):
            yield end
            last = end


def _unspaced_end(text: str, stop: re.Match[str], _: int) -> int:
    """The end at a stop that needs no space after it, unless the sentence around a quotation continues."""
    languages = _languages()
    if stop[3][:1] in TITLE_CLOSERS or (stop[1] == WIDE_DOT and _is_decimal_or_ellipsis(stop)):
        return 0
    end = stop.end(2) + len(stop[3]) - len(stop[3].lstrip(UNSPACED_CLOSERS))
    if end > stop.end(2) and (text.startswith(languages.quotes, end) or languages.says.match(text, end)):
        return 0
    return end + (stop[4].rfind("\n") + 1 if end == stop.end(3) else 0)


def _is_decimal_or_ellipsis(stop: re.Match[str]) -> bool:
    """`３．５`, `3．5` and `．．．`: a wide dot that ends no sentence."""
    return stop[2].startswith(WIDE_DOT) or (not stop[4] and stop[6].isdecimal())


def _spaced_end(text: str, stop: re.Match[str], last: int) -> int:
    """The end at a stop with a space after it, unless the next word continues it or an abbreviation precedes."""
    mark, more_marks, closers, space, openers, following = stop.groups()
    if not space and following:
        return stop.end() if mark in "?!" and following > "\u2e80" else 0
    if following in CONTINUATIONS or (mark in SCRIPT_STOPS and not _is_own_stop(text, stop)):
        return 0
    is_code = CODE in openers  # `a_name` may begin a sentence
    if (
        following.islower()
        and not is_code
        and (closers or more_marks or not _is_lowercase(text, last, stop.start()))
    ):
        return 0
    if mark == "." and not more_marks:
        if _is_abbreviation(text, stop):
            return 0
    elif (more_marks or mark == "…") and _is_pause(text, stop):
        return 0
    if closers and mark in "?!" and not openers and _is_attribution(text, stop.end(5)):
        return 0
    return stop.end() + space.rfind("\n") + 1


def _is_own_stop(text: str, stop: re.Match[str]) -> bool:
    """Whether a mark that ends sentences in one script only follows a letter of that script."""
    return SCRIPT_STOPS[stop[1]].match(text, max(0, stop.start() - 1)) is not None


def _is_lowercase(text: str, last: int, place: int) -> bool:
    """Whether the sentence itself began with a lowercase letter, as in texts without capitals."""
    lowest = max(last, place - LOOK_BACK)
    start = text.rfind("\n", lowest, place) + 1 or last
    while start > lowest:  # the line before may be wrapped, so that the sentence began in it
        line_above = text.rfind("\n", lowest, start - 1) + 1
        if line_above and start - 1 - line_above < NARROW_LINE:
            break
        start = line_above or lowest
    letter = LETTER.search(text, start, place) if place - start <= LOOK_BACK else None
    return letter is not None and letter[0].islower()


def _is_abbreviation(text: str, stop: re.Match[str]) -> bool:
    languages = _languages()
    place = stop.start()
    words = text[place - WORD_CHARS if place > WORD_CHARS else 0 : place].rsplit(None, 2)
    if not words or text[place - 1].isspace():
        return False
    word = words[-1].lstrip(OPENERS)
    lowercase = word.lower()
    if NUMBERING.fullmatch(lowercase) and (_is_heading(text, place) or _is_chapter_and_verse(stop, words)):
        return True
    if lowercase.isalpha() and len(lowercase) > 1 and lowercase not in languages.abbreviations:
        return lowercase.endswith(languages.suffixes)
    if lowercase.isdecimal():
        return _is_ordinal(text, stop, words)
    if _is_listed(text, stop, lowercase):
        return True
    return lowercase not in languages.either and bool(INITIALS.fullmatch(word)) and _is_initial(text, stop, words)


def _is_listed(text: str, stop: re.Match[str], word: str) -> bool:
    languages = _languages()
    word = ELISION.sub("", word)  # l'ing. is ing.
    if word in languages.never:
        return True
    if word in languages.number and (stop[6].isdigit() or ROMAN_NUMBER.match(text, stop.end(5))):
        return True
    return word in languages.either and not _is_starter(text, stop, ())


def _is_initial(text: str, stop: re.Match[str], words: list[str]) -> bool:
    """`J.` and `U.S.` end a sentence only before a word that begins sentences and is no part of a name."""
    languages = _languages()
    word = words[-1].lstrip(OPENERS)
    if word.lower() in languages.letters and len(words) > 1 and words[-2].islower():
        return False
    if _begins_line(text, stop.start() - len(word)):
        return True
    return not _is_starter(text, stop, languages.particles if word.isupper() else ())


def _is_ordinal(text: str, stop: re.Match[str], words: list[str]) -> bool:
    """`3.` is an ordinal at the beginning of a line, in dates, before a month and after an article."""
    languages = _languages()
    if _begins_line(text, stop.start() - len(words[-1])):
        return True
    if len(words[-1]) > 2:
        return False
    if stop[6].isdigit():
        return bool(DATE.match(text, stop.end(5)))
    if _next_word(text, stop) in languages.months:
        return True
    return len(words) > 1 and words[-2].lower() in languages.ordinal and not _is_starter(text, stop, ())


def _is_heading(text: str, place: int) -> bool:
    """`CHAPTER 26.` before its title in the same line."""
    line = _line_before(text, place).split()
    return len(line) == 2 and line[0].lower() in _languages().headings


def _is_chapter_and_verse(stop: re.Match[str], words: list[str]) -> bool:
    """`Psal. ix. 4`: a Roman number between an abbreviation and a number."""
    return words[-1].isalpha() and stop[6].isdigit() and len(words) > 1 and words[-2].endswith(".")


def _begins_line(text: str, place: int) -> bool:
    """Whether only spaces stand before a place in its line."""
    return not _line_before(text, place).strip()


def _line_before(text: str, place: int) -> str:
    """The characters before a place in its line, at most as many as a word has."""
    start = max(0, place - WORD_CHARS)
    return text[text.rfind("\n", start, place) + 1 or start : place]


def _next_word(text: str, stop: re.Match[str]) -> str:
    """The word after a stop, in lowercase; empty where a dot follows the word."""
    word = NEXT_WORD.match(text, stop.end(5))
    return word[1].lower() if word else ""


def _is_starter(text: str, stop: re.Match[str], excluded: Collection[str]) -> bool:
    word = _next_word(text, stop)
    return word in _languages().starters and word not in excluded


def _is_pause(text: str, stop: re.Match[str]) -> bool:
    """`I... I` and `[...]`: dots within a sentence, though a capital follows."""
    words = text[max(0, stop.start() - WORD_CHARS) : stop.start()].rsplit(None, 1)
    if not words or words[-1].endswith(BRACKETS):
        return bool(words)
    return words[-1].lstrip(OPENERS).lower() == _next_word(text, stop)


def _is_attribution(text: str, place: int) -> bool:
    """`asked Mary`, `Mary asked` or `old Mrs. Hill almost angrily asked` after a quoted question."""
    match = FOUR_WORDS.match(text, place)
    words = match[0].replace(".", "").split() if match else []
    verb = next((number for number, word in enumerate(words) if word in _languages().speech), len(words))
    between = words[1:verb]
    return verb < len(words) and all(w.endswith("ly") or w in ADVERBS or w[0].isupper() for w in between)


def _spaced_ends(text: str) -> Iterator[int]:
    """The ends of sentences in a script without full stops, such as Thai, where a space ends a sentence."""
    if STOPLESS.search(text):
        yield from (match.end() for match in _languages().spaced.finditer(text))


@dataclass(frozen=True)
class Languages:
    """The tables of languages.json (see there), merged over all languages."""

    never: frozenset[str]
    number: frozenset[str]
    either: frozenset[str]
    ordinal: frozenset[str]
    headings: frozenset[str]
    months: frozenset[str]
    letters: frozenset[str]
    starters: frozenset[str]
    particles: frozenset[str]
    speech: frozenset[str]
    suffixes: tuple[str, ...]
    quotes: tuple[str, ...]
    says: re.Pattern[str]
    spaced: re.Pattern[str]

    @cached_property
    def abbreviations(self) -> frozenset[str]:
        return self.never | self.number | self.either


@cache
def _languages() -> Languages:
    text = Path(__file__).with_name("languages.json").read_text(encoding="utf-8")
    tables = [table for table in json.loads(text).values() if isinstance(table, dict)]

    def words(kind: str) -> list[str]:
        return [word for table in tables for word in table.get(kind, ())]

    says, closing, opening = ("|".join(map(re.escape, words(kind))) for kind in ("says", "closing", "opening"))
    return Languages(
        never=frozenset(words("never")),
        number=frozenset(words("number")),
        either=frozenset(words("either")),
        ordinal=frozenset(words("ordinal")),
        headings=frozenset(words("headings")),
        months=frozenset(words("months")),
        letters=frozenset(words("letters")),
        starters=frozenset(words("starters")),
        particles=frozenset(words("particles")),
        speech=frozenset(words("speech")),
        suffixes=tuple(words("suffixes")),
        quotes=tuple(words("quotes")),
        says=re.compile(rf"[^\s，。！？、：；]{{0,6}}?(?:{says})"),
        spaced=re.compile(rf"(?:{closing})(?=\s)|(?<=[{THAI}])(?=[^\S\n]+(?:{opening}))"),
    )
