"""Which part of a dataset is used: its share, and the validation split.

Whole sections, rows or conversations are split off before the texts are cut into blocks. Parts with the same
words stay on one side, so that nothing that is learned is also measured.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...chunking import BlockEnds, Ints, Text, find_sections, places_inside
from .. import arrow_store
from ..dataset_index import DatasetShare
from ..readers import LoadedText
from ..stored_text import StoredText
from ..text import find_bounds, store_text
from .examples import RowSource, Source
from .truncation import select_rows

MIN_PARTS = 10
NGRAM_WORDS = 20
WORD = re.compile(r"\w+")


class TextPart(NamedTuple):
    """A section, or about a tenth of a short text, by its position; the hard cuts after it belong to it."""

    file: int
    start: int
    end: int
    ends_section: bool


def dataset_rng(seed: int, name: str) -> np.random.Generator:
    """Random generator for one dataset: independent of the other datasets of the run."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def pick_examples(sources: Sequence[Source], share: DatasetShare, seed: int) -> list[Ints | None]:
    """Choose the examples of each source of a dataset; above 100 percent they repeat.

    None stands for all examples of a source, each once.
    """
    if share.percent == 100:
        return [None] * len(sources)
    sizes = [len(source) for source in sources]
    ends = np.cumsum([0, *sizes])
    chosen = _choose(int(ends[-1]), share.percent / 100, dataset_rng(seed, share.name))
    return [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(ends.tolist())]


def _choose(count: int, share: float, rng: np.random.Generator) -> Ints:
    """Repeat all numbers as often as they fit; draw the rest at random, one from each of equal intervals."""
    repeats, remainder = divmod(round(share * count), count) if count else (0, 0)
    if count and not repeats:
        remainder = max(remainder, 1)
    edges: Ints = np.arange(remainder + 1) * count // max(remainder, 1)  # whole, so that no two draws are equal
    drawn = (edges[:-1] + rng.random(remainder) * np.diff(edges)).astype(np.int64)
    return np.concatenate([np.tile(np.arange(count), repeats), drawn])


def split_texts(
    texts: Sequence[LoadedText], share: float, hard_cut: str, block_ends: BlockEnds, *, seed: int, name: str
) -> tuple[list[LoadedText], list[LoadedText]]:
    """Split texts into a training part and a validation part, which is empty for a share of 0."""
    if not share:
        return list(texts), []
    parts = [part for number, text in enumerate(texts) for part in _sections(number, str(text.text), hard_cut)]
    if len(parts) < MIN_PARTS:
        size = sum(p.end - p.start for p in parts) / MIN_PARTS
        ends = [_possible_ends(str(text.text), hard_cut, block_ends) for text in texts]
        parts = [part for section in parts for part in _split_section(section, ends[section.file], size)]
    words = [arrow_store.text_digest(" ".join(_words(texts[p.file].text[p.start : p.end]))) for p in parts]
    sizes = [p.end - p.start for p in parts]
    validation = _choose_parts(words, sizes, share, dataset_rng(seed, name))
    sides = [
        [p for n, p in enumerate(parts) if (n in validation) == is_validation] for is_validation in (False, True)
    ]
    learned, held_out = (list(_join_adjacent(texts, side)) for side in sides)
    return learned, held_out


def split_rows(
    source: RowSource, share: float, *, seed: int, whole_conversations: bool = False
) -> tuple[RowSource, RowSource]:
    """Split rows into a training part and a validation part; the examples of one row stay together.

    With `whole_conversations`, the rows of a conversation stay together, too, if there are several conversations.
    """
    parts = defaultdict[int, list[int]](list)
    for number, part in enumerate((_conversations(source) if whole_conversations else source.rows).tolist()):
        parts[part].append(number)
    examples = list(parts.values())
    contents = [b"".join(source.ids(number).tobytes() for number in numbers) for numbers in examples]
    validation = _choose_parts(contents, list(map(len, examples)), share, dataset_rng(seed, source.name))
    held_out = np.array(sorted(number for part in validation for number in examples[part]), np.int64)
    return select_rows(source, np.setdiff1d(np.arange(len(source)), held_out)), select_rows(source, held_out)


def _conversations(source: RowSource) -> Ints:
    """Number the conversation of each example; that is its row unless the rows name several conversations."""
    begins = ~source.follows & (np.diff(source.rows, prepend=-1) != 0)
    numbers: Ints = np.cumsum(begins) if source.has_conversations and begins.sum() > 1 else source.rows
    return numbers


