"""Which part of a dataset is used: its share, and the validation split; and text that is on both sides.

Whole sections, rows or conversations are split off before the texts are cut into blocks. Parts with the same
words stay on one side, so that nothing that is learned is also measured.
"""

from __future__ import annotations

import re
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from ..chunking import BlockEnds, Flags, Ints, Text, find_sections, places_inside
from . import arrow_store
from .arrow_store import StoredText
from .dataset_index import DatasetShare
from .examples import RowSource, Source, select_rows
from .readers import LoadedText
from .text import find_bounds, store_text
from .unspaced import SPOKEN_WORD, WORD

# A text with fewer sections is split inside them, so that a share of 10 % can be met.
MIN_PARTS = 10
NGRAM_WORDS = 20
RUN_WORDS = 8
# Of phrases, in words; and how many times as often as the author a model has one that it overuses.
PHRASE_WORDS, OVERUSE = (3, 4, 5), 2.0


def dataset_rng(seed: int, name: str) -> np.random.Generator:
    """Random generator for one dataset: independent of the other datasets of the run."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def pick_examples(sources: Sequence[Source], share: DatasetShare, seed: int) -> list[Ints]:
    """Choose the examples of each source of a dataset; above 100 percent they repeat."""
    if share.percent == 100:
        return [np.arange(len(source)) for source in sources]
    bounds = np.cumsum([0, *map(len, sources)]).tolist()
    count = bounds[-1]
    # As many times all of them as fit, and the rest at random, one from each of equal intervals.
    repeats, remainder = divmod(round(share.percent / 100 * count), count) if count else (0, 0)
    if count and not repeats:
        remainder = max(remainder, 1)
    # Whole edges: a draw from each interval, rounded down, can't be equal to one from the next.
    edges: Ints = np.arange(remainder + 1) * count // max(remainder, 1)
    draws = dataset_rng(seed, share.name).random(remainder)
    drawn = (edges[:-1] + draws * np.diff(edges)).astype(np.int64)
    chosen = np.concatenate([np.tile(np.arange(count), repeats), drawn])
    return [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(bounds)]


class TextPart(NamedTuple):
    """A section, or about a tenth of a short text, by its position; the hard cuts after it belong to it."""

    file: int
    start: int
    end: int
    ends_section: bool


def split_texts(
    texts: Sequence[LoadedText], share: float, hard_cut: str, block_ends: BlockEnds, *, seed: int, name: str
) -> tuple[list[LoadedText], list[LoadedText]]:
    """Split texts into a training part and a validation part, which is empty for a share of 0."""
    if not share:
        return list(texts), []
    parts: list[TextPart] = []
    for number, loaded in enumerate(texts):
        text, start = str(loaded.text), 0
        ends = [match.end() for match in re.finditer(f"(?:{re.escape(hard_cut)})+", text)] if hard_cut else []
        for end in [*ends, len(text)]:
            # What is only spaces belongs to the section after it.
            if text[start:end].strip():
                parts.append(TextPart(number, start, end, True))
                start = end
    if len(parts) < MIN_PARTS:
        # Sections are split into parts of about a tenth of all of them.
        sections, parts = parts, []
        size = sum(section.end - section.start for section in sections) / MIN_PARTS
        for number, loaded in enumerate(texts):
            text = str(loaded.text)
            found = find_sections(text, hard_cut)
            # Where blocks may end: never within a hard cut, nor right before one.
            ends = places_inside(find_bounds(text, found, block_ends).ends, found)
            for _, start, stop, _ in (section for section in sections if section.file == number):
                for end in ends[(ends > start) & (ends < stop)].tolist():
                    if end - start >= size:
                        parts.append(TextPart(number, start, end, False))
                        start = end
                parts.append(TextPart(number, start, stop, True))
    # Equal words make equal parts, whatever the spaces, case and signs between them.
    contents = (_words(texts[part.file].text[part.start : part.end]) for part in parts)
    words = [arrow_store.text_digest(" ".join(content)) for content in contents]
    sizes = [part.end - part.start for part in parts]
    held_out = choose_parts(words, sizes, share, dataset_rng(seed, name))
    return (
        _join_adjacent(texts, [part for number, part in enumerate(parts) if number not in held_out]),
        _join_adjacent(texts, [part for number, part in enumerate(parts) if number in held_out]),
    )


def _join_adjacent(texts: Sequence[LoadedText], parts: Sequence[TextPart]) -> list[LoadedText]:
    """Join adjacent parts into one text, so that blocks may reach from one part into the next.

    Of a large file, parts that begin after a section are one text, too: no block reaches from one into the next.
    """
    groups: list[list[TextPart]] = []
    for part in parts:
        before = groups[-1][-1] if groups else None
        if (
            before
            and before.file == part.file
            and (before.end == part.start or (texts[part.file].part and before.ends_section))
        ):
            groups[-1].append(part)
        else:
            groups.append([part])
    joined = []
    for group in groups:
        text, start, end = texts[group[0].file], group[0].start, group[-1].end
        piece = replace(
            text,
            text=text.text[start:end],
            notes=(),
            start=text.start + start,
            open_end=not group[-1].ends_section or (text.open_end and end == len(text.text)),
            boilerplate="",
            menus=(),
        )
        if isinstance(text.text, StoredText):
            content = "".join(text.text[part.start : part.end] for part in group)
            piece = replace(piece, text=store_text(content, text.text.store))
        joined.append(piece)
    return joined


def split_rows(
    sources: Sequence[RowSource], share: float, *, seed: int, name: str, whole_conversations: bool = False
) -> tuple[list[RowSource], list[RowSource]]:
    """Split the rows of a dataset's files into a training and a validation part; a row's examples stay together.

    With `whole_conversations`, the rows of a conversation stay together, too, if there are several conversations.
    Of a single row, such as a chat whose replies are one example each, the last examples are held out: what leads
    to an earlier reply has none of them.
    """
    by_row = [source.rows for source in sources]
    begins = [~source.follows & (np.diff(source.rows, prepend=-1) != 0) for source in sources]
    has = [whole_conversations and source.has_conversations for source in sources]
    if sum(int(each.sum()) for each, is_one in zip(begins, has, strict=True) if is_one) > 1:
        of_both = zip(by_row, begins, has, strict=True)
        by_row = [np.cumsum(each) if is_one else rows for rows, each, is_one in of_both]
    groups: list[tuple[int, Ints]] = []  # the file of each group, and its examples there
    for file, numbers in enumerate(by_row):
        parts = defaultdict[int, list[int]](list)
        for number, group in enumerate(numbers.tolist()):
            parts[group].append(number)
        groups += [(file, np.array(part, np.int64)) for part in parts.values()]
    if len(groups) == 1 and (halves := _split_in_time(sources[groups[0][0]], groups[0][1], share)):
        groups, chosen = [(groups[0][0], half) for half in halves], {1}
    else:
        of_group = ((sources[file], part.tolist()) for file, part in groups)
        contents = [b"".join(source.example(n).ids.tobytes() for n in part) for source, part in of_group]
        chosen = choose_parts(contents, [len(part) for _, part in groups], share, dataset_rng(seed, name))
    nothing = np.array([], np.int64)
    held_out = [
        np.sort(np.concatenate([nothing, *(groups[n][1] for n in chosen if groups[n][0] == file)]))
        for file in range(len(sources))
    ]
    pairs = list(zip(sources, held_out, strict=True))
    return (
        [select_rows(source, np.setdiff1d(np.arange(len(source)), out)) for source, out in pairs],
        [select_rows(source, out) for source, out in pairs],
    )


def _split_in_time(source: RowSource, part: Ints, share: float) -> tuple[Ints, Ints] | None:
    """The earlier and the last examples of a row; versions of a reply, which have one prompt, stay together."""
    units: list[object] = part.tolist()
    if source.contrast is not None or source.desirable is not None:
        bounds = [source.first[n : n + 2].tolist() for n in part.tolist()]
        learned = (start + int(source.all_trained[start:end].argmax()) for start, end in bounds)
        units = [bytes(source.all_ids[start:reply]) for (start, _), reply in zip(bounds, learned, strict=True)]
    unique = [*dict.fromkeys(units)]
    if len(unique) < 2:
        return None
    late = {*unique[-min(len(unique) - 1, max(1, round(share * len(unique)))) :]}
    is_late = np.array([unit in late for unit in units])
    return part[~is_late], part[is_late]


def choose_parts(
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
    of_groups = [sum(sizes[number] for number in group) for group in order]
    limit = max(2 * share * total, statistics.median(of_groups or [0]))
    for group, size in zip(order, of_groups, strict=True):
        if size > limit:  # it would be most of the data
            continue
        # Left out where the share is missed by more with it than without it, once there is about half of it.
        overshoots = size_so_far + size - share * total > share * total - size_so_far
        if (2 * size_so_far >= share * total and overshoots) or len(chosen) + len(group) == len(contents):
            continue
        chosen.update(group)
        size_so_far += size
    return chosen


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def find_shared_passages(validation: Iterable[Text], learned: Iterable[Text]) -> list[str]:
    """Find runs of twenty words that are in both parts; returns the first twenty words of each passage."""
    numbers = number_words()
    known = _known_runs(hash_runs(_words(str(text)), NGRAM_WORDS, numbers) for text in validation)
    passages: list[str] = []
    for text in learned if len(known) else ():
        words = _words(str(text))
        shared = np.isin(hash_runs(words, NGRAM_WORDS, numbers), known)
        # A passage begins where the run before it is not shared.
        starts = np.flatnonzero(shared & ~np.append(False, shared[:-1])[: len(shared)])
        passages += [" ".join(words[n : n + NGRAM_WORDS]) for n in starts.tolist()]
    return passages


def copied_shares(texts: Sequence[str], training: Iterable[str]) -> list[float | None]:
    """For each text the share of its 8-word runs that stand in the training data; None for a text without a run.

    Only the runs of the texts are kept in memory: the training data may be large.
    """
    numbers = number_words()
    runs = [hash_runs(_spoken_words(text), RUN_WORDS, numbers) for text in texts]
    wanted = _known_runs(runs)
    found: Flags = np.zeros(len(wanted), bool)
    for text in training:
        found |= np.isin(wanted, hash_runs(_spoken_words(text), RUN_WORDS, numbers))
    return [float(np.isin(own, wanted[found]).mean()) if len(own) else None for own in runs]


def count_runs(text: str) -> int:
    return max(0, len(_spoken_words(text)) - RUN_WORDS + 1)


def find_overuse(author: Iterable[str], sides: Sequence[str]) -> dict[str, list[float]]:
    """Phrases of 3 to 5 words that a side overuses, with their uses per 1,000 words: of the author and each side.

    A phrase is overused if a side repeats it, since a single use may be chance, and has it more than twice as
    often as the author.
    """
    spoken = [_spoken_words(side) for side in sides]
    counts = [Counter(_phrases(words)) for words in spoken]
    repeated = {phrase for own in counts for phrase, count in own.items() if count > 1}
    of_author, author_words = Counter[str](), 0
    for text in author:  # which may be large, so only these phrases are counted
        words = _spoken_words(text)
        author_words += len(words)
        of_author.update(filter(repeated.__contains__, _phrases(words)))
    totals = [author_words, *map(len, spoken)]
    overused = {}
    for phrase in sorted(repeated):
        uses = [own[phrase] for own in (of_author, *counts)]
        rates = [1000 * count / max(total, 1) for count, total in zip(uses, totals, strict=True)]
        if any(n > 1 and rate > OVERUSE * rates[0] for n, rate in zip(uses[1:], rates[1:], strict=True)):
            overused[phrase] = rates
    return overused


def worst_phrases(overused: Mapping[str, Sequence[float]], count: int) -> list[str]:
    """The phrases that take the most words; one within a longer one that is listed says nothing more."""
    worst: list[str] = []
    for phrase in sorted(overused, key=lambda each: -len(each.split()) * max(overused[each][1:])):
        if len(worst) < count and not any(f" {phrase} " in f" {other} " for other in worst):
            worst.append(phrase)
    return worst


def _phrases(words: Sequence[str]) -> Iterator[str]:
    for length in PHRASE_WORDS:
        yield from (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))


def _spoken_words(text: str) -> list[str]:
    """The words in lowercase, without punctuation; "don't" is one."""
    return [word.lower() for word in SPOKEN_WORD.findall(text)]


def _known_runs(hashes: Iterable[Ints]) -> Ints:
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def number_words() -> defaultdict[str, int]:
    """A number for each word that is looked up, in the order of their first time."""
    return defaultdict(count().__next__)


def hash_runs(words: Sequence[str], length: int, word_numbers: defaultdict[str, int]) -> Ints:
    """Hash each run of so many words to 64 bits (a rolling polynomial hash)."""
    count = max(0, len(words) - length + 1)
    numbers: Ints = np.fromiter(map(word_numbers.__getitem__, words), np.uint64, len(words))
    # Small numbers are spread over all 64 bits: with 2**64 over the golden ratio, as in Fibonacci hashing.
    numbers = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(29)
    hashes: Ints = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(0xD1342543DE82EF95) + numbers[offset : offset + count]
    return hashes


def count_shared_rows(validation: Sequence[Source], learned: Sequence[Source]) -> int:
    """Count the validation rows that are learned as well."""
    held_out, known = (
        {s.example(n).ids.tobytes() for s in sources if isinstance(s, RowSource) for n in range(len(s))}
        for sources in (validation, learned)
    )
    return len(held_out & known)
