"""Rows, sliced texts and documents that are stored between two starts and come back bit-equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path

from ..chunking import Encoder, Sections, SlicedText, SlicingRules, Spans, Units
from . import arrow_store
from .arrow_store import Store, StoreEntry
from .examples import RowSource
from .readers import LoadedText, documents
from .rows import RowCounts, RowDataset, RowTokenizer
from .text import slice_text

ROW_ARRAYS = ("all_ids", "all_trained", "first", "rows", "follows")
UNIT_ARRAYS = ("ids", "first", "last", "section", "start", "end", "opens", "closes", "ends_section")
SECTION_ARRAYS = tuple(field.name for field in fields(Sections))
SPAN_ARRAYS = tuple(field.name for field in fields(Spans))


def cached_rows(
    key: str, store: Store, tokenizer: RowTokenizer, make: Callable[[], RowDataset]
) -> tuple[RowDataset, bool]:
    """A row set, stored or made now, and whether it was stored. One with problems is not stored."""
    if entry := store.load(key):
        return _restore_row_set(entry, tokenizer), True
    row_set = make()
    if not row_set.problems:
        store.save(key, _row_set_entry(row_set))
    return row_set, False


def _row_set_entry(row_set: RowDataset) -> StoreEntry:
    source = row_set.source
    metadata = {
        "source": {"name": source.name, "unit": source.unit},
        "counts": asdict(row_set.counts),
        "what": row_set.what,
        "notes": row_set.notes,
        "advice": row_set.advice,
    }
    return StoreEntry({name: getattr(source, name) for name in ROW_ARRAYS}, metadata)


def _restore_row_set(entry: StoreEntry, tokenizer: RowTokenizer) -> RowDataset:
    metadata = entry.metadata
    source = RowSource(**metadata["source"], **entry.arrays, decode=tokenizer.decode)
    bad = [(int(number), str(problem)) for number, problem in metadata["counts"]["bad"]]
    counts = RowCounts(**{**metadata["counts"], "bad": bad})
    return RowDataset(source, counts, metadata["what"], tuple(metadata["notes"]), (), tuple(metadata["advice"]))


def cached_slices(
    texts: Sequence[str], encode: Encoder, fingerprint: str, rules: SlicingRules, store: Store
) -> tuple[list[SlicedText], bool]:
    """The sliced texts of a dataset, stored or made now, and whether they were stored."""
    key = fingerprint and arrow_store.cache_key(
        "texts", fingerprint, astuple(rules), *map(arrow_store.text_digest, texts)
    )
    if texts and (entry := store.load(key)):
        return [_restore_sliced(entry, number, text, rules) for number, text in enumerate(texts)], True
    results = [slice_text(text, encode, rules) for text in texts]
    if texts:
        arrays = {
            name: array
            for number, each in enumerate(results)
            for name, array in _sliced_arrays(number, each).items()
        }
        store.save(key, StoreEntry(arrays, None))
    return results, False


def _sliced_arrays(number: int, sliced: SlicedText) -> dict[str, object]:
    parts = (
        ("unit", sliced.units, UNIT_ARRAYS),
        ("section", sliced.sections, SECTION_ARRAYS),
        ("span", sliced.spans, SPAN_ARRAYS),
        ("dropped", sliced.dropped, SPAN_ARRAYS),
    )
    return {f"{number}.{part}.{name}": getattr(arrays, name) for part, arrays, names in parts for name in names}


def _restore_sliced(entry: StoreEntry, number: int, text: str, rules: SlicingRules) -> SlicedText:
    def columns(part: str, names: Sequence[str]) -> dict[str, object]:
        return {name: entry.arrays[f"{number}.{part}.{name}"] for name in names}

    sections = Sections(**columns("section", SECTION_ARRAYS))
    units = Units(text=text, rules=rules, sections=sections, **columns("unit", UNIT_ARRAYS))
    return SlicedText(units, Spans(**columns("span", SPAN_ARRAYS)), Spans(**columns("dropped", SPAN_ARRAYS)))


def cached_document(store: Store, file: Path, name: str, hard_cut: str) -> LoadedText:
    """The text of a document, stored or read now."""
    key = arrow_store.cache_key(
        "document", arrow_store.file_digest(file, name), file.suffix.lower(), name, hard_cut
    )
    if entry := store.load(key):
        return LoadedText(name, entry.metadata["text"], tuple(entry.metadata["notes"]))
    text = documents.read_document(file, name, hard_cut)
    store.save(key, StoreEntry({}, {"text": text.text, "notes": text.notes}))
    return text


def cached_findings(key: str, store: Store, make: Callable[[], list[str]]) -> list[str]:
    """The findings on a text, stored or worked out now."""
    if entry := store.load(key):
        return [str(each) for each in entry.metadata]
    findings = make()
    store.save(key, StoreEntry({}, findings))
    return findings
