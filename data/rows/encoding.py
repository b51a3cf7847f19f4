"""Tokenization of rows with their loss mask.

What is learned is given as spans of the text. A token is learned if it begins inside a span; a token that begins
before it is not, even where the tokenizer merged characters across the border.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...chunking import EncodedText, Encoder, Flags, Ids
from ...core.errors import ModelError
from ..examples import RowSource, reorder_rows
from ..readers import Row, Table, normalize_line_ends, shorten
from .chat_templates import ChatRenderer, ChatTemplate, RenderedText, Turn
from .conversations import Conversations
from .prompt_and_reply import PartLimits, RowParts, find_parts
from .row_schema import BadRowError, Chat, ChatSchema, FixedText, RowSchema
from .text_quality import TextInspector

BATCH_ROWS = 1000
BATCH_CHARS = 2_000_000
MAX_ROW_CHARS = 5_000_000
MAX_REASON = 300  # characters of why a row can't be read


class Tokenizer(Protocol):
    """What preparing data needs of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...
    @property
    def encode_marked(self) -> Encoder:
        """Encodes texts to ids with their positions; special tokens in the text become single ids."""
        ...

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def specials(self) -> Collection[str]: ...
    @property
    def stops(self) -> Collection[int]:
        """The ids of special tokens; each may end a reply."""
        ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    @property
    def fingerprint(self) -> str:
        """Identifies the ids and the template; empty where that is not possible: then nothing is cached."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class LossMaskSpec:
    """The settings that decide which tokens of a row are learned."""

    train_on: str = "auto"
    only_after: str = ""
    add_bos: bool = True
    add_eos: bool = True


class RowText(NamedTuple):
    """A row as text, with the spans that are learned.

    `spans` are learned (None: everything), `ignored_spans` never; `needs_bos_eos`: the template did not write
    them; `follows`: no row was dropped between this one and the one before it; `parts`: prompt and reply, where
    they are limited.
    """

    number: int
    text: str
    spans: tuple[tuple[int, int], ...] | None
    ignored_spans: tuple[tuple[int, int], ...]
    needs_bos_eos: bool
    follows: bool = True
    parts: RowParts | None = None


@dataclass
class RowCounts:
    """Counts of the rows of a file that were read, dropped or changed."""

    rows: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    without_marker: int = 0
    no_reply: int = 0
    merged_systems: int = 0
    left_out: dict[str, int] = field(default_factory=dict)  # messages of chat exports, by reason
    long_prompts: int = 0
    long_replies: int = 0
    without_parts: int = 0  # rows with no reply or several, whose parts are not limited


@dataclass
class RowEncoder:
    """Encodes the rows of one file with schema, template and tokenizer."""

    unit: str
    shape: RowSchema
    tokenizer: Tokenizer
    learning: LossMaskSpec
    inspector: TextInspector
    conversations: Conversations | None = None  # of rows that name theirs
    split_exchanges: bool = False
    limits: PartLimits = field(default_factory=PartLimits)
    counts: RowCounts = field(default_factory=RowCounts)

    def __post_init__(self) -> None:
        self._renderer = ChatRenderer(self.tokenizer.chat_template, self.tokenizer.specials)
        self._splits_chats = self.split_exchanges and isinstance(self.shape, ChatSchema)
        self._learns_everything = self.learning.train_on == "everything" or (
            self.learning.train_on == "auto" and not self.shape.has_replies
        )

    def encoded(self, table: Table, report_progress: Callable[[int], None]) -> RowSource:
        """Encode all rows that can be learned; the others are counted."""
        ids: list[Ids] = []
        flags: list[Flags] = []
        numbers: list[int] = []
        follows: list[bool] = []
        lengths: list[int] = [0]
        for batch in _batches(self._row_texts(table.rows())):
            batch_ids, batch_flags = zip(*self._encode_batch(batch), strict=True)
            ids.append(np.concatenate(batch_ids))  # one array per row would take more memory than the ids in it
            flags.append(np.concatenate(batch_flags))
            numbers += [row.number for row in batch]
            follows += [row.follows for row in batch]
            lengths += map(len, batch_ids)
            report_progress(self.counts.rows)
        self.counts.merged_systems = self._renderer.merged_systems
        first = np.cumsum(lengths, dtype=np.int64)
        all_ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        all_flags = np.concatenate(flags) if flags else np.zeros(0, bool)
        positions = (np.array(numbers, np.int64), np.array(follows, bool))
        source = RowSource(table.name, all_ids, all_flags, first, *positions, table.unit, self.tokenizer.decode)
        if self.conversations is None:
            return source
        arranged = reorder_rows(source, *self.conversations.arrange(source.follows))
        return replace(arranged, has_conversations=True)

    def _row_texts(self, rows: Iterable[Row]) -> Iterator[RowText]:
        previous = 0
        for row in rows:
            self.counts.rows += 1
            self._count(row.left_out)
            row_texts = self._read(row)
            if self.conversations:
                self.conversations.add(row, row_texts)
            follows = self.counts.rows == previous + 1 and not self._splits_chats
            for row_text in row_texts:
                if row_text is not None:
                    yield row_text._replace(follows=follows)
                follows = row_text is not None
            if row_texts and row_texts[-1] is not None:
                previous = self.counts.rows

    def _read(self, row: Row) -> list[RowText | None]:
        """Return the texts of a row, None for each without a marker or a reply; none of a row that is not used."""
        if row.without_reply:
            self.counts.no_reply += 1
            return []
        try:
            if row.problem:
                raise BadRowError(row.problem)
            row_texts = [self._to_text(row.number, content) for content in self._contents(row)]
        except BadRowError as error:
            self.counts.bad.append((row.number, shorten(str(error), MAX_REASON)))
            return []
        except ModelError as error:  # of the template: it would come again with every row
            raise ModelError(f"{self.unit.capitalize()} {row.number} can't be formatted. {error}") from error
        if any(row_texts):
            self._inspect(row, [row_text for row_text in row_texts if row_text])
        return row_texts

    def _contents(self, row: Row) -> Sequence[Chat | FixedText]:
        content = self.shape.of(_normalize_line_ends(row.columns))
        return content.exchanges() if self._splits_chats and isinstance(content, Chat) else [content]

    def _count(self, left_out: Mapping[str, int]) -> None:
        for reason, count in left_out.items():
            self.counts.left_out[reason] = self.counts.left_out.get(reason, 0) + count

    def _inspect(self, row: Row, row_texts: Sequence[RowText]) -> None:
        """Inspect the row's own words, without those that a template adds."""
        own_text = "\n".join(_all_texts(row.columns.values()))
        spans = [(each.text, span) for each in row_texts for span in each.spans or ()]
        learns_all = any(each.spans is None for each in row_texts)
        learned_text = own_text if learns_all else "\n".join(text[start:end] for text, (start, end) in spans)
        self.inspector.look(own_text, learned_text, f"{self.unit} {row.number}")

    def _to_text(self, number: int, content: Chat | FixedText) -> RowText | None:
        """Write a chat or text with its learned spans; None where it has no marker or no reply."""
        if isinstance(content, Chat):
            rendered, needs_bos_eos = self._chat(content), not self.tokenizer.chat_template.own
            rendered = rendered._replace(text=rendered.text.rstrip()) if needs_bos_eos else rendered
        else:
            rendered, needs_bos_eos = _render_fixed_text(content), True
        _check_text(rendered.text)
        if self.learning.only_after:
            return self._after_marker(number, rendered.text, needs_bos_eos)
        row_text = self._mask_turns(number, rendered, needs_bos_eos)
        return row_text and row_text._replace(parts=find_parts(content, rendered) if any(self.limits) else None)

    def _chat(self, chat: Chat) -> RenderedText:
        needs_places = not self._learns_everything or any(self.limits)
        has_flags = any(m.learned is not None for m in chat.messages)
        return self._renderer(chat, places=(needs_places or has_flags) and not self.learning.only_after)

    def _after_marker(self, number: int, text: str, needs_bos_eos: bool) -> RowText | None:
        position = text.find(self.learning.only_after)
        if position < 0:
            self.counts.without_marker += 1
            return None
        reply = position + len(self.learning.only_after)
        return RowText(
            number, text, ((reply, len(text)),), (), needs_bos_eos, parts=RowParts(position, reply, len(text))
        )

    def _mask_turns(self, number: int, rendered: RenderedText, needs_bos_eos: bool) -> RowText | None:
        ignored = tuple((t.start, t.end) for t in rendered.turns if t.learned is False)
        if self._learns_everything:
            return RowText(number, rendered.text, None, ignored, needs_bos_eos)
        turns = [t for t in rendered.turns if t.learned or (t.reply and t.learned is None)]
        replies = [t for t in rendered.turns if t.reply]
        if self.learning.train_on == "last_reply":
            turns = [t for t in turns if t is replies[-1]] if replies else []
        if not turns:
            self.counts.no_reply += 1
            return None
        return RowText(number, rendered.text, tuple((t.start, t.end) for t in turns), ignored, needs_bos_eos)

    def _encode_batch(self, batch: Sequence[RowText]) -> Iterator[tuple[Ids, Flags]]:
        for row, encoded in zip(batch, self.tokenizer.encode_marked([row.text for row in batch]), strict=True):
            ids, mask, shift = self._add_bos_eos(row, encoded, _loss_mask(row, encoded))
            keep = self._kept_tokens(row, encoded, ids, shift) if any(self.limits) else slice(None)
            yield ids[keep], mask[keep]

    def _kept_tokens(self, row: RowText, encoded: EncodedText, ids: Ids, shift: int) -> Flags:
        """Mark the tokens that the limits of prompt and reply leave; `shift` is by how much BOS moved them."""
        if row.parts is None:
            self.counts.without_parts += 1
            return np.ones(len(ids), bool)
        parts = RowParts(*(int(np.searchsorted(encoded.starts, place)) + shift for place in row.parts))
        if row.needs_bos_eos:
            parts = parts._replace(reply_end=len(ids))  # with its EOS
        self.counts.long_prompts += parts.is_long_prompt(self.limits)
        self.counts.long_replies += parts.is_long_reply(self.limits)
        return parts.kept(len(ids), self.limits, int(ids[0] == self.tokenizer.bos))

    def _add_bos_eos(self, row: RowText, encoded: EncodedText, mask: Flags) -> tuple[Ids, Flags, int]:
        """Make BOS and EOS stand exactly once where they belong; also returns by how much the tokens moved."""
        bos, eos, ids, shift = self.tokenizer.bos, self.tokenizer.eos, encoded.ids, 0
        while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            ids, mask, shift = ids[1:], mask[1:], shift - 1
        while eos is not None and len(ids) > 1 and ids[-1] == ids[-2] == eos:
            ids, mask = ids[:-1], mask[:-1]
        add_bos = (
            row.needs_bos_eos and self.learning.add_bos and bos is not None and (not len(ids) or ids[0] != bos)
        )
        add_eos = (
            row.needs_bos_eos and self.learning.add_eos and eos is not None and (not len(ids) or ids[-1] != eos)
        )
        if not add_bos and not add_eos:
            return ids, mask, shift
        start = np.array([bos], np.int32) if add_bos else ids[:0]
        end = np.array([eos], np.int32) if add_eos else ids[:0]
        last = len(row.text.rstrip())
        learns_eos = row.spans is None or row.spans[-1][1] >= last
        learns_eos = learns_eos and not any(stop >= last for _, stop in row.ignored_spans)
        flags = [np.zeros(len(start), bool), mask, np.full(len(end), learns_eos)]
        return np.concatenate([start, ids, end]), np.concatenate(flags), shift + len(start)


