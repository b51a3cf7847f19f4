"""Rows, each measured whole: made into examples as a run makes them, and told apart by how well each is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...core.errors import DataError
from ...core.jobs import KnownRow, Stretch
from ...data.examples import IGNORED, Example, Examples, Fitted, truncation
from ...data.load import Work
from ...data.rows import RowSet, RowTokenizer, Speaking, speaking
from ...train_utils import plural, several
from .eval_loop import Sums
from .perplexity_input import Material, Told
from .segment_scores import BEGINNING, MOST, Numbers

MOST_TOLD = 1000
MORE = "\u2026"
FEW_TOKENS = 16
"""A row is ranked as if it had so many tokens more, known as well as all of them are: a few prove little."""


def known_rows(name: str, sets: Sequence[RowSet], work: Work, length: int) -> Material:
    """Of each row that counts which a run would learn; what is longer loses its end."""
    if problems := [problem for one in sets for problem in one.problems]:
        raise DataError("\n".join(problems))
    fitted = [truncation.fitted(one.source, length, "cut_end", work.tokenizer.bos) for one in sets]
    examples = Examples([one.source for one in fitted])
    if not len(examples):
        raise DataError(f"{name}: nothing in its rows counts. {_why_nothing(work.settings.rows.train_only_after)}")
    way = speaking(work.settings, work.folders, work.tokenizer, examples)
    words = Words(examples, way, work.tokenizer, names=len(sets) > 1)
    groups = range(len(examples))
    notes = (*_read(sets), *_cut(fitted, length))
    return Material(name, examples, groups, len(groups), 0, length, partial(_told, words=words), notes)


def _why_nothing(marker: str) -> str:
    if marker:
        return f"No row holds {marker!r} with something behind it ('Learn only after')."
    return "Choose another part of them ('Learn from'), or a longer window."


def _read(sets: Sequence[RowSet]) -> Iterator[str]:
    """How the rows of each file were read, and what was seen in them."""
    for one in sets:
        yield f"{one.source.name}: {several(one.counts.rows, 'row')}, read as {one.what.removeprefix('rows: ')}."
        yield from (*one.notes, *one.advice)


def _cut(fitted: Sequence[Fitted], length: int) -> Iterator[str]:
    if long := sum(one.too_long for one in fitted):
        are, end = plural(long, "is", "are"), plural(long, "its end is", "their ends are")
        yield f"{several(long, 'row')} {are} longer than {length} tokens: {end} cut."
    if empty := sum(one.nothing_learned for one in fitted):
        yield f"{several(empty, 'row')} {plural(empty, 'has', 'have')} nothing that counts: left out."


def _told(sums: Sums, words: Words) -> Told:
    return Told(tuple(_stretches(sums, words)), tuple(_rows(sums, words)))


def _rows(sums: Sums, words: Words) -> Iterator[KnownRow]:
    """The least known first; of very many rows those at both ends."""
    ranked = (sums.losses + FEW_TOKENS * sums.loss) / (sums.tokens + FEW_TOKENS)
    order = np.argsort(-ranked, kind="stable")
    if len(order) > MOST_TOLD:
        order = np.concatenate([order[: MOST_TOLD // 2], order[-(MOST_TOLD // 2) :]])
    for n in order.tolist():
        yield KnownRow(**sums.known(n), place=words.place(n), read=words.read(n), begins=words.begins(n))


def _stretches(sums: Sums, words: Words) -> Iterator[Stretch]:
    """The rows in their order, in equal parts."""
    rows = len(sums.tokens)
    count = min(MOST, rows)
    stretch_of: Numbers = np.arange(rows) * count // rows
    parts = sums.grouped(stretch_of, count)
    firsts = np.flatnonzero(np.diff(stretch_of, prepend=-1))
    for n, first in enumerate(firsts.tolist()):
        begins = (words.read(first) or words.begins(first)).removesuffix(f" {MORE}")
        yield Stretch(**parts.known(n), begins=f"{words.place(first)}: {begins}")


@dataclass(frozen=True)
class Words:
    """How a row is told to a person; `names`: with that of its file."""

    examples: Examples
    way: Speaking
    tokenizer: RowTokenizer
    names: bool

    def place(self, number: int) -> str:
        """'line 12'."""
        example = self.examples[number]
        return f"{example.source.name}, {example.place}" if self.names else example.place

    def read(self, number: int) -> str:
        """What somebody said before that which counts; nothing where a row counts from its beginning."""
        example = self.examples[number]
        first = _first(example)
        if first <= 1:
            return ""
        ids = [n for n in example.ids[:first].tolist() if n != self.tokenizer.bos]
        return _beginning(self.way.asked(self.tokenizer.decode(ids)))

    def begins(self, number: int) -> str:
        """That which counts, up to what is only read again."""
        example = self.examples[number]
        first = _first(example)
        counts = example.labels[first:] != IGNORED
        end = first + int(np.argmin(np.append(counts, False)))
        ids = example.ids[0 if first <= 1 else first : end].tolist()
        return _beginning(self.tokenizer.decode([n for n in ids if n not in self.tokenizer.stops]))


def _first(example: Example) -> int:
    """The first token that counts; of each row some do."""
    return int(np.argmax(example.labels != IGNORED))


def _beginning(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= BEGINNING else f"{words[:BEGINNING].rstrip()} {MORE}"
