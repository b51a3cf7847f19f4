"""Rows to ids, with what of them is learned: borders are places in the text, and each token is told by its own.

A token that begins before the border is not learned, whatever the tokenizer merged across it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...chunking import Encoded, Encoder
from ..examples import RowSource
from ..readers import Row, Table, one_line_end
from .chat_templates import ChatTemplate, Rendered, Renderer, Turn
from .row_schema import BadRowError, Chat, Shape, Written
from .text_quality import Inspector

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...chunking import Flags, Ids

BATCH_ROWS = 1000
BATCH_CHARS = 4_000_000
LONGEST_CHARS = 5_000_000


class RowTokenizer(Protocol):
    """What rows ask of a tokenizer, beside what a text asks."""

    @property
    def encode_marked(self) -> Encoder:
        """Texts to ids with their places, in which special tokens are understood."""
        ...

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def specials(self) -> Collection[str]: ...
    @property
    def stops(self) -> Collection[int]:
        """The ids of special tokens, any of which may end a reply."""
        ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    @property
    def fingerprint(self) -> str:
        """What its ids and its template follow from; empty where that cannot be told: then nothing is kept."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Learning:
    """What of a row is learned."""

    train_on: str = "auto"
    only_after: str = ""
    add_bos: bool = True
    add_eos: bool = True


class Prepared(NamedTuple):
    """A row as text: what is learned of it (None: everything), and whether BOS and EOS are still to be put.

    `follows`: none was left out between it and the one before it.
    """

    number: int
    text: str
    spans: tuple[tuple[int, int], ...] | None
    silent: tuple[tuple[int, int], ...]
    bare: bool
    follows: bool = True


@dataclass
class Counts:
    """What became of the rows of a file."""

    rows: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    without_marker: int = 0
    no_reply: int = 0
    merged_systems: int = 0
    left_out: dict[str, int] = field(default_factory=dict)  # of conversations out of an export