def _choose_parts(
    contents: Sequence[Hashable], sizes: Sequence[int], share: float, rng: np.random.Generator
) -> set[int]:
    """Choose parts that make up about the share, equal ones together; at least one, and never all of them."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, content in enumerate(contents):
        groups[content].append(number)
    order, total = list(groups.values()), sum(sizes)
    rng.shuffle(order)
    chosen: set[int] = set()
    size_so_far = 0
    for group in order:
        size = sum(sizes[number] for number in group)
        overshoots = size_so_far + size - share * total > share * total - size_so_far
        if (chosen and overshoots) or len(chosen) + len(group) == len(contents):
            continue
        chosen.update(group)
        size_so_far += size
    return chosen


def _sections(file: int, text: str, hard_cut: str) -> Iterator[TextPart]:
    """Yield the parts between hard cuts that hold more than whitespace."""
    start = 0
    ends = [match.end() for match in re.finditer(f"(?:{re.escape(hard_cut)})+", text)] if hard_cut else []
    for end in [*ends, len(text)]:
        if text[start:end].strip():
            yield TextPart(file, start, end, True)
            start = end


def _possible_ends(text: str, hard_cut: str, block_ends: BlockEnds) -> Ints:
    """Return where blocks may end inside sections: never within a hard cut, nor right before one."""
    sections = find_sections(text, hard_cut)
    return places_inside(find_bounds(text, sections, block_ends).ends, sections)


def _split_section(section: TextPart, ends: Ints, size: float) -> Iterator[TextPart]:
    """Split a section at places where blocks may end, into parts of about this size."""
    start = section.start
    for end in ends[(ends > section.start) & (ends < section.end)].tolist():
        if end - start >= size:
            yield TextPart(section.file, start, end, False)
            start = end
    yield TextPart(section.file, start, section.end, True)


def _join_adjacent(texts: Sequence[LoadedText], parts: Sequence[TextPart]) -> Iterator[LoadedText]:
    """Join adjacent parts into one text, so that blocks may reach from one part into the next.

    Of a large file, parts that begin after a section are one text, too: no block reaches from one into the next.
    """
    groups: list[list[TextPart]] = []
    for part in parts:
        if groups and _joins(groups[-1][-1], part, texts[part.file]):
            groups[-1].append(part)
        else:
            groups.append([part])
    for group in groups:
        text, start, end = texts[group[0].file], group[0].start, group[-1].end
        joined = replace(
            text,
            text=text.text[start:end],
            notes=text.notes if group is groups[0] else (),
            open_end=not group[-1].ends_section or (text.open_end and end == len(text.text)),
            boilerplate="",
            menus=(),
        )
        if isinstance(text.text, StoredText):
            content = "".join(text.text[part.start : part.end] for part in group)
            joined = replace(joined, text=store_text(content, text.text.store), start=text.start + start)
        yield joined


def _joins(before: TextPart, part: TextPart, text: LoadedText) -> bool:
    """Whether a part of a text is in the same text as another one before it."""
    return before.file == part.file and (before.end == part.start or (bool(text.part) and before.ends_section))


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def find_shared_passages(validation: Iterable[Text], learned: Iterable[Text]) -> list[str]:
    """Find runs of twenty words that are in both parts; returns the first twenty words of each passage."""
    word_numbers: dict[str, int] = {}
    known_ngrams = np.unique(
        np.concatenate(
            [np.zeros(0, np.uint64), *(_hash_ngrams(_words(str(text)), word_numbers) for text in validation)]
        )
    )
    passages: list[str] = []
    for text in learned if len(known_ngrams) else ():
        words = _words(str(text))
        ngrams = _hash_ngrams(words, word_numbers)
        positions = np.minimum(np.searchsorted(known_ngrams, ngrams), len(known_ngrams) - 1)
        shared = known_ngrams[positions] == ngrams
        starts = np.flatnonzero(shared & ~np.append(False, shared[:-1])[: len(shared)])
        passages += [" ".join(words[n : n + NGRAM_WORDS]) for n in starts.tolist()]
    return passages


def _hash_ngrams(words: Sequence[str], word_numbers: dict[str, int]) -> Ints:
    """Hash each run of twenty words to 64 bits (a rolling polynomial hash)."""
    if len(words) < NGRAM_WORDS:
        return np.zeros(0, np.uint64)
    numbers = np.fromiter(
        (word_numbers.setdefault(word, len(word_numbers)) for word in words), np.uint64, len(words)
    )
    numbers = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(29)
    count = len(words) - NGRAM_WORDS + 1
    hashes: Ints = np.zeros(count, np.uint64)
    for offset in range(NGRAM_WORDS):
        hashes = hashes * np.uint64(0xD1342543DE82EF95) + numbers[offset : offset + count]
    return hashes


def count_shared_rows(validation: Sequence[Source], learned: Sequence[Source]) -> int:
    """Count the validation rows that are learned as well."""
    return len(_row_bytes(validation) & _row_bytes(learned))


def _row_bytes(sources: Sequence[Source]) -> set[bytes]:
    return {s.ids(n).tobytes() for s in sources if isinstance(s, RowSource) for n in range(len(s))}
