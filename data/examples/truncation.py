"""Truncation: rows longer than the cutoff are dropped, cut or split; rows without learned tokens are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...chunking import Flags, Ids, Ints
from .examples import RowSource

RowPiece = tuple[int, int, int, bool]  # row, first id, one past the last id, whether BOS goes before it


@dataclass(frozen=True)
class TruncatedRows:
    """The rows after truncation, and how many were too long or dropped."""

    source: RowSource
    too_long: int  # rows longer than the cutoff
    nothing_learned: int  # examples dropped because no token of them would be learned


def truncate_rows(source: RowSource, cutoff: int, too_long: str, bos: int | None) -> TruncatedRows:
    """Truncate rows to `cutoff` ids; `too_long` is the value of that setting."""
    long = np.flatnonzero(source.lengths > cutoff)
    shortened = source if not len(long) else _cut(source, long, cutoff, too_long, bos)
    learned = shortened.learned > 0
    kept = shortened if learned.all() else select_rows(shortened, np.flatnonzero(learned))
    return TruncatedRows(kept, len(long), len(shortened) - len(kept))


def _cut(source: RowSource, long: Ints, cutoff: int, too_long: str, bos: int | None) -> RowSource:
    if too_long in ("drop", "drop_any"):
        return select_rows(source, np.flatnonzero(source.lengths <= cutoff))
    long_rows = set(long.tolist())
    pieces = [
        piece
        for row in range(len(source))
        for piece in (_pieces(source, row, cutoff, too_long, bos) if row in long_rows else [_whole(source, row)])
    ]
    return _concatenate(source, pieces, bos)


def _whole(source: RowSource, row: int) -> RowPiece:
    return row, int(source.first[row]), int(source.first[row + 1]), False


def _pieces(source: RowSource, row: int, cutoff: int, too_long: str, bos: int | None) -> Iterator[RowPiece]:
    """Yield the pieces of a long row; pieces from its middle get a BOS where the row begins with one."""
    _, first, last, _ = _whole(source, row)
    has_bos = bos is not None and int(source.all_ids[first]) == bos
    room = cutoff - has_bos
    if too_long == "cut_end":
        yield row, first, first + cutoff, False
    elif too_long == "cut_start":
        yield row, last - room, last, has_bos
    else:
        yield row, first, first + cutoff, False
        for start in range(first + cutoff, last, room):
            yield row, start, min(start + room, last), has_bos


def _concatenate(source: RowSource, pieces: list[RowPiece], bos: int | None) -> RowSource:
    bos_id: Ids = np.array([bos or 0], np.int32)
    not_learned: Flags = np.zeros(1, bool)
    ids: list[Ids] = []
    flags: list[Flags] = []
    for _, a, b, with_bos in pieces:
        ids += [bos_id, source.all_ids[a:b]] if with_bos else [source.all_ids[a:b]]
        flags += [not_learned, source.all_trained[a:b]] if with_bos else [source.all_trained[a:b]]
    lengths = [b - a + with_bos for _, a, b, with_bos in pieces]
    rows = [row for row, *_ in pieces]
    return replace(
        source,
        all_ids=np.concatenate(ids),
        all_trained=np.concatenate(flags),
        first=np.cumsum([0, *lengths], dtype=np.int64),
        rows=source.rows[rows],
        follows=source.follows[rows] | (np.diff(rows, prepend=-1) == 0),
    )


def select_rows(source: RowSource, numbers: Ints) -> RowSource:
    """Return a source with only these rows."""
    selected: Flags = np.zeros(len(source), bool)
    selected[numbers] = True
    lengths = source.lengths
    selected_ids: Flags = np.repeat(selected, lengths)
    return replace(
        source,
        all_ids=source.all_ids[selected_ids],
        all_trained=source.all_trained[selected_ids],
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[selected])]),
        rows=source.rows[selected],
        follows=source.follows[selected] & (np.diff(np.flatnonzero(selected), prepend=-1) == 1),
    )


def reorder_rows(source: RowSource, order: Ints, follows: Flags) -> RowSource:
    """Return the rows in another order; `follows` is of that order."""
    if np.array_equal(order, np.arange(len(source))):
        return replace(source, follows=follows)
    lengths = source.lengths[order]
    first: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.repeat(source.first[order] - first[:-1], lengths) + np.arange(first[-1])
    return replace(
        source,
        all_ids=source.all_ids[ids],
        all_trained=source.all_trained[ids],
        first=first,
        rows=source.rows[order],
        follows=follows,
    )
