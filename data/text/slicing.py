"""Texts to blocks by any of the chunking methods, whole or in parts, stored before or made now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, fields

import numpy as np

from ... import chunking, dementor
from ...chunking import (
    BoundsFinder,
    EncodedText,
    Encoder,
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
from .sentences import split_stretches
from .text_units import PartBounds, find_bounds, find_part_bounds, is_by_lines

UNIT_ARRAYS = ("ids", "first", "last", "section", "start", "end", "opens", "closes", "ends_section")
SECTION_ARRAYS = tuple(field.name for field in fields(Sections))
SPAN_ARRAYS = tuple(field.name for field in fields(Spans))


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
