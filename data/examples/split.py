"""What is kept aside for testing: whole chapters, rows or conversations, taken out before anything is cut.

Parts that say the same are kept together on one side, so that nothing learned is tested, or the other way round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...chunking import Cutting, dividing, sections_of
from ..readers import ReadText
from ..text import bounds
from .dataset_share import chance
from .examples import RowSource, Source
from .truncation import only

if TYPE_CHECKING:
    import numpy as np

    from ...chunking import Ints

FEWEST_PARTS = 10
RUN_WORDS = 20
WORD = re.compile(r"\w+")


class Stretch(NamedTuple):
    """A part of a text that stays whole; `open_end` where the text goes on behind it."""

    name: str
    text: str
    notes: tuple[str, ...] = ()
    open_end: bool = False


class Part(NamedTuple):
    """A chapter, or a tenth of a short text, by its place; hard cuts behind it belong to it."""

    file: int
    start: int
    end: int
    ends_section: bool


def whole(texts: Iterable[ReadText]) -> list[Stretch]:
    """Texts of which nothing is kept aside."""
    return [Stretch(text.name, text.text, text.notes) for text in texts]


def divided(
    texts: Sequence[ReadText], share: float, cut: Cutting, *, seed: int, name: str
) -> tuple[list[Stretch], list[Stretch]]:
    """Texts in what is learned and what is kept aside."""
    parts = [part for number, text in enumerate(texts) for part in _sections(number, text.text, cut.hard_cut)]
    if len(parts) < FEWEST_PARTS:
        parts = _tenths(texts, parts, cut)
    words = [" ".join(_words(texts[p.file].text[p.start : p.end])) for p in parts]
    sizes = [p.end - p.start for p in parts]
    aside = _chosen(words, sizes, share, chance(seed, name))
    sides = [[p for n, p in enumerate(parts) if (n in aside) == kept] for kept in (False, True)]
    learned, kept = (list(_stretches(texts, side)) for side in sides)
    return learned, kept


def divided_rows(source: RowSource, share: float, *, seed: int) -> tuple[RowSource, RowSource]:
    """Rows in what is learned and what is kept aside."""
    import numpy as np

    said = [source.ids(number).tobytes() for number in range(len(source))]
    aside = _chosen(said, [1] * len(said), share, chance(seed, source.name))
    kept = np.array(sorted(aside), np.int64)
    return only(source, np.setdiff1d(np.arange(len(source)), kept)), only(source, kept)


def _chosen(said: Sequence[Hashable], sizes: Sequence[int], share: float, random: np.random.Generator) -> set[int]:
    """Parts that make up about the share, those that say the same together; at least one, and never all."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, words in enumerate(said):
        groups[words].append(number)
    order, whole = list(groups.values()), sum(sizes)
    random.shuffle(order)
    chosen: set[int] = set()
    taken = 0
    for group in order:
        size = sum(sizes[number] for number in group)
        too_much = taken + size - share * whole > share * whole - taken
        if (chosen and too_much) or len(chosen) + len(group) == len(said):
            continue
        chosen.update(group)
        taken += size
    return chosen


def _sections(file: int, text: str, hard_cut: str) -> Iterator[Part]:
    """The parts between hard cuts that hold more than spaces."""
    start = 0
    ends = [match.end() for match in re.finditer(f"(?:{re.escape(hard_cut)})+", text)] if hard_cut else []
    for end in [*ends, len(text)]:
        if text[start:end].strip():
            yield Part(file, start, end, True)
            start = end


def _tenths(texts: Sequence[ReadText], sections: Sequence[Part], cut: Cutting) -> list[Part]:
    """About ten parts out of fewer, divided where blocks may end."""
    size = sum(p.end - p.start for p in sections) / FEWEST_PARTS
    ends = [_ends(text.text, cut) for text in texts]
    return [part for section in sections for part in _pieces(section, ends[section.file], size)]


def _ends(text: str, cut: Cutting) -> Ints:
    """Where blocks may end inside of sections: never within a hard cut, nor right before one."""
    sections = sections_of(text, cut.hard_cut)
    return dividing(bounds(text, sections, cut.block_ends).ends, sections)


def _pieces(section: Part, ends: Ints, size: float) -> Iterator[Part]:
    start = section.start
    for end in ends[(ends > section.start) & (ends < section.end)].tolist():
        if end - start >= size:
            yield Part(section.file, start, end, False)
            start = end
    yield Part(section.file, start, section.end, True)


def _stretches(texts: Sequence[ReadText], parts: Sequence[Part]) -> Iterator[Stretch]:
    """Neighbouring parts as one text, so that blocks may run on from one to the other."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and runs[-1][-1].file == part.file and runs[-1][-1].end == part.start:
            runs[-1].append(part)
        else:
            runs.append([part])
    for run in runs:
        text = texts[run[0].file]
        notes = text.notes if run is runs[0] else ()
        yield Stretch(text.name, text.text[run[0].start : run[-1].end], notes, not run[-1].ends_section)


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def shared_runs(aside: Iterable[str], learned: Iterable[str]) -> list[str]:
    """Runs of twenty words that stand on both sides: one for each place where they do, as it begins."""
    import numpy as np

    known: dict[str, int] = {}
    kept = np.unique(np.concatenate([np.zeros(0, np.uint64), *(_runs(_words(text), known) for text in aside)]))
    found: list[str] = []
    for text in learned if len(kept) else ():
        words = _words(text)
        runs = _runs(words, known)
        at = np.minimum(np.searchsorted(kept, runs), len(kept) - 1)
        both = kept[at] == runs
        first = np.flatnonzero(both & ~np.append(False, both[:-1])[: len(both)])
        found += [" ".join(words[n : n + RUN_WORDS]) for n in first.tolist()]
    return found


def _runs(words: Sequence[str], known: dict[str, int]) -> Ints:
    """A number for each run of twenty words, in 64 bits: the same for the same words."""
    import numpy as np

    if len(words) < RUN_WORDS:
        return np.zeros(0, np.uint64)
    numbers = np.fromiter((known.setdefault(word, len(known)) for word in words), np.uint64, len(words))
    numbers = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(29)
    count = len(words) - RUN_WORDS + 1
    runs: Ints = np.zeros(count, np.uint64)
    for step in range(RUN_WORDS):
        runs = runs * np.uint64(0xD1342543DE82EF95) + numbers[step : step + count]
    return runs


def shared_rows(aside: Sequence[Source], learned: Sequence[Source]) -> int:
    """How many rows that are kept aside are learned as well."""
    return len(_said(aside) & _said(learned))


def _said(sources: Sequence[Source]) -> set[bytes]:
    return {s.ids(n).tobytes() for s in sources if isinstance(s, RowSource) for n in range(len(s))}