def _normalize_line_ends(value: Any) -> Any:
    """Normalize the line ends of all texts in a value: rows may have been written on Windows."""
    if isinstance(value, str):
        return normalize_line_ends(value)
    if isinstance(value, Mapping):
        return {key: _normalize_line_ends(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalize_line_ends(item) for item in value]
    return value


def _all_texts(values: Iterable[Any]) -> Iterator[str]:
    """Yield all texts in a row, including those of messages."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _all_texts(value[key] for key in value if key in ("content", "value", "text"))
        elif isinstance(value, (list, tuple)):
            yield from _all_texts(value)


def _render_fixed_text(row: FixedText) -> RenderedText:
    if row.reply is None:
        return RenderedText(row.text, ())
    return RenderedText(row.text, (Turn(row.reply, len(row.text), True, None),))


def _check_text(text: str) -> None:
    if len(text) > MAX_ROW_CHARS:
        raise BadRowError(
            f"has {len(text):,} characters, which is more than the limit of {MAX_ROW_CHARS:,}. Split it into "
            "several rows, or save it as a .txt file."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        raise BadRowError(
            f"contains an incomplete character ({surrogate!r}). Save the file again as UTF-8."
        ) from error


def _loss_mask(row: RowText, encoded: EncodedText) -> Flags:
    """Mark the tokens that begin inside a learned span."""
    mask: Flags = np.full(len(encoded.ids), row.spans is None)
    for spans, learned in ((row.spans or (), True), (row.ignored_spans, False)):
        for start, end in spans:
            mask[np.searchsorted(encoded.starts, start) : np.searchsorted(encoded.starts, end)] = learned
    return mask


def _batches(rows: Iterator[RowText]) -> Iterator[list[RowText]]:
    """Group rows into batches, limited by the number of rows and of characters."""
    while batch := list(islice(_limit_chars(rows, BATCH_CHARS), BATCH_ROWS)):
        yield batch


def _limit_chars(rows: Iterator[RowText], max_chars: int) -> Iterator[RowText]:
    size = 0
    while size < max_chars and (row := next(rows, None)) is not None:
        size += len(row.text)
        yield row
