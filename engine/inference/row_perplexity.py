"""Perplexity of each row: rows become examples as in a run, and are ranked by how well the model knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...core.errors import DataError
from ...core.findings import texts
from ...core.jobs import RowScores, Segment
from ...data.examples import IGNORE_INDEX, Example, Examples, TruncatedRows, truncate_rows
from ...data.load import PrepareContext
from ...data.rows import PromptStyle, RowDataset, Tokenizer, detect_prompt_style
from ...train_utils import format_count, plural
from .eval_loop import GroupSums
from .perplexity_input import EXCERPT_LENGTH, MAX_SEGMENTS, Numbers, PerplexityInput, SegmentScores

MAX_ROWS = 1000
ELLIPSIS = "\u2026"
PRIOR_TOKENS = 16
"""Rows are ranked as if they had this many more tokens of average loss, since a few tokens prove little."""


def row_input(name: str, sets: Sequence[RowDataset], context: PrepareContext, length: int) -> PerplexityInput:
    """Return the rows as input: only tokens that a run would learn count, and longer rows are cut."""
    if problems := [problem for row_set in sets for problem in texts(row_set.findings, "problem")]:
        raise DataError("\n".join(problems))
    truncated = [truncate_rows(row_set.source, length, "cut_end", context.tokenizer.bos) for row_set in sets]
    examples = Examples([row_set.source for row_set in truncated])
    if not len(examples):
        raise DataError(
            f"The rows of {name} have no tokens to measure. "
            f"{_nothing_counts_advice(context.settings.rows.train_only_after)}"
        )
    style = detect_prompt_style(context.settings, context.folders, context.tokenizer, examples)
    row_texts = RowTexts(examples, style, context.tokenizer, names=len(sets) > 1)
    groups = range(len(examples))
    notes = (*_reading_notes(sets), *_truncation_notes(truncated, length))
    score = partial(_scores, texts=row_texts)
    return PerplexityInput(name, examples, groups, len(groups), 0, length, score, notes)


def _nothing_counts_advice(marker: str) -> str:
    if marker:
        return f"No row contains {marker!r} followed by text. Change 'Train only after'."
    return "Change 'Train on', or use a longer window."


def _reading_notes(sets: Sequence[RowDataset]) -> Iterator[str]:
    """Yield notes on how the rows of each file were read."""
    for row_set in sets:
        rows = format_count(row_set.counts.rows, "row")
        yield f"{row_set.source.name}: {rows}, read as {row_set.what.removeprefix('rows: ')}."
        yield from (*row_set.notes, *texts(row_set.findings, "advice"))


def _truncation_notes(truncated: Sequence[TruncatedRows], length: int) -> Iterator[str]:
    if long_rows := sum(source.too_long for source in truncated):
        are, they_are = plural(long_rows, "is", "are"), plural(long_rows, "it is", "they are")
        rows = format_count(long_rows, "row")
        yield f"{rows} {are} longer than {length} tokens, so {they_are} truncated at the end."
    if empty_rows := sum(source.nothing_learned for source in truncated):
        has, was = plural(empty_rows, "has", "have"), plural(empty_rows, "was", "were")
        yield f"{format_count(empty_rows, 'row')} {has} no tokens to measure and {was} dropped."


def _scores(sums: GroupSums, texts: RowTexts) -> SegmentScores:
    return SegmentScores(tuple(_segments(sums, texts)), tuple(_score_rows(sums, texts)))


def _score_rows(sums: GroupSums, texts: RowTexts) -> Iterator[RowScores]:
    """Yield the rows, the least known first; of very many rows only both ends of the ranking."""
    ranked = (sums.losses + PRIOR_TOKENS * sums.loss) / (sums.tokens + PRIOR_TOKENS)
    order = np.argsort(-ranked, kind="stable")
    if len(order) > MAX_ROWS:
        order = np.concatenate([order[: MAX_ROWS // 2], order[-(MAX_ROWS // 2) :]])
    for n in order.tolist():
        yield RowScores(**sums.figures(n), place=texts.place(n), read=texts.read(n), begins=texts.begins(n))


def _segments(sums: GroupSums, texts: RowTexts) -> Iterator[Segment]:
    """Yield the scores of equal parts of the rows, in their order."""
    rows = len(sums.tokens)
    count = min(MAX_SEGMENTS, rows)
    part_of_row: Numbers = np.arange(rows) * count // rows
    parts = sums.merge_groups(part_of_row, count)
    firsts = np.flatnonzero(np.diff(part_of_row, prepend=-1))
    for n, first in enumerate(firsts.tolist()):
        begins = (texts.read(first) or texts.begins(first)).removesuffix(f" {ELLIPSIS}")
        yield Segment(**parts.figures(n), begins=f"{texts.place(first)}: {begins}")


@dataclass(frozen=True)
class RowTexts:
    """Texts that describe a row to the user; `names` adds the name of its file."""

    examples: Examples
    way: PromptStyle
    tokenizer: Tokenizer
    names: bool

    def place(self, index: int) -> str:
        """'line 12'."""
        example = self.examples[index]
        return f"{example.source.name}, {example.place}" if self.names else example.place

    def read(self, index: int) -> str:
        """Return the message before the counted part; empty if a row counts from its beginning."""
        example = self.examples[index]
        first_counted = _first_counted(example)
        if first_counted <= 1:
            return ""
        ids = [n for n in example.ids[:first_counted].tolist() if n != self.tokenizer.bos]
        return _shorten(self.way.asked(self.tokenizer.decode(ids)))

    def begins(self, index: int) -> str:
        """Return the beginning of the first counted part."""
        example = self.examples[index]
        first_counted = _first_counted(example)
        counted = example.labels[first_counted:] != IGNORE_INDEX
        end = first_counted + int(np.argmin(np.append(counted, False)))
        ids = example.ids[0 if first_counted <= 1 else first_counted : end].tolist()
        return _shorten(self.tokenizer.decode([n for n in ids if n not in self.tokenizer.stops]))


def _first_counted(example: Example) -> int:
    """Return the index of the first counted token; every row has one."""
    return int(np.argmax(example.labels != IGNORE_INDEX))


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= EXCERPT_LENGTH else f"{words[:EXCERPT_LENGTH].rstrip()} {ELLIPSIS}"
