"""Read a large text file in parts, which are prepared one by one, so that memory doesn't grow with the file.

A part ends at a hard cut, because no block crosses one. The parts lie in a store, and the whole text is never in
memory.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ..chunking import NOT_SPACE
from ..core.errors import DataError
from ..train_utils import format_count
from . import arrow_store
from .arrow_store import Store, StoredText, StoreEntry
from .readers import LoadedText, text_files
from .rows import PrepareContext
from .text import (
    Boilerplate,
    clean,
    describe_boilerplate,
    find_boilerplate,
    find_wrap_width,
    mark,
    read_stretches,
    store_text,
)

# Larger files are read in parts; a smaller one takes up to 8.3 bytes of memory per character (docs/benchmarks.md).
DIVIDED_BYTES = 64_000_000
PART_CHARS = 1 << 24  # a part ends at the first hard cuts after so many
MAX_PART_CHARS = 2 * PART_CHARS  # a part without a hard cut ends with a paragraph
STORED_BYTES_PER_BYTE = 4  # of the text and its blocks, by the size of the file; 3 for prose


class Part(NamedTuple):
    """A part of a text with the stretches that it lies in, and where it lies in them."""

    stretches: Sequence[str]
    start: int
    end: int
    ends_section: bool = True


def is_large(file: Path) -> bool:
    """Whether a text file is read in parts, which lie in Arrow files."""
    return file.exists() and file.stat().st_size > DIVIDED_BYTES and arrow_store.import_pyarrow() is not None


def describe_first_part() -> str:
    """How much of a large text is searched where not all of it is: 'first 17 million characters'."""
    return f"first {PART_CHARS / 1e6:.0f} million characters"


def load_parts(file: Path, name: str, hard_cut: str, context: PrepareContext) -> list[LoadedText]:
    """The parts of a text file, stored or read now.

    They lie in a temporary store where nothing is kept, the file is too large for the store, or the tokenizer
    can't be told from others.
    """
    store, settings = context.store, context.settings.text
    has_room = STORED_BYTES_PER_BYTE * file.stat().st_size <= store.largest
    if not (store.folder and context.tokenizer.fingerprint and has_room):
        store = Store.temporary(context.folders.prepared_data)
    cleaning, limits = (settings.drop_boilerplate, settings.join_lines), (PART_CHARS, MAX_PART_CHARS)
    key = arrow_store.cache_key("parts", text_files.file_digest(file, name), name, hard_cut, cleaning, limits)
    if entry := store.load(key):
        stored = [(values, StoredText.load(store, values["text"])) for values in entry.metadata]
        restored = [
            LoadedText(**{**values, "text": text, "notes": tuple(values["notes"]), "menus": ()})
            for values, text in stored
            if text
        ]
        if len(restored) == len(stored):  # one that was removed makes the others useless
            return restored
    encoding, notes = text_files.detect_file_encoding(file, name)
    texts, all_found = list[LoadedText](), list[Boilerplate]()
    start = width = 0
    with text_files.open_binary(file, name) as stream:
        # What can't be decoded becomes \ufffd.
        data = iter(partial(stream.read, text_files.READ_BYTES), b"")
        chunks = text_files.normalize_chunks(codecs.iterdecode(data, encoding, "replace"))
        for number, part in enumerate(divide(read_stretches(chunks), hard_cut), start=1):
            # The first part shows whether lines are wrapped, and the boilerplate where that stays.
            whole, is_first = "".join(part.stretches), number == 1
            content = whole[part.start : part.end]
            search = settings.drop_boilerplate or is_first
            found = find_boilerplate(content, begins_file=is_first) if search else []
            width = find_wrap_width(content) if is_first else width
            if (settings.drop_boilerplate and found) or (settings.join_lines and width):
                cleaned = clean(content, found, width, settings).rstrip()
                text = store_text(cleaned, store) if cleaned else None
            else:
                ends = tuple(accumulate(map(len, part.stretches)))
                text = StoredText.save(store, whole, part.start, part.end, ends)
            context.check_stop()
            if text:
                texts.append(LoadedText(name, text, open_end=not part.ends_section, part=number, start=start))
                all_found += found
                start += len(text)
    if not texts:
        raise DataError(f"{name} is empty, or everything in it looks like boilerplate. Add text to it.")
    words = describe_boilerplate(all_found)
    if words and not settings.drop_boilerplate:
        words += f" in its {describe_first_part()}"
    if count := sum(text.open_end for text in texts):
        notes += (
            f"{name} has sections of more than {MAX_PART_CHARS / 1e6:.0f} million characters. They are split at "
            f"paragraph breaks in {format_count(count, 'place')}, and blocks end there.",
        )
    # The first part has what is said of the file.
    texts[0] = mark(replace(texts[0], notes=notes), words, width, settings)
    store.save(key, StoreEntry({}, [{**vars(text), "text": text.text.key} for text in texts]))  # type: ignore[attr-defined]
    return texts


def divide(stretches: Iterable[str], hard_cut: str) -> Iterator[Part]:
    """A text in parts that end at hard cuts; the stretch in which a part ends is in the next one, too."""
    held: list[str] = []
    start = size = 0
    for stretch in stretches:
        if size - start >= MAX_PART_CHARS:
            yield Part(held, start, size, ends_section=False)
            held, start, size = [], 0, 0
        held.append(stretch)
        size += len(stretch)
        if size - start < PART_CHARS or not hard_cut:
            continue
        # The last hard cut that a section follows. Behind the last section, another hard cut may begin in the
        # last characters, so these are not looked at.
        text = "".join(held)
        following = len(text) - len(hard_cut) + 1
        for found in reversed(list(re.compile(re.escape(hard_cut)).finditer(text, start))):
            if not NOT_SPACE.search(text, found.end(), following):
                following = found.start()
                continue
            cut = found.end()
            yield Part(held, start, cut)
            held = [each for each, end in zip(held, accumulate(map(len, held)), strict=True) if end > cut]
            start, size = cut - size + sum(map(len, held)), sum(map(len, held))
            break
    if NOT_SPACE.search("".join(held), start):
        yield Part(held, start, size)
