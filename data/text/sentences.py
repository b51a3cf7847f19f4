"""Find the ends of sentences in any language: rules for punctuation, and tables of words for each language.

A stop ends a sentence unless the text after it continues it (a lowercase letter, no space), or the word before it
is an abbreviation, an initial or an ordinal. A line end does too, except in wrapped prose. The words of all
languages are in languages.json and used together, so that no text's language has to be guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from ...chunking import Flags, Ints
from .lines import NARROW_LINE, OPENERS, RAGGED_CHARS, WIDE_LINE, WIDEST_LINE, Lines, find_wrapped

# Text processed at a time. Where a sentence ends depends on its stretch, so a part of a text keeps its stretches.
STRETCH_CHARS = 1 << 20
WORD_CHARS = 32  # searched before a dot
MAX_UNFINISHED = 0.02  # of the long lines; a text with more has lines that need no stop
MAX_DIVIDED = 0.25  # of the paragraphs that follow a blank line
LOOK_BACK = 2000  # characters searched for the beginning of a sentence

SPACED_STOPS = ".!?…‽؟۔⸮⁇⁈⁉;\u037e:"
UNSPACED = "፧。！？｡।॥։።᙮။។༎།．"
WIDE_DOT = "．"  # also a decimal point, and in a row an ellipsis
SCRIPT_STOPS = {  # the Greek question mark looks like a semicolon, the Armenian full stop like a colon
    **dict.fromkeys(";\u037e", re.compile("[\u0370-\u03ff\u1f00-\u1fff]")),
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
# A stop and those that follow, what closes a quotation, then looked at only: the space, what opens, one character.
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

# Footnotes: neither one between the halves of a sentence nor its mark in it ends that sentence.
NOTE_SIGN = r"\d{1,3}|\[\d{1,3}\]|\(?\*{1,3}\)?|[†‡]"
NOTE = re.compile(rf"\n[ \t]*({NOTE_SIGN})[ \t]+(?=\S)")
NOTE_MARK = re.compile(rf"(?<=[^\s\d]) ?({NOTE_SIGN})(?![\w.)*])")
WHOLE_LINE = re.compile(r"[^\n]*\n")
GAP = re.compile(r"\n[ \t]*\n")
WORD_LETTER = re.compile(r"\w")
MARK_CHARS = 5000  # from a mark to its footnote: a page and more
HALF_CHARS = 40  # of the line before a footnote, so that no list is meant
MAX_NOTE_LINES, MAX_NOTE_CHARS = 8, 2000  # of the footnotes between the halves of a sentence
OPEN_ENDS = ",;-–—"

# The tables of languages.json (see there), merged over all languages.
LANGUAGES = json.loads(Path(__file__).with_name("languages.json").read_text(encoding="utf-8"))
TABLES = [table for table in LANGUAGES.values() if isinstance(table, dict)]
LISTS = {kind: [word for each in TABLES for word in each.get(kind, ())] for table in TABLES for kind in table}
WORDS = {kind: frozenset(words) for kind, words in LISTS.items()}
ABBREVIATIONS = WORDS["never"] | WORDS["number"] | WORDS["either"]
SUFFIXES, QUOTES = tuple(LISTS["suffixes"]), tuple(LISTS["quotes"])
SAYS_WORDS, CLOSING, OPENING = ("|".join(map(re.escape, LISTS[kind])) for kind in ("says", "closing", "opening"))
SAYS = re.compile(rf"[^\s，。！？、：；]{{0,6}}?(?:{SAYS_WORDS})")
# Thai has no full stops: a space behind or before certain words ends a sentence.
SPACED = re.compile(rf"(?:{CLOSING})(?=\s)|(?<=[{THAI}])(?=[^\S\n]+(?:{OPENING}))")


def find_stop_ends(text: str) -> Ints:
    """The place after each stop that ends a sentence; in scripts without stops, after the space that does."""
    ends, last = list[int](), 0
    for stop in STOP.finditer(text):
        rule = _unspaced_end if text[stop.end(2) - 1] in UNSPACED else _spaced_end
        if end := rule(text, stop, last):
            ends.append(end)
            last = end
    if STOPLESS.search(text):
        ends += [match.end() for match in SPACED.finditer(text)]
    return np.array(ends, np.int64)


def merge_ends(text: str, lines: Lines, stops: Ints) -> Ints:
    """The ends of the sentences in a stretch: at line ends, at stops, and at the end of the stretch."""
    ends: Ints = np.unique(np.concatenate([_line_ends(lines), stops]))
    ends = _move_behind_footnotes(text, ends[~_is_after_speaker(lines, ends)])
    return np.append(ends[ends != len(text)], [len(text)] if text else ends[:0])


def _is_after_speaker(lines: Lines, places: Ints) -> Flags:
    """Whether a place divides the name of a speaker, on a line of its own as in plays, from the speech."""
    short = np.flatnonzero((lines.lengths <= SPEAKER_CHARS) & lines.capital)
    texts = lines.texts
    names = [number for number in short if texts[number].isupper() and texts[number].endswith((".", ":"))]
    if len(names) < MIN_SPEECHES or len({texts[number] for number in names}) > MAX_SPEAKERS * len(names):
        return np.zeros(len(places), bool)  # headings do not repeat as the names of speakers do
    starts = np.cumsum(lines.lengths + 1) - lines.lengths - 1
    filled = np.append(np.flatnonzero(~lines.blank), len(texts) - 1)
    speeches = starts[filled[np.searchsorted(filled[:-1], names, side="right")]]
    name_ends = starts[names] + lines.lengths[names]
    # A place between the end of a name and the beginning of its speech divides the two.
    name_before = np.searchsorted(name_ends, places, side="right") - 1
    return (name_before >= 0) & (places <= speeches[name_before])


def _move_behind_footnotes(text: str, ends: Ints) -> Ints:
    """The ends of sentences without those that a footnote makes; those before its mark are moved behind it."""
    notes = list(_find_notes(text))
    if not notes:
        return ends
    # A mark belongs to the sentence before it, which does not end there if a lowercase letter follows.
    starts, mark_starts, mark_ends = np.array(notes).T
    number: Ints = np.searchsorted(ends, mark_starts - 1)
    at_mark = number < np.searchsorted(ends, mark_starts, side="right")
    goes_on = np.array([_goes_on(text, end) for end in mark_ends.tolist()])
    # `moved` stays in order: a mark is directly behind the end that it moves.
    moved = ends.copy()
    moved[number[at_mark]] = mark_ends[at_mark]
    ends = np.delete(moved, number[at_mark & goes_on])
    # All ends from that of a first half up to its second half are inside a sentence.
    halves = np.array([_find_halves(text, start) for start in starts.tolist()])
    inside: Ints = np.zeros(len(ends) + 1, np.int64)
    np.add.at(inside, np.searchsorted(ends, halves[:, 0]), 1)
    np.add.at(inside, np.searchsorted(ends, halves[:, 1], side="right"), -1)
    return ends[np.cumsum(inside)[:-1] == 0]


def _find_notes(text: str) -> Iterator[tuple[int, int, int]]:
    """The start of each line whose first sign stands behind a word before it, too, and the ends of that mark."""
    marks: dict[str, tuple[int, int]] = {}
    searched = 0
    for line in NOTE.finditer(text):
        start = max(searched, line.start() - MARK_CHARS)
        marks.update((mark[1], mark.span(1)) for mark in NOTE_MARK.finditer(text, start, line.start()))
        searched = line.end()
        if line[1] in marks and line.start() - marks[line[1]][0] <= MARK_CHARS:
            yield line.start() + 1, *marks.pop(line[1])


def _find_halves(text: str, note: int) -> tuple[int, int]:
    """The ends of the first half of a sentence and of the footnotes between it and the second; else 0, 0."""
    before = text[max(0, note - 2 * HALF_CHARS) : note].rstrip()
    half = before[before.rfind("\n") + 1 :]
    if len(half) < HALF_CHARS or not (half[-1].isalpha() or half[-1] in OPEN_ENDS):
        return 0, 0
    limit = note + MAX_NOTE_CHARS
    if text.startswith("\n", note - 2):  # a paragraph of its own, and so is the second half
        for gap in islice(GAP.finditer(text, note, limit), MAX_NOTE_LINES):
            if not NOTE.match(text, gap.end() - 1):
                return (note - 2, gap.end()) if _goes_on(text, gap.end()) else (0, 0)
        return 0, 0
    for line in islice(WHOLE_LINE.finditer(text, note, limit), MAX_NOTE_LINES):
        if line[0].isspace():
            return 0, 0
        if _goes_on(text, line.end()):
            return note - 1, line.end()
    return 0, 0


def _goes_on(text: str, place: int) -> bool:
    """Whether a sentence goes on at a place: the first letter there is lowercase."""
    letter = WORD_LETTER.search(text, place, place + HALF_CHARS)
    return letter is not None and letter[0].islower()


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
    blank, small, capital = lines.blank, lines.small, lines.capital
    stopped = np.array([LAST_STOP.search(line) is not None for line in lines.texts])
    unfinished = np.array([line.rstrip().rstrip(",")[-1:].isalpha() for line in lines.texts])  # a word, or a comma
    last_filled = np.maximum.accumulate(np.where(blank, 0, np.arange(len(blank))))
    _, width, prose = find_wrapped(lines)
    full = lines.lengths > width - RAGGED_CHARS
    follows = ~lines.item[1:] & ~blank[1:]
    continues_small = small[1:] & ~(blank & stopped[last_filled])[:-1]
    continued = prose[:-1] & (full[:-1] | continues_small) & follows
    # A page break may stand before a name: the line stops inside a sentence, as few others do.
    long = lines.lengths >= WIDE_LINE
    before_names = (long & unfinished)[:-1] & capital[1:]
    before_names &= before_names.sum() <= MAX_UNFINISHED * long.sum()
    broken = np.flatnonzero((width[:-1] > WIDEST_LINE) & (small[1:] | before_names) & follows)
    continued[broken] = [SENTENCES.search("\n".join(lines.texts[n : n + 2])) is not None for n in broken]
    # Blank lines divide a sentence in scans: no stop before, a small letter after. Where many do, the text has no
    # capitals or no stops.
    paragraphs = blank[:-1] & ~blank[1:]
    inside = paragraphs & small[1:] & ~lines.item[1:] & unfinished[last_filled][:-1]
    continued |= inside & (inside.sum() <= MAX_DIVIDED * paragraphs.sum())
    ends = np.cumsum(lines.lengths + 1)[:-1]
    return ends[~continued & ~blank[1:]]  # the last of several newlines


def _unspaced_end(text: str, stop: re.Match[str], _: int) -> int:
    """The end at a stop that needs no space after it, unless the sentence around a quotation continues."""
    # A wide dot ends no sentence in `３．５`, `3．5` and `．．．`.
    in_number = stop[1] == WIDE_DOT and (stop[2].startswith(WIDE_DOT) or (not stop[4] and stop[6].isdecimal()))
    if in_number or stop[3][:1] in TITLE_CLOSERS:
        return 0
    end = stop.end(2) + len(stop[3]) - len(stop[3].lstrip(UNSPACED_CLOSERS))
    if end > stop.end(2) and (text.startswith(QUOTES, end) or SAYS.match(text, end)):
        return 0
    return end + (stop[4].rfind("\n") + 1 if end == stop.end(3) else 0)


def _spaced_end(text: str, stop: re.Match[str], last: int) -> int:
    """The end at a stop with a space after it, unless the next word continues it or an abbreviation precedes."""
    mark, more_marks, closers, space, openers, following = stop.groups()
    if not space and following:
        return stop.end() if mark in "?!" and following > "\u2e80" else 0
    if following in CONTINUATIONS:
        return 0
    # A mark that ends sentences in one script only must follow a letter of that script.
    if mark in SCRIPT_STOPS and not SCRIPT_STOPS[mark].match(text, max(0, stop.start() - 1)):
        return 0
    # A lowercase letter continues the sentence, unless all sentences begin so; `a_name` may begin one.
    is_small = following.islower() and CODE not in openers
    if is_small and (closers or more_marks or not _is_lowercase(text, last, stop.start())):
        return 0
    if mark == "." and not more_marks:
        if _is_abbreviation(text, stop):
            return 0
    elif more_marks or mark == "…":
        # `I... I` and `[...]`: dots within a sentence, though a capital follows.
        words = text[max(0, stop.start() - WORD_CHARS) : stop.start()].rsplit(None, 1)
        if words and words[-1].endswith(BRACKETS):
            return 0
        if words and words[-1].lstrip(OPENERS).lower() == _next_word(text, stop):
            return 0
    if closers and mark in "?!" and not openers and _is_attribution(text, stop.end(5)):
        return 0
    return stop.end() + space.rfind("\n") + 1


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
    """Whether the dot belongs to the word before it: an abbreviation, an initial, an ordinal, a number."""
    place = stop.start()
    words = text[place - WORD_CHARS if place > WORD_CHARS else 0 : place].rsplit(None, 2)
    if not words or text[place - 1].isspace():
        return False
    word = words[-1].lstrip(OPENERS)
    lowercase = word.lower()
    if NUMBERING.fullmatch(lowercase):
        line = _line_before(text, place).split()
        if len(line) == 2 and line[0].lower() in WORDS["headings"]:  # `CHAPTER 26.` before its title in the line
            return True
        if words[-1].isalpha() and stop[6].isdigit() and len(words) > 1 and words[-2].endswith("."):
            return True  # `Psal. ix. 4`: a Roman number between an abbreviation and a number
    if lowercase.isalpha() and len(lowercase) > 1 and lowercase not in ABBREVIATIONS:
        return lowercase.endswith(SUFFIXES)
    if lowercase.isdecimal():
        return _is_ordinal(text, stop, words)
    listed = ELISION.sub("", lowercase)  # l'ing. is ing.
    if listed in WORDS["never"]:
        return True
    if listed in WORDS["number"] and (stop[6].isdigit() or ROMAN_NUMBER.match(text, stop.end(5))):
        return True
    if listed in WORDS["either"] and not _is_starter(text, stop, ()):
        return True
    if lowercase in WORDS["either"] or not INITIALS.fullmatch(word):
        return False
    # `J.` and `U.S.` end a sentence only before a word that begins sentences and is no part of a name.
    if lowercase in WORDS["letters"] and len(words) > 1 and words[-2].islower():
        return False
    if not _line_before(text, place - len(word)).strip():
        return True
    return not _is_starter(text, stop, WORDS["particles"] if word.isupper() else ())


def _is_ordinal(text: str, stop: re.Match[str], words: list[str]) -> bool:
    """`3.` is an ordinal at the beginning of a line, in dates, before a month and after an article."""
    if not _line_before(text, stop.start() - len(words[-1])).strip():
        return True
    if len(words[-1]) > 2:
        return False
    if stop[6].isdigit():
        return bool(DATE.match(text, stop.end(5)))
    if _next_word(text, stop) in WORDS["months"]:
        return True
    return len(words) > 1 and words[-2].lower() in WORDS["ordinal"] and not _is_starter(text, stop, ())


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
    return word in WORDS["starters"] and word not in excluded


def _is_attribution(text: str, place: int) -> bool:
    """`asked Mary`, `Mary asked` or `old Mrs. Hill almost angrily asked` after a quoted question."""
    match = FOUR_WORDS.match(text, place)
    words = match[0].replace(".", "").split() if match else []
    verb = next((number for number, word in enumerate(words) if word in WORDS["speech"]), len(words))
    between = words[1:verb]
    return verb < len(words) and all(w.endswith("ly") or w in ADVERBS or w[0].isupper() for w in between)
