"""Rows, sliced texts and documents that are stored between two starts and come back bit-equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path

from ..chunking import Cutting, Encoder, Sections, Sliced, Spans, Units
from . import arrow_store
from .arrow_store import Entry, Store
from .examples import RowSource
from .readers import ReadText, documents
from .rows import Counts, RowSet, RowTokenizer
from .text import slices

ROW_ARRAYS = ("all_ids", "all_trained", "first", "rows", "follows")
UNIT_ARRAYS = ("ids", "first", "last", "section", "start", "end", "opens", "closes", "ends_section")
SECTION_ARRAYS = tuple(field.name for field in fields(Sections))
SPAN_ARRAYS = tuple(field.name for field in fields(Spans))


def rows(key: str, store: Store, tokenizer: RowTokenizer, make: Callable[[], RowSet]) -> tuple[RowSet, bool]:
    """A row set, stored or made now, and whether it was stored. One with problems is not stored."""
    if entry := store.load(key):
        return _restore_row_set(entry, tokenizer), True
    row_set = make()
    if not row_set.problems:
        store.save(key, _row_set_entry(row_set))
    return row_set, False


def _row_set_entry(row_set: RowSet) -> Entry:
    source = row_set.source
    metadata = {
        "source": {"name": source.name, "unit": source.unit},
        "counts": asdict(row_set.counts),
        "what": row_set.what,
        "notes": row_set.notes,
        "advice": row_set.advice,
    }
    return Entry({name: getattr(source, name) for name in ROW_ARRAYS}, metadata)


def _restore_row_set(entry: Entry, tokenizer: RowTokenizer) -> RowSet:
    metadata = entry.metadata
    source = RowSource(**metadata["source"], **entry.arrays, decode=tokenizer.decode)
    bad = [(int(number), str(problem)) for number, problem in metadata["counts"]["bad"]]
    counts = Counts(**{**metadata["counts"], "bad": bad})
    return RowSet(source, counts, metadata["what"], tuple(metadata["notes"]), (), tuple(metadata["advice"]))


def cut_texts(
    texts: Sequence[str], encode: Encoder, fingerprint: str, rules: Cutting, store: Store
) -> tuple[list[Sliced], bool]:
    """The sliced texts of a dataset, stored or made now, and whether they were stored."""
    key = fingerprint and arrow_store.key("texts", fingerprint, astuple(rules), *map(arrow_store.of_text, texts))
    if texts and (entry := store.load(key)):
        return [_restore_sliced(entry, number, text, rules) for number, text in enumerate(texts)], True
    results = [slices(text, encode, rules) for text in texts]
    if texts:
        arrays = {
            name: array
            for number, each in enumerate(results)
            for name, array in _sliced_arrays(number, each).items()
        }
        store.save(key, Entry(arrays, None))
    return results, False


def _sliced_arrays(number: int, sliced: Sliced) -> dict[str, object]:
    parts = (
        ("unit", sliced.units, UNIT_ARRAYS),
        ("section", sliced.sections, SECTION_ARRAYS),
        ("span", sliced.spans, SPAN_ARRAYS),
        ("dropped", sliced.dropped, SPAN_ARRAYS),
    )
    return {f"{number}.{part}.{name}": getattr(arrays, name) for part, arrays, names in parts for name in names}


def _restore_sliced(entry: Entry, number: int, text: str, rules: Cutting) -> Sliced:
    def columns(part: str, names: Sequence[str]) -> dict[str, object]:
        return {name: entry.arrays[f"{number}.{part}.{name}"] for name in names}

    sections = Sections(**columns("section", SECTION_ARRAYS))
    units = Units(text=text, rules=rules, sections=sections, **columns("unit", UNIT_ARRAYS))
    return Sliced(units, Spans(**columns("span", SPAN_ARRAYS)), Spans(**columns("dropped", SPAN_ARRAYS)))


def document(store: Store, file: Path, name: str, hard_cut: str) -> ReadText:
    """The text of a document, stored or read now."""
    key = arrow_store.key("document", arrow_store.content(file, name), file.suffix.lower(), name, hard_cut)
    if entry := store.load(key):
        return ReadText(name, entry.metadata["text"], tuple(entry.metadata["notes"]))
    text = documents.read(file, name, hard_cut)
    store.save(key, Entry({}, {"text": text.text, "notes": text.notes}))
    return text


def sentences(key: str, store: Store, make: Callable[[], list[str]]) -> list[str]:
    """The findings on a text, stored or worked out now."""
    if entry := store.load(key):
        return [str(each) for each in entry.metadata]
    findings = make()
    store.save(key, Entry({}, findings))
    return findings
