"""Tokenization of rows with their loss mask.

What is learned is given as spans of the text. A token is learned if it begins inside a span; a token that begins
before it is not, even where the tokenizer merged characters across the border.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...chunking import EncodedText, Encoder, Flags, Ids
from ...core.host import Folders, ModelCard
from ...settings.definitions import TrainingSettings
from ..arrow_store import Store
from ..examples import RowSource, join_rows, reorder_rows
from ..readers import Row, Table, json_rows, normalize_line_ends, shorten
from .chat_templates import ChatRenderer, ChatTemplate, Turn
from .conversations import Conversations
from .preferences import compare, hash_preference, only_last_reply
from .row_schema import BadRowError, Chat, FixedText, RowSchema
from .text_quality import TextInspector

# The tokenizer encodes a batch on all cores; the limits keep the texts of one batch small beside the ids.
BATCH_ROWS = 1000
BATCH_CHARS = 2_000_000
# A longer row is a whole book: a text, which would be sliced instead of truncated.
MAX_ROW_CHARS = 5_000_000
MAX_REASON = 300  # characters of why a row can't be read


class Tokenizer(Protocol):
    """What preparing data needs of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...
    @property
    def encode_marked(self) -> Encoder: ...  # special tokens in the text become single ids
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def specials(self) -> Collection[str]: ...
    @property
    def stops(self) -> Collection[int]: ...  # the ids of special tokens; each may end a reply
    @property
    def chat_template(self) -> ChatTemplate: ...
    @property
    def fingerprint(self) -> str: ...  # of the ids and the template; empty for none: then nothing is cached
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class PrepareContext:
    """The settings, model card, tokenizer and folders that every step of preparing needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: Callable[[str, float | None], None]
    store: Store = field(default_factory=Store)
    check_stop: Callable[[], None] = lambda: None  # raises once the user stopped the work


class RowText(NamedTuple):
    """A row as text, with the spans that are learned."""

    number: int
    text: str
    spans: tuple[tuple[int, int], ...] | None  # that are learned; None: everything
    ignored_spans: tuple[tuple[int, int], ...]  # that are never learned
    needs_bos_eos: bool  # the template did not write them
    # Where the prompt's own words end, and where the reply begins and ends, if they are limited. What is between
    # the two is of the format, and stays.
    parts: tuple[int, int, int] | None = None
    divisions: tuple[int, ...] = ()  # of a chat: see ChatRenderer
    follows: bool = True  # no row was dropped between this one and the one before it
    contrast: RowText | None = None  # with the rejected reply
    desirable: bool | None = None
    pair_id: int = 0  # of a preference


@dataclass
class RowReport:
    """How many rows were read, dropped or truncated."""

    rows: int = 0
    unreadable: int = 0
    without_marker: int = 0
    without_reply: int = 0
    different_prompts: int = 0
    equal_replies: int = 0
    undesirable: int = 0
    too_long: int = 0
    too_long_how: str = ""
    long_prompts: int = 0
    long_replies: int = 0
    nothing_learned: int = 0
    private: bool = False  # chats, of which no copy is kept or uploaded
    has_exchanges: bool = False  # which 'Split chats into exchanges' would split

    def exclusion_counts(self) -> list[tuple[int, str]]:
        """The number of rows that are dropped or truncated, for each reason."""
        return [
            (self.unreadable, "can't be read"),
            (self.without_marker, "without the text in 'Train only after'"),
            (self.without_reply, "without a reply to train on"),
            (self.different_prompts, "whose two replies have different prompts"),
            (self.equal_replies, "whose two replies are equal"),
            (self.undesirable, "labeled as undesirable"),
            (self.long_prompts, "with the end of the prompt truncated"),
            (self.long_replies, "with the end of the reply truncated"),
            (self.too_long, f"too long ({self.too_long_how})"),
            (self.nothing_learned, "without any token to train on"),
        ]


@dataclass
class RowEncoder:
    """Encodes the rows of one file with schema, template and tokenizer, and counts what it can't use."""

    context: PrepareContext
    table: Table
    schema: RowSchema
    inspector: TextInspector
    conversations: Conversations | None  # of rows that name theirs
    report: RowReport = field(default_factory=RowReport)
    bad: list[tuple[int, str]] = field(default_factory=list)  # rows that can't be read, and why
    left_out: Counter[str] = field(default_factory=Counter)  # messages of chat exports, by reason
    without_parts: int = 0  # rows with no reply or several, whose parts are not limited

    def __post_init__(self) -> None:
        self.settings, self.tokenizer, self.unit = self.context.settings, self.context.tokenizer, self.table.unit
        rows, self.report.private = self.settings.rows, self.table.private
        self._compares = self.settings.preferences.compares
        self.renderer = ChatRenderer(self.tokenizer.chat_template, self.tokenizer.specials)
        is_chat = self.schema.kind == "chat" and not self._compares
        self._splits_chats, self._divides = is_chat and rows.split_exchanges, is_chat and rows.too_long == "split"
        # Of a preference, only the replies are learned.
        marker, train_on = ("", "replies") if self._compares else (rows.train_only_after, rows.train_on)
        self._marker, self._train_on = marker, train_on
        self._learns_everything = train_on == "everything" or (train_on == "auto" and not self.schema.has_replies)
        self._limits = (rows.source_max_len, rows.target_max_len)  # tokens of prompt and reply; 0: no limit

    def encoded(self) -> RowSource:
        """Encode all rows that can be learned; the others are counted."""
        # Row by row and batch by batch, so that the texts are never all in memory.
        batches, row_texts = list[RowSource](), self._row_texts()
        for first in row_texts:
            batch, characters = [first], len(first.text)
            while len(batch) < BATCH_ROWS and characters < BATCH_CHARS and (row := next(row_texts, None)):
                batch.append(row)
                characters += len(row.text)
            batches.append(self._encode_batch(batch))
            self.context.say(f"Reading {self.table.name}: {self.report.rows:,} rows", 0.0)
        source = join_rows(batches or [self._encode_batch([])])
        if self.conversations is None:
            return source
        arranged = reorder_rows(source, *self.conversations.arrange(source.follows))
        return replace(arranged, has_conversations=True)

    def _encode_batch(self, rows: Sequence[RowText]) -> RowSource:
        """Encode some rows into one array: one for each row would take more memory than the ids in it."""
        encodings = self.tokenizer.encode_marked([row.text for row in rows]) if rows else ()
        encoded = [self._encode(*pair) for pair in zip(rows, encodings, strict=True)]
        nothing: tuple[Ids, Flags, Flags] = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, bool)
        ids, flags, begins = (np.concatenate(arrays) for arrays in zip(nothing, *encoded, strict=True))
        rejected = [row.contrast._replace(pair_id=row.pair_id) for row in rows if row.contrast]
        labels = [row.desirable for row in rows if row.desirable is not None]
        return RowSource(
            self.table.name,
            ids,
            flags,
            first=np.cumsum([0, *(len(row_ids) for row_ids, _, _ in encoded)], dtype=np.int64),
            rows=np.array([row.number for row in rows], np.int64),
            follows=np.array([row.follows for row in rows], bool),
            unit=self.unit,
            decode=self.tokenizer.decode,
            all_begins=begins if self._divides else begins[:0],
            contrast=self._encode_batch(rejected) if rejected else None,
            desirable=np.array(labels, bool) if labels else None,
            pair_ids=np.array([row.pair_id for row in rows], np.int64) if self._compares else None,
        )

    def _row_texts(self) -> Iterator[RowText]:
        """Yield the texts of all rows that can be learned, and inspect their words."""
        previous = 0  # the last row of which the last text is kept
        for row in self.table.rows():
            self.report.rows += 1
            self.left_out.update(row.left_out)
            self.report.private |= row.columns.get(json_rows.PRIVATE_COLUMN) is True
            row_texts: list[RowText | None] = []  # of this row; None for each without a marker or a reply
            self.report.without_reply += row.without_reply
            try:
                if row.problem and not row.without_reply:
                    raise BadRowError(row.problem)
                if not row.without_reply:
                    content = self.schema.read(_normalize_line_ends(row.columns))
                    contents: Sequence[Chat | FixedText] = [content]
                    if self._splits_chats and isinstance(content, Chat):
                        contents = content.exchanges()
                    if self._compares or row.desirable is False:
                        row_texts = [self._to_preference(row, content)]
                    else:
                        row_texts = [self._to_text(row.number, each) for each in contents]
            except (BadRowError, RecursionError) as error:
                reason = "is nested too deeply." if isinstance(error, RecursionError) else str(error)
                self.report.unreadable += 1
                self.bad.append((row.number, shorten(reason, MAX_REASON)))
            used = [row_text for row_text in row_texts if row_text]
            if used:
                # The row's own words are inspected, without those that a template adds.
                columns = (*row.columns.values(), *(row.rejected or {}).values())
                own_text = learned_text = "\n".join(_all_texts(columns))
                if all(each.spans is not None for each in used):
                    spans = ((each.text, *span) for each in used for span in each.spans or ())
                    learned_text = "\n".join(text[start:end] for text, start, end in spans)
                worse = (value for key, value in (row.rejected or {}).items() if value != row.columns.get(key))
                rejected = "\n".join(_all_texts(worse))
                self.inspector.look(own_text, learned_text, f"{self.unit} {row.number}", rejected)
            if self.conversations:
                self.conversations.add(row, row_texts)
            follows = self.report.rows == previous + 1 and not self._splits_chats
            for row_text in row_texts:
                if row_text is not None:
                    yield row_text._replace(follows=follows)
                follows = row_text is not None
            if row_texts and row_texts[-1] is not None:
                previous = self.report.rows

    def _to_preference(self, row: Row, content: Chat | FixedText) -> RowText | None:
        """Write both sides of a pair, or a labeled reply; None for a pair without a difference."""
        pair_id = hash_preference(row)
        if row.rejected is None:
            if not self._compares:  # nothing is learned from a bad reply by predicting its tokens
                self.report.undesirable += 1
                return None
            text = self._to_text(row.number, only_last_reply(content))
            return text and text._replace(desirable=row.desirable, pair_id=pair_id)
        try:
            rejected = self.schema.read(_normalize_line_ends(row.rejected))
        except BadRowError as error:  # it stands in the column of the chosen one
            reason = str(error).replace(f"'{json_rows.CHOSEN}'", f"'{json_rows.REJECTED}'")
            raise BadRowError(reason) from error
        pair = compare(content, rejected)
        if isinstance(pair, str):
            setattr(self.report, pair, getattr(self.report, pair) + 1)
            return None
        chosen_text, rejected_text = (self._to_text(row.number, side) for side in pair)
        return chosen_text and rejected_text and chosen_text._replace(contrast=rejected_text, pair_id=pair_id)

    def _to_text(self, number: int, content: Chat | FixedText) -> RowText | None:
        """Write a chat or text with its learned spans; None where it has no marker or no reply."""
        marker, train_on, divisions = self._marker, self._train_on, tuple[int, ...]()
        if isinstance(content, Chat):
            # Only where they are used: for some templates, finding the places takes renderings per message.
            decides = any(message.learned is not None for message in content.messages)
            places = not marker and (decides or not self._learns_everything or any(self._limits))
            self.report.has_exchanges |= bool(content.later_questions) and not self._compares
            text, turns = self.renderer(content, places=places)
            if self._divides:
                with suppress(BadRowError):  # a template whose messages can't be told apart
                    found = turns if places else self.renderer(content)[1]
                    divisions = self.renderer.divisions(content, text, found)
            needs_bos_eos = not self.tokenizer.chat_template.own
            if needs_bos_eos:
                text = text.rstrip()
        else:
            text, needs_bos_eos = content.text, True
            turns = () if content.reply is None else (Turn(content.reply, len(text), True, None),)
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
        if marker:
            prompt_end = text.find(marker)
            if prompt_end < 0:
                self.report.without_marker += 1
                return None
            reply = prompt_end + len(marker)
            parts = (prompt_end, reply, len(text))
            return RowText(number, text, ((reply, len(text)),), (), needs_bos_eos, parts, divisions)
        ignored = tuple((turn.start, turn.end) for turn in turns if turn.learned is False)
        limited = _find_parts(content, text, turns) if any(self._limits) else None
        if self._learns_everything:
            return RowText(number, text, None, ignored, needs_bos_eos, limited, divisions)
        learned = [turn for turn in turns if turn.learned or (turn.reply and turn.learned is None)]
        if train_on == "last_reply":
            replies = [turn for turn in turns if turn.reply]
            learned = [turn for turn in learned if turn is replies[-1]] if replies else []
        if not learned:
            self.report.without_reply += 1
            return None
        spans = tuple((turn.start, turn.end) for turn in learned)
        return RowText(number, text, spans, ignored, needs_bos_eos, limited, divisions)

    def _encode(self, row: RowText, encoded: EncodedText) -> tuple[Ids, Flags, Flags]:
        """The ids of a row, their loss mask and its divisions, with BOS and EOS exactly once where they belong."""
        bos, eos, ids = self.tokenizer.bos, self.tokenizer.eos, encoded.ids
        mask: Flags = np.full(len(ids), row.spans is None)
        # The starts are in order. What the row says not to learn comes last, because it decides.
        for spans, learned in ((row.spans or (), True), (row.ignored_spans, False)):
            for start, end in spans:
                mask[np.searchsorted(encoded.starts, start) : np.searchsorted(encoded.starts, end)] = learned
        # A template may write a BOS or an EOS that the row has already.
        shift = 0  # by how much BOS moves the tokens
        while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            ids, mask, shift = ids[1:], mask[1:], shift - 1
        while eos is not None and len(ids) > 1 and ids[-1] == ids[-2] == eos:
            ids, mask = ids[:-1], mask[:-1]
        text = self.settings.text
        adds_bos = row.needs_bos_eos and text.add_bos and bos is not None and ids[:1].tolist() != [bos]
        adds_eos = row.needs_bos_eos and text.add_eos != "never" and eos is not None and ids[-1:].tolist() != [eos]
        if adds_bos:
            ids = np.concatenate([np.array([bos], np.int32), ids])
            mask = np.concatenate([np.zeros(1, bool), mask])
            shift += 1
        if adds_eos:
            # Learned where what it ends is learned.
            last = len(row.text.rstrip())
            learns_eos = row.spans is None or row.spans[-1][1] >= last
            learns_eos = learns_eos and not any(stop >= last for _, stop in row.ignored_spans)
            ids = np.concatenate([ids, np.array([eos], np.int32)])
            mask = np.concatenate([mask, np.full(1, learns_eos)])
        begins: Flags = np.zeros(len(ids), bool)
        for place in row.divisions:  # a token that has the space before it, too, is the first one of its message
            begins[max(int(np.searchsorted(encoded.starts, place, "right")) - 1, 0) + shift] = True
        if not any(self._limits):
            return ids, mask, begins
        if row.parts is None:
            self.without_parts += 1
            return ids, mask, begins
        # What the limits of prompt and reply leave.
        prompt_end, reply, reply_end = (int(np.searchsorted(encoded.starts, at)) + shift for at in row.parts)
        if row.needs_bos_eos:
            reply_end = len(ids)  # with its EOS
        longest_prompt, longest_reply = self._limits
        keep: Flags = np.ones(len(ids), bool)
        if 0 < longest_prompt < reply:
            self.report.long_prompts += 1
            # The end of its words goes; a BOS and what the format writes between the two stay.
            first = int(ids[0] == bos)
            keep[max(first, longest_prompt - (reply - prompt_end)) : prompt_end] = False
        if 0 < longest_reply < reply_end - reply:
            self.report.long_replies += 1
            keep[reply + longest_reply :] = False
        return ids[keep], mask[keep], begins[keep]


def _find_parts(content: Chat | FixedText, text: str, turns: Sequence[Turn]) -> tuple[int, int, int] | None:
    """Find prompt and reply of a row in its text; None where it has no reply, or several."""
    replies = [turn for turn in turns if turn.reply]
    if len(replies) != 1:
        return None
    reply, reply_end = replies[0].start, replies[0].end
    if isinstance(content, FixedText):
        return reply if content.prompt_end is None else content.prompt_end, reply, reply_end
    before = list(takewhile(lambda message: message.role != "assistant", content.messages))
    words = before[-1].content.strip() if before else ""
    start = text.rfind(words, 0, reply) if words else -1
    return reply if start < 0 else start + len(words), reply, reply_end


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
