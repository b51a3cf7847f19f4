"""Slice texts into blocks by any of the chunking methods, or restore the blocks that were stored before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import partial

from ... import chunking, dementor
from ...chunking import Encoder, Sections, SlicedText, SlicingRules, Spans, Text, Units
from .. import arrow_store
from ..arrow_store import Store, StoreEntry
from .text_units import find_bounds

UNIT_ARRAYS = ("ids", "first", "last", "section", "start", "end", "opens", "closes", "ends_section")
SECTION_ARRAYS = tuple(field.name for field in fields(Sections))
SPAN_ARRAYS = tuple(field.name for field in fields(Spans))


def slice_text(text: str, encoder: Encoder, rules: SlicingRules) -> SlicedText:
    """The blocks of a text by the rules."""
    find_unit_bounds = partial(find_bounds, block_ends=rules.block_ends)
    if rules.chunking == "dementor":
        return dementor.slice_windows(text, encoder, rules, find_unit_bounds)
    return chunking.slice_blocks(text, encoder, rules, find_unit_bounds)


def slice_texts(
    texts: Sequence[str], encode: Encoder, fingerprint: str, rules: SlicingRules, store: Store
) -> tuple[list[SlicedText], bool]:
    """The sliced texts of a dataset, stored or made now, and whether they were stored."""
    if not texts:
        return [], False
    key = fingerprint and arrow_store.cache_key(
        "texts", fingerprint, astuple(rules), *map(arrow_store.text_digest, texts)
    )
    if entry := store.load(key):
        return [restore_sliced(entry, number, text, rules) for number, text in enumerate(texts)], True
    sliced_texts = [slice_text(text, encode, rules) for text in texts]
    arrays: dict[str, object] = {}
    for number, sliced in enumerate(sliced_texts):
        arrays |= sliced_arrays(number, sliced)
    store.save(key, StoreEntry(arrays, None))
    return sliced_texts, False


def sliced_arrays(number: int, sliced: SlicedText) -> dict[str, object]:
    """The arrays of a sliced text under the names of its number."""
    parts = (
        ("unit", sliced.units, UNIT_ARRAYS),
        ("section", sliced.sections, SECTION_ARRAYS),
        ("span", sliced.spans, SPAN_ARRAYS),
        ("dropped", sliced.dropped, SPAN_ARRAYS),
    )
    return {f"{number}.{part}.{name}": getattr(arrays, name) for part, arrays, names in parts for name in names}


def restore_sliced(entry: StoreEntry, number: int, text: Text, rules: SlicingRules) -> SlicedText:
    """The sliced text of a number."""

    def columns(part: str, names: Sequence[str]) -> dict[str, object]:
        return {name: entry.arrays[f"{number}.{part}.{name}"] for name in names}

    sections = Sections(**columns("section", SECTION_ARRAYS))
    units = Units(text=text, rules=rules, sections=sections, **columns("unit", UNIT_ARRAYS))
    return SlicedText(units, Spans(**columns("span", SPAN_ARRAYS)), Spans(**columns("dropped", SPAN_ARRAYS)))