@dataclass
class RowEncoder:
    """The rows of one file through shape, template and tokenizer."""

    unit: str
    shape: Shape
    tokenizer: RowTokenizer
    learning: Learning
    inspector: Inspector
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._render = Renderer(self.tokenizer.chat_template, self.tokenizer.specials)
        self._everything = self.learning.train_on == "everything" or (
            self.learning.train_on == "auto" and not self.shape.has_replies
        )

    def encoded(self, table: Table, say: Callable[[int], None]) -> RowSource:
        """All rows that can be learned from; the others are counted."""
        import numpy as np

        ids: list[Ids] = []
        flags: list[Flags] = []
        numbers: list[int] = []
        follows: list[bool] = []
        lengths: list[int] = [0]
        for batch in _batches(self._prepared(table.rows())):
            own, trained = zip(*self._encoded(batch), strict=True)
            ids.append(np.concatenate(own))  # an array a row would be larger than what is in it
            flags.append(np.concatenate(trained))
            numbers += [row.number for row in batch]
            follows += [row.follows for row in batch]
            lengths += map(len, own)
            say(self.counts.rows)
        self.counts.merged_systems = self._render.merged_systems
        first = np.cumsum(lengths, dtype=np.int64)
        joined = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        trained = np.concatenate(flags) if flags else np.zeros(0, bool)
        places = (np.array(numbers, np.int64), np.array(follows, bool))
        return RowSource(table.name, joined, trained, first, *places, table.unit, self.tokenizer.decode)

    def _prepared(self, rows: Iterable[Row]) -> Iterator[Prepared]:
        last = 0
        for row in rows:
            self.counts.rows += 1
            self._count(row.left_out)
            if row.without_reply:
                self.counts.no_reply += 1
                continue
            try:
                if row.problem:
                    raise BadRowError(row.problem)
                prepared = self._row(row)
            except BadRowError as error:
                self.counts.bad.append((row.number, str(error)))
                continue
            if prepared is not None:
                self._inspect(row, prepared)
                yield prepared._replace(follows=self.counts.rows == last + 1)
                last = self.counts.rows

    def _count(self, left_out: Mapping[str, int]) -> None:
        for what, count in left_out.items():
            self.counts.left_out[what] = self.counts.left_out.get(what, 0) + count

    def _inspect(self, row: Row, prepared: Prepared) -> None:
        """Look at the row's own words, not at those that a template puts around them."""
        own = "\n".join(_texts(row.columns.values()))
        spans = prepared.spans
        learned = own if spans is None else "\n".join(prepared.text[start:end] for start, end in spans)
        self.inspector.look(own, learned, f"{self.unit} {row.number}")

    def _row(self, row: Row) -> Prepared | None:
        """A row as text with what is learned of it; nothing where it lacks what is asked for."""
        meaning = self.shape.of(_with_one_line_end(row.columns))
        if isinstance(meaning, Chat):
            rendered, bare = self._chat(meaning), not self.tokenizer.chat_template.own
            rendered = rendered._replace(text=rendered.text.rstrip()) if bare else rendered
        else:
            rendered, bare = _written(meaning), True
        _refuse_text(rendered.text)
        if self.learning.only_after:
            return self._after(row.number, rendered.text, bare)
        return self._learned(row.number, rendered, bare)

    def _chat(self, chat: Chat) -> Rendered:
        flagged = any(m.learned is not None for m in chat.messages)
        return self._render(chat, places=(not self._everything or flagged) and not self.learning.only_after)

    def _after(self, number: int, text: str, bare: bool) -> Prepared | None:
        at = text.find(self.learning.only_after)
        if at < 0:
            self.counts.without_marker += 1
            return None
        return Prepared(number, text, ((at + len(self.learning.only_after), len(text)),), (), bare)

    def _learned(self, number: int, rendered: Rendered, bare: bool) -> Prepared | None:
        silent = tuple((t.start, t.end) for t in rendered.turns if t.learned is False)
        if self._everything:
            return Prepared(number, rendered.text, None, silent, bare)
        turns = [t for t in rendered.turns if t.learned or (t.reply and t.learned is None)]
        replies = [t for t in rendered.turns if t.reply]
        if self.learning.train_on == "last_reply":
            turns = [t for t in turns if t is replies[-1]] if replies else []
        if not turns:
            self.counts.no_reply += 1
            return None
        return Prepared(number, rendered.text, tuple((t.start, t.end) for t in turns), silent, bare)

    def _encoded(self, batch: Sequence[Prepared]) -> Iterator[tuple[Ids, Flags]]:
        for row, piece in zip(batch, self.tokenizer.encode_marked([row.text for row in batch]), strict=True):
            yield self._closed(row, piece, _trained(row, piece))

    def _closed(self, row: Prepared, piece: Encoded, trained: Flags) -> tuple[Ids, Flags]:
        """The row with BOS and EOS exactly once, where they belong."""
        import numpy as np

        bos, eos, ids = self.tokenizer.bos, self.tokenizer.eos, piece.ids
        while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            ids, trained = ids[1:], trained[1:]
        while eos is not None and len(ids) > 1 and ids[-1] == ids[-2] == eos:
            ids, trained = ids[:-1], trained[:-1]
        opens = row.bare and self.learning.add_bos and bos is not None and (not len(ids) or ids[0] != bos)
        closes = row.bare and self.learning.add_eos and eos is not None and (not len(ids) or ids[-1] != eos)
        if not opens and not closes:
            return ids, trained
        edge = np.array([bos], np.int32) if opens else ids[:0]
        end = np.array([eos], np.int32) if closes else ids[:0]
        last = len(row.text.rstrip())
        ended = row.spans is None or row.spans[-1][1] >= last
        ended = ended and not any(stop >= last for _, stop in row.silent)
        flags = [np.zeros(len(edge), bool), trained, np.full(len(end), ended)]
        return np.concatenate([edge, ids, end]), np.concatenate(flags)


def _with_one_line_end(value: Any) -> Any:
    """A row's value; all texts in it with the line ends of any other text: it may come from Windows."""
    if isinstance(value, str):
        return one_line_end(value)
    if isinstance(value, Mapping):
        return {key: _with_one_line_end(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_one_line_end(inside) for inside in value]
    return value


def _texts(values: Iterable[Any]) -> Iterator[str]:
    """All texts in a row, those of messages too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value[key] for key in value if key in ("content", "value", "text"))
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)


def _written(meaning: Written) -> Rendered:
    if meaning.reply is None:
        return Rendered(meaning.text, ())
    return Rendered(meaning.text, (Turn(meaning.reply, len(meaning.text), True, None),))


def _refuse_text(text: str) -> None:
    if len(text) > LONGEST_CHARS:
        raise BadRowError(f"has {len(text):,} characters. Split it into several rows, or save it as a .txt file.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise BadRowError(f"holds half of a character ({half!r}). Save the data anew as UTF-8.") from error


def _trained(row: Prepared, piece: Encoded) -> Flags:
    """Which tokens begin inside of what is learned."""
    import numpy as np

    trained: Flags = np.full(len(piece.ids), row.spans is None)
    for spans, value in ((row.spans or (), True), (row.silent, False)):
        for start, end in spans:
            trained[np.searchsorted(piece.starts, start) : np.searchsorted(piece.starts, end)] = value
    return trained


def _batches(rows: Iterator[Prepared]) -> Iterator[list[Prepared]]:
    """So many rows, or so much text, at a time."""
    while batch := list(islice(_up_to(rows, BATCH_CHARS), BATCH_ROWS)):
        yield batch


def _up_to(rows: Iterator[Prepared], most: int) -> Iterator[Prepared]:
    size = 0
    while size < most and (row := next(rows, None)) is not None:
        size += len(row.text)
        yield row
