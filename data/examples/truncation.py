"""Rows that are longer than the cutoff: left out, cut, or split; and those of which nothing is learned then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .examples import RowSource

if TYPE_CHECKING:
    from ...chunking import Flags, Ints

    Piece = tuple[int, int, int, bool]  # row, first id, one past the last, whether BOS goes before it

STEP, MOST = 32, 2048


@dataclass(frozen=True)
class Fitted:
    """The rows as they are trained on, and what it cost."""

    source: RowSource
    too_long: int  # rows longer than the cutoff
    nothing_learned: int  # examples left out because nothing of them would be learned


def auto_cutoff(longest: int, context: int) -> int:
    """The longest row, rounded up, at most 2048 and what the model takes."""
    rounded = min(-(-max(longest, 1) // STEP) * STEP, MOST)
    return min(rounded, context) if context else rounded


def fitted(source: RowSource, cutoff: int, way: str, bos: int | None) -> Fitted:
    """Each row at most `cutoff` ids long."""
    import numpy as np

    long = np.flatnonzero(source.lengths > cutoff)
    cut = source if not len(long) else _cut(source, long, cutoff, way, bos)
    learned = cut.learned > 0
    kept = cut if learned.all() else only(cut, np.flatnonzero(learned))
    return Fitted(kept, len(long), len(cut) - len(kept))


def _cut(source: RowSource, long: Ints, cutoff: int, way: str, bos: int | None) -> RowSource:
    import numpy as np

    if way in ("drop", "drop_any"):
        return only(source, np.flatnonzero(source.lengths <= cutoff))
    which = set(long.tolist())
    pieces = [
        piece
        for row in range(len(source))
        for piece in (_pieces(source, row, cutoff, way, bos) if row in which else [_whole(source, row)])
    ]
    return _joined(source, pieces, bos)


def _whole(source: RowSource, row: int) -> Piece:
    return row, int(source.first[row]), int(source.first[row + 1]), False


def _pieces(source: RowSource, row: int, cutoff: int, way: str, bos: int | None) -> Iterator[Piece]:
    """What is left of a long row; BOS stands before a piece from the middle, if it stood before the row."""
    _, first, last, _ = _whole(source, row)
    opened = bos is not None and int(source.all_ids[first]) == bos
    room = cutoff - opened
    if way == "cut_end":
        yield row, first, first + cutoff, False
    elif way == "cut_start":
        yield row, last - room, last, opened
    else:
        yield row, first, first + cutoff, False
        for start in range(first + cutoff, last, room):
            yield row, start, min(start + room, last), opened


def _joined(source: RowSource, pieces: list[Piece], bos: int | None) -> RowSource:
    import numpy as np

    head = np.array([bos or 0], np.int32)
    silent: Flags = np.zeros(1, bool)
    ids = [part for _, a, b, opened in pieces for part in ((head,) if opened else ()) + (source.all_ids[a:b],)]
    flags = [
        part for _, a, b, opened in pieces for part in ((silent,) if opened else ()) + (source.all_trained[a:b],)
    ]
    lengths = [b - a + opened for _, a, b, opened in pieces]
    rows = [row for row, *_ in pieces]
    return replace(
        source,
        all_ids=np.concatenate(ids),
        all_trained=np.concatenate(flags),
        first=np.cumsum([0, *lengths], dtype=np.int64),
        rows=source.rows[rows],
        follows=source.follows[rows] | (np.diff(rows, prepend=-1) == 0),
    )


def only(source: RowSource, which: Ints) -> RowSource:
    """These rows alone."""
    import numpy as np

    kept: Flags = np.zeros(len(source), bool)
    kept[which] = True
    lengths = source.lengths
    inside: Flags = np.repeat(kept, lengths)
    return replace(
        source,
        all_ids=source.all_ids[inside],
        all_trained=source.all_trained[inside],
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[kept])]),
        rows=source.rows[kept],
        follows=source.follows[kept] & (np.diff(np.flatnonzero(kept), prepend=-1) == 1),
    )
