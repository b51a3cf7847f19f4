"""Texts to blocks by any of the chunking methods, whole or in parts, stored before or made now.

Where blocks may end is found here: at the sentences of a text, or at its lines where it is made of lines.

    <anna> hi there           a log, verse, a script: most lines end without a stop, though there was room for more
    <bob> hey. how are you    so blocks end at line ends, and stops divide only lines that are too long

Wrapped prose is different: its lines end because the next word did not fit. Each section between two hard cuts is
judged by itself, a short one by the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from typing import NamedTuple

import numpy as np

from ... import chunking, dementor
from ...chunking import (
    BlockEnds,
    BoundsFinder,
    EncodedText,
    Encoder,
    Flags,
    Ints,
    Sections,
    SlicedText,
    SlicingRules,
    Spans,
    Text,
    UnitBounds,
    Units,
    find_sections,
)
from ...train_utils import format_count
from .. import arrow_store
from ..arrow_store import Store, StoredText, StoreEntry
from .lines import Lines, find_continued, find_full_lines, is_tagged, split_lines
from .sentences import find_stop_ends, merge_ends, split_stretches

UNIT_ARRAYS = ("ids", "first", "last", "section", "start", "end", "opens", "closes", "ends_section")
SECTION_ARRAYS = tuple(field.name for field in fields(Sections))
SPAN_ARRAYS = tuple(field.name for field in fields(Spans))
MIN_LINES = 8  # a section with fewer lines is judged by the whole text
OPEN_SHARE = 0.4  # lines are units if at least this share ends without a stop
TAGGED_SHARE = 0.5  # or if at least this share begins with a speaker or a time


def slice_text(text: str, encoder: Encoder, rules: SlicingRules) -> SlicedText:
    """The blocks of a text by the rules."""
    return _slice(text, encoder, rules, lambda own, sections: find_bounds(own, sections, rules.block_ends))


def _slice(text: str, encoder: Encoder, rules: SlicingRules, find: BoundsFinder) -> SlicedText:
    slice_by = dementor.slice_windows if rules.chunking == "dementor" else chunking.slice_blocks
    return slice_by(text, encoder, rules, find)


def slice_texts(
    texts: Sequence[str], encode: Encoder, fingerprint: str, rules: SlicingRules, store: Store
) -> tuple[list[SlicedText], bool]:
    """The sliced texts of a dataset, stored or made now, and whether they were stored."""
    if not texts:
        return [], False
    # Without a fingerprint, another tokenizer could give the same key: then nothing is stored.
    key = fingerprint and arrow_store.cache_key(
        "texts", fingerprint, astuple(rules), *map(arrow_store.text_digest, texts)
    )
    if entry := store.load(key):
        return [_restore_sliced(entry, number, text, rules) for number, text in enumerate(texts)], True
    sliced_texts = [slice_text(text, encode, rules) for text in texts]
    arrays: dict[str, object] = {}
    for number, sliced in enumerate(sliced_texts):
        arrays |= _sliced_arrays(number, sliced)
    store.save(key, StoreEntry(arrays, None))
    return sliced_texts, False


def store_text(text: str, store: Store) -> StoredText:
    """Write a text as a part of its own."""
    return StoredText.save(store, text, 0, len(text), tuple(end for _, end in split_stretches(text)))


def slice_parts(
    name: str,
    texts: Sequence[StoredText],
    encode: Encoder,
    fingerprint: str,
    rules: SlicingRules,
    say: Callable[[str, float | None], None],
    check_stop: Callable[[], None],
) -> tuple[list[SlicedText], bool]:
    """The sliced parts of one text, as the whole would be, and whether all were stored."""
    # Short sections are judged by the whole text, which is known only when all parts were read. So they are first
    # judged by its beginning; where that was wrong, the parts that have some are sliced again. One part after
    # another is sliced and stored, so that memory holds one of them, however large the file is.
    beginning = texts[0].stretch_texts()[0]
    sections = find_sections(beginning, rules.hard_cut)
    found = find_part_bounds([beginning], 0, len(beginning), sections, rules.block_ends, by_lines=False)
    by_lines, all_stored = bool(is_by_lines(found.counts)), True

    def slice_or_load(number: int, by_lines: bool) -> StoreEntry:
        nonlocal all_stored
        text = texts[number]
        key = arrow_store.cache_key("sliced", fingerprint, astuple(rules), text.key, by_lines)
        if not (entry := text.store.load(key, mapped=True)):
            all_stored = False
            parts = format_count(len(texts), "part")
            say(f"Slicing {name}: {number} of {parts}", number / len(texts))
            text.store.save(key, _slice_part(text, encode, rules, by_lines, check_stop))
            entry = text.store.load(key, mapped=True)  # mapped, so that the blocks made now are freed
        if not entry:
            raise arrow_store.full_error(text.store)
        return entry

    entries = [slice_or_load(number, by_lines) for number in range(len(texts))]
    # Counts of lines and stops add up over parts, so the sum is what the whole text would be judged by.
    judged = bool(is_by_lines(np.sum([entry.metadata["counts"] for entry in entries], axis=0)))
    if judged != by_lines:
        for number, entry in enumerate(entries):
            entries[number] = slice_or_load(number, judged) if entry.metadata["has_short"] else entry
    sliced = [_restore_sliced(entry, 0, text, rules) for text, entry in zip(texts, entries, strict=True)]
    return sliced, all_stored


def _slice_part(
    text: StoredText, encode: Encoder, rules: SlicingRules, by_lines: bool, check_stop: Callable[[], None]
) -> StoreEntry:
    """The blocks of a part, and what decides for the short sections of the whole text."""
    content, found = str(text), list[PartBounds]()

    def stretches() -> Iterator[str]:
        for stretch in text.stretch_texts():
            check_stop()  # a part takes a while: the user need not wait for its end
            yield stretch

    def find(_: str, sections: Sections) -> UnitBounds:
        found.append(find_part_bounds(stretches(), text.start, len(content), sections, rules.block_ends, by_lines))
        return found[0].bounds

    def encode_or_stop(pieces: Sequence[str]) -> Sequence[EncodedText]:
        check_stop()
        return encode(pieces)

    sliced = _slice(content, encode_or_stop, rules, find)
    metadata = {"counts": found[0].counts.tolist(), "has_short": found[0].has_short}
    return StoreEntry(_sliced_arrays(0, sliced), metadata)


def _sliced_arrays(number: int, sliced: SlicedText) -> dict[str, object]:
    """The arrays of a sliced text under the names of its number."""
    parts = (
        ("unit", sliced.units, UNIT_ARRAYS),
        ("section", sliced.sections, SECTION_ARRAYS),
        ("span", sliced.spans, SPAN_ARRAYS),
        ("dropped", sliced.dropped, SPAN_ARRAYS),
    )
    return {f"{number}.{part}.{name}": getattr(arrays, name) for part, arrays, names in parts for name in names}


def _restore_sliced(entry: StoreEntry, number: int, text: Text, rules: SlicingRules) -> SlicedText:
    """The sliced text of a number."""

    def columns(part: str, names: Sequence[str]) -> dict[str, object]:
        return {name: entry.arrays[f"{number}.{part}.{name}"] for name in names}

    sections = Sections(**columns("section", SECTION_ARRAYS))
    units = Units(text=text, rules=rules, sections=sections, **columns("unit", UNIT_ARRAYS))
    return SlicedText(units, Spans(**columns("span", SPAN_ARRAYS)), Spans(**columns("dropped", SPAN_ARRAYS)))


class PartBounds(NamedTuple):
    """Where the units of a part of a text end, and what decides for the short sections of the whole text."""

    bounds: UnitBounds
    counts: Ints  # of the lines and stops of the part, which `is_by_lines` judges
    has_short: bool  # whether sections of the part are judged by the whole text


def find_bounds(text: str, sections: Sections, block_ends: BlockEnds = "auto") -> UnitBounds:
    """Where blocks may end: at sentences or lines by the setting, or by the lines and stops of each section."""
    stretches = (text[low:high] for low, high in split_stretches(text))
    return find_part_bounds(stretches, 0, len(text), sections, block_ends).bounds


def find_part_bounds(
    stretches: Iterable[str],
    start: int,
    length: int,
    sections: Sections,
    block_ends: BlockEnds,
    by_lines: bool | None = None,  # what short sections are judged to be; None where the part is the whole text
) -> PartBounds:
    """The bounds in the part of a text that begins at `start` of its first stretch, as the whole text has them."""
    nothing: Ints = np.zeros((2, 0), np.int64)
    ends, stops, places, kinds = [nothing[0]], [nothing[0]], [nothing], list[Flags]([np.zeros((4, 0), bool)])
    offset = -start
    for stretch in stretches:
        lines, found = split_lines(stretch), find_stop_ends(stretch)
        ends.append(merge_ends(stretch, lines, found) + offset)
        if block_ends != "sentences":
            line_places, line_kinds, line_stops = _read_lines(lines, found)
            places.append(line_places + offset)
            kinds.append(line_kinds)
            stops.append(line_stops + offset)
        offset += len(stretch)
    # What ends before the part or after it belongs to the parts around it, in whose stretches it is found too.
    sentence_ends, all_stops = np.concatenate(ends), np.concatenate(stops)
    sentence_ends = sentence_ends[(sentence_ends > 0) & (sentence_ends <= length)]
    all_stops = all_stops[(all_stops > 0) & (all_stops <= length)]
    line_ends, line_at = np.concatenate(places, axis=1)
    is_inside = (line_at > 0) & (line_at <= length)
    line_ends, line_at = line_ends[is_inside], line_at[is_inside]
    open_, full, divided, tagged = np.concatenate(kinds, axis=1)[:, is_inside]
    counts: Ints = np.zeros((5, len(sections)), np.int64)
    for row, column in enumerate((line_at, all_stops, line_at[open_], line_at[full], line_at[tagged])):
        section = _section_of(column, sections)
        counts[row] = np.bincount(section[section >= 0], minlength=len(sections))
    total, is_short = counts.sum(axis=1), counts[0] < MIN_LINES
    if block_ends == "auto":
        judged = np.where(is_short, is_by_lines(total) if by_lines is None else by_lines, is_by_lines(counts))
    else:
        judged = np.full(len(sections), block_ends == "lines")
    bounds = UnitBounds(sentence_ends, sentence_ends[:0], judged)
    if judged.any():
        # A wrapped line and one that the next line continues end nothing, unless the user asks for all lines.
        lines_of_units = line_ends[~(full | divided) | (block_ends == "lines")]

        def in_lines(places: Ints) -> Ints:
            """The places inside sections whose lines are their units."""
            section = _section_of(places, sections)
            return places[(section >= 0) & judged[np.maximum(section, 0)]]

        line_units, inner = in_lines(lines_of_units), in_lines(sentence_ends)
        others = np.setdiff1d(sentence_ends, inner, assume_unique=True)
        bounds = UnitBounds(np.union1d(line_units, others), inner, judged)
    return PartBounds(bounds, total, block_ends == "auto" and bool(is_short.any()))


def is_by_lines(counts: Ints) -> Flags:
    """Many lines end without a stop and hold about one sentence, or many begin with a speaker; few are wrapped."""
    lines, stops, open_, full, tagged = counts
    short = (open_ >= OPEN_SHARE * lines) & (stops <= lines)
    return (lines > 1) & (2 * full <= open_) & (short | (tagged >= TAGGED_SHARE * lines))


def _read_lines(lines: Lines, stops: Ints) -> tuple[Ints, Flags, Ints]:
    """The lines of a stretch that are not blank, and its stops without the line ends after them.

    Places: the last of several line ends, and where the characters of the line end. Kinds: open (no stop at its
    end, though the next word would have fit), full (no stop, and the next word did not fit), divided (no stop, and
    the next line is indented further), tagged (begins with a speaker or a time).
    """
    next_starts = np.cumsum(lines.lengths + 1)
    filled = np.flatnonzero(~lines.blank)
    last_ends = next_starts[np.append(filled[1:], len(next_starts)) - 1][: len(filled)]
    ends = np.minimum(last_ends, next_starts[-1] - 1)
    own_ends = next_starts[filled] - 1
    tagged = np.array([is_tagged(line) for line in lines.texts])
    # Long lines of verse and scripts go on in the next one, which begins small and is indented further.
    begins = [line.lstrip() for line in lines.texts]
    indents = lines.lengths - np.array([len(line) for line in begins])
    small = np.array([line[:1].islower() for line in begins])
    divided = np.append(small[1:] & (indents[1:] > indents[:-1]), False)[filled]
    full = find_full_lines(lines, find_continued(lines, tagged))[filled]
    unstopped = ~np.isin(ends, stops)
    # A stop before several line ends lies behind the last of them; it is counted where its line ends.
    if len(ends):
        line_of_stop = np.searchsorted(ends, stops).clip(max=len(ends) - 1)
        stops = np.where(ends[line_of_stop] == stops, own_ends[line_of_stop], stops)
    kinds = np.stack([unstopped & ~full, unstopped & full, unstopped & divided, tagged[filled]])
    return np.stack([ends, own_ends]), kinds, stops


def _section_of(places: Ints, sections: Sections) -> Ints:
    """The section that a unit ending at each place is in; -1 before the first one."""
    return np.searchsorted(sections.start, places - 1, side="right") - 1
