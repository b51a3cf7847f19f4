"""What is kept of rows and texts between two starts, and how it comes back: equal to the bit."""

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
    """A row set as it was made before, or now; and whether it was before. One with problems is not kept."""
    if entry := store.found(key):
        return _row_set(entry, tokenizer), True
    made = make()
    if not made.problems:
        store.keep(key, _of_row_set(made))
    return made, False


def _of_row_set(made: RowSet) -> Entry:
    source = made.source
    said = {
        "source": {"name": source.name, "unit": source.unit},
        "counts": asdict(made.counts),
        "what": made.what,
        "notes": made.notes,
        "advice": made.advice,
    }
    return Entry({name: getattr(source, name) for name in ROW_ARRAYS}, said)


def _row_set(entry: Entry, tokenizer: RowTokenizer) -> RowSet:
    said = entry.said
    source = RowSource(**said["source"], **entry.arrays, decode=tokenizer.decode)
    bad = [(int(number), str(what)) for number, what in said["counts"]["bad"]]
    counts = Counts(**{**said["counts"], "bad": bad})
    return RowSet(source, counts, said["what"], tuple(said["notes"]), (), tuple(said["advice"]))


def cut_texts(
    texts: Sequence[str], encode: Encoder, fingerprint: str, rules: Cutting, store: Store
) -> tuple[list[Sliced], bool]:
    """The texts of a data set, cut before or now; and whether it was before."""
    own = fingerprint and arrow_store.key("texts", fingerprint, astuple(rules), *map(arrow_store.of_text, texts))
    if texts and (entry := store.found(own)):
        return [_sliced(entry, number, text, rules) for number, text in enumerate(texts)], True
    made = [slices(text, encode, rules) for text in texts]
    if texts:
        arrays = {name: array for number, each in enumerate(made) for name, array in _arrays(number, each).items()}
        store.keep(own, Entry(arrays, None))
    return made, False


def _arrays(number: int, sliced: Sliced) -> dict[str, object]:
    parts = (
        ("unit", sliced.units, UNIT_ARRAYS),
        ("section", sliced.sections, SECTION_ARRAYS),
        ("span", sliced.spans, SPAN_ARRAYS),
        ("dropped", sliced.dropped, SPAN_ARRAYS),
    )
    return {f"{number}.{part}.{name}": getattr(held, name) for part, held, names in parts for name in names}


def _sliced(entry: Entry, number: int, text: str, rules: Cutting) -> Sliced:
    def of(part: str, names: Sequence[str]) -> dict[str, object]:
        return {name: entry.arrays[f"{number}.{part}.{name}"] for name in names}

    sections = Sections(**of("section", SECTION_ARRAYS))
    units = Units(text=text, rules=rules, sections=sections, **of("unit", UNIT_ARRAYS))
    return Sliced(units, Spans(**of("span", SPAN_ARRAYS)), Spans(**of("dropped", SPAN_ARRAYS)))


def document(store: Store, file: Path, name: str, hard_cut: str) -> ReadText:
    """A document's text as it was read before, or now."""
    own = arrow_store.key("document", arrow_store.content(file, name), file.suffix.lower(), name, hard_cut)
    if entry := store.found(own):
        return ReadText(name, entry.said["text"], tuple(entry.said["notes"]))
    made = documents.read(file, name, hard_cut)
    store.keep(own, Entry({}, {"text": made.text, "notes": made.notes}))
    return made


def sentences(key: str, store: Store, make: Callable[[], list[str]]) -> list[str]:
    """What was said of a text before, or is found out now."""
    if entry := store.found(key):
        return [str(each) for each in entry.said]
    made = make()
    store.keep(key, Entry({}, made))
    return made
