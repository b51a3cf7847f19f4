"""Slice raw text into training blocks: sections, sentences, blocks and overlap blocks, as places in the text.

    text  --hard cuts-->  sections  --one tokenization each-->  ids with their places
          --sentences or lines-->  units (one, or a piece of one too long)  -->  blocks  -->  overlap blocks

Everything is held in arrays over the whole text; a `Block` is made only when it is accessed. The tokenizer and the
finder of sentences or lines are callables, so this module depends on no tokenizer and no language.
docs/chunking.md has drawings of all of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

# NumPy arrays, named for what they hold.
Ints: TypeAlias = Any
Ids: TypeAlias = Any  # int32
Flags: TypeAlias = Any
TokenRanges = tuple[Ints, Ints, Ints]  # first token, one past the last, section

BlockKind = Literal["block", "overlap", "dementor"]
BLOCK_KINDS: tuple[BlockKind, ...] = ("block", "overlap", "dementor")
BlockEnds = Literal["auto", "sentences", "lines"]

# A long section goes to the tokenizer in pieces of about this size. Ids change if this does, where a tokenizer
# would merge characters across the bound: blocks of the same text would no longer be the same.
PIECE_CHARS = 65_536
BATCH_CHARS = 4 * PIECE_CHARS  # tokenized at a time: the tokenizer's own objects are large

NOT_SPACE = re.compile(r"\S")
CLAUSE_END = re.compile(r"[,;:—–،؛](?=\s)|[，；：、]")
WORD_END = re.compile(r"\S(?=\s)")
ZERO_WIDTH_JOINER = "\u200d"


class Text(Protocol):
    """A text of which stretches are read: a `str`, or one that stays on disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: slice, /) -> str: ...


class EncodedText(NamedTuple):
    """The ids of one text, each with the characters it stands for."""

    ids: Ids
    starts: Ints
    ends: Ints


class UnitBounds(NamedTuple):
    """Where the units of a text end, in order: its sentences, or in some sections its lines."""

    ends: Ints
    inner: Ints  # where sentences end within those lines: a line longer than a block is divided there
    by_lines: Flags  # of each section, whether its lines are its units


Encoder = Callable[[Sequence[str]], Sequence[EncodedText]]
BoundsFinder = Callable[[str, "Sections"], UnitBounds]  # implemented in data/text/


class Block(NamedTuple):
    """One training example by its place in the text; `tokens` counts BOS and EOS too."""

    start: int
    end: int
    tokens: int
    kind: BlockKind
    section: int
    ends_section: bool
    first: int


@dataclass(frozen=True)
class SlicingRules:
    """The rules for slicing a text; `hard_cut` is the literal string, with escapes resolved."""

    cutoff: int = 256
    chunking: Literal["blocks", "dementor"] = "blocks"
    overlap: bool = True
    dementor_repeats: int = 0
    hard_cut: str = "\n\n\n"
    min_chars: int = 0
    bos: int | None = None
    eos: int | None = None
    add_eos: Literal["hard_cut", "every_block", "never"] = "hard_cut"
    block_ends: BlockEnds = "auto"

    def __post_init__(self) -> None:
        if self.room - self.closing < 1:
            raise ValueError(f"A cutoff of {self.cutoff} tokens has room only for BOS and EOS, not for text.")

    @property
    def opening(self) -> int:
        """The number of ids before the text of every block."""
        return int(self.bos is not None)

    @property
    def room(self) -> int:
        """The number of ids of text that fit into a block."""
        eos_everywhere = self.eos is not None and self.add_eos == "every_block"
        return self.cutoff - self.opening - int(eos_everywhere)

    @property
    def closing(self) -> int:
        """The number of ids that the end of a section adds to its text."""
        return int(self.eos is not None and self.add_eos == "hard_cut")

    def closes(self, ends_section: bool) -> bool:
        """Whether a block gets EOS."""
        return self.eos is not None and (
            self.add_eos == "every_block" or (self.add_eos == "hard_cut" and ends_section)
        )


def unescape_hard_cut(hard_cut: str) -> str:
    r"""The hard-cut string as typed, with the two-character escapes \n and \t resolved."""
    return hard_cut.replace("\\n", "\n").replace("\\t", "\t")


def escape_hard_cut(hard_cut: str) -> str:
    """A hard-cut string as one types it, in one line."""
    return hard_cut.replace("\n", "\\n").replace("\t", "\\t")


def slice_blocks(text: str, encoder: Encoder, rules: SlicingRules, find: BoundsFinder) -> SlicedText:
    """Blocks of whole sentences or lines and, if the rules ask for it, overlap blocks between neighbors."""
    units = build_units(text, encoder, rules, find)
    blocks = build_blocks(units)
    spans, left_out = blocks.split_short(units)
    if rules.overlap:
        overlaps, _ = _find_overlaps(units, spans).split_short(units)
        spans = spans.merge(overlaps)
    return SlicedText(units, spans, left_out)


class SlicedText:
    """The blocks of one text in order, their ids, and the figures of the slicing."""

    def __init__(self, units: Units, spans: Spans, dropped: Spans) -> None:
        """`dropped` are the blocks that `min_chars` leaves out."""
        self.units, self.spans, self.dropped = units, spans, dropped
        self.text, self.rules, self.sections = units.text, units.rules, units.sections
        self.left_out = len(dropped)
        first, last = spans.first, spans.last - 1
        self.starts: Ints = units.start[first]
        self.ends: Ints = units.end[last]
        # The number of ids of each block, with BOS, and with EOS where a section ends or every block has one.
        ends_section = units.ends_section[last]
        self.lengths: Ints = units.last[last] - units.first[first] + self.rules.cutoff - self.rules.room
        self.lengths += self.rules.closing * ends_section.astype(np.int64)
        places = self.starts, self.ends, self.lengths
        # The fields of `Block`, one column each.
        self._columns = *places, spans.kind, units.section[first], ends_section, units.first[first]

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Block]:
        for offset in range(0, len(self), 4096):  # a million blocks must not be objects at the same time
            rows = zip(*(column[offset : offset + 4096].tolist() for column in self._columns), strict=True)
            for start, end, tokens, kind, *others in rows:
                yield Block(start, end, tokens, BLOCK_KINDS[kind], *others)

    def __getitem__(self, number: int) -> Block:
        start, end, tokens, kind, *others = (column[number].item() for column in self._columns)
        return Block(start, end, tokens, BLOCK_KINDS[kind], *others)

    def ids_of(self, block: Block) -> Ids:
        """The ids of a block as they are trained on: its slice of the text's ids, with BOS and EOS."""
        rules, has_eos = self.rules, self.rules.closes(block.ends_section)
        text_tokens = block.tokens - rules.opening - has_eos
        text_ids = self.units.ids[block.first : block.first + text_tokens]
        bos, eos = np.array([rules.bos][: rules.opening], np.int32), np.array([rules.eos][:has_eos], np.int32)
        return np.concatenate([bos, text_ids, eos])

    def text_of(self, block: Block) -> str:
        return self.text[block.start : block.end]

    @cached_property
    def left_out_characters(self) -> int:
        """Characters, without spaces, that are in no block because of `min_chars`."""
        return self._count_characters(self._gaps(self.spans)) - self.lost

    @cached_property
    def lost(self) -> int:
        """Characters, without spaces, that are in no block, in no hard cut, and not dropped by `min_chars`."""
        return self._count_characters(self.lost_places())

    def lost_places(self) -> Iterator[tuple[int, int]]:
        return self._gaps(self.spans.merge(self.dropped))

    def _count_characters(self, places: Iterator[tuple[int, int]]) -> int:
        return sum(len("".join(self.text[start:end].split())) for start, end in places)

    def _gaps(self, spans: Spans) -> Iterator[tuple[int, int]]:
        """The stretches of section contents that none of these spans covers."""
        starts, ends = self.units.start[spans.first], self.units.end[spans.last - 1]
        # Spans overlap, so a gap begins behind the furthest end so far, not behind the end of the last one.
        low = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(ends)])
        high = np.append(starts, len(self.text))
        low, high = low[low < high], high[low < high]
        sections = self.sections
        first: Ints = np.searchsorted(sections.content_end, low, side="right")
        last: Ints = np.searchsorted(sections.content_start, high)
        for gap in np.flatnonzero(first < last).tolist():  # most gaps hold only spaces
            for section in range(int(first[gap]), int(last[gap])):
                start = max(int(low[gap]), int(sections.content_start[section]))
                yield start, min(int(high[gap]), int(sections.content_end[section]))


@dataclass(frozen=True, eq=False)
class Spans:
    """Blocks as runs of units, from `first` up to but not including `last`."""

    first: Ints
    last: Ints
    kind: Ints  # index into KINDS

    def __len__(self) -> int:
        return len(self.first)

    @staticmethod
    def of(first: Ints, last: Ints, kind: BlockKind) -> Spans:
        return Spans(first, last, np.full(len(first), BLOCK_KINDS.index(kind), np.int8))

    def select(self, which: Flags) -> Spans:
        return Spans(self.first[which], self.last[which], self.kind[which])

    def split_short(self, units: Units) -> tuple[Spans, Spans]:
        """The blocks to train on, and those that `min_chars` leaves out."""
        is_long = units.end[self.last - 1] - units.start[self.first] > units.rules.min_chars
        return self.select(is_long), self.select(~is_long)

    def merge(self, other: Spans) -> Spans:
        """Both in the order of the text."""
        first = np.concatenate([self.first, other.first])
        order = np.argsort(first, kind="stable")
        last, kind = np.concatenate([self.last, other.last]), np.concatenate([self.kind, other.kind])
        return Spans(first[order], last[order], kind[order])


def build_blocks(units: Units) -> Spans:
    """Each block takes as many units as fit, and the next begins where it ends."""
    reach, starts, unit = units.reach.tolist(), [], 0
    while unit < len(reach):
        starts.append(unit)
        unit = reach[unit]
    first = np.array(starts, np.int64)
    return Spans.of(first, units.reach[first], "block")


def _find_overlaps(units: Units, blocks: Spans) -> Spans:
    """Overlap blocks from the sentence nearest the middle of a block, where whole sentences reach beyond it."""
    adjacent = (blocks.last[:-1] == blocks.first[1:]) & ~units.breaks[blocks.first[1:]]
    left, right = blocks.first[:-1][adjacent], blocks.last[:-1][adjacent]
    sentence_starts = np.flatnonzero(units.opens)
    if not len(left) or not len(sentence_starts):
        return Spans.of(left[:0], right[:0], "overlap")
    middles = (units.low[left] + units.high[right - 1]) // 2
    starts = units.low[sentence_starts]
    after = np.searchsorted(starts, middles).clip(1, max(len(starts) - 1, 1))
    after = np.minimum(after, len(starts) - 1)  # with a single start, `clip` has given 1
    before = np.maximum(after - 1, 0)
    is_before = middles - starts[before] <= starts[after] - middles
    first = sentence_starts[np.where(is_before, before, after)]
    # The pieces of a sentence that is too long do not end it: back to the last unit that closes one.
    last_whole = np.maximum.accumulate(np.where(units.closes, np.arange(1, len(units) + 1), 0))
    last = last_whole[units.reach[first] - 1]
    return Spans.of(first, last, "overlap").select((first > left) & (first < right) & (last > right))


@dataclass(frozen=True, eq=False)
class Units:
    """The units of blocks: sentences or lines, and the pieces of those that are longer than a block."""

    text: Text
    rules: SlicingRules
    sections: Sections
    ids: Ids  # of the whole text
    first: Ints  # the first of its ids
    last: Ints  # one past its last id
    section: Ints
    start: Ints
    end: Ints
    opens: Flags  # begins where a sentence begins
    closes: Flags  # ends where a sentence ends
    ends_section: Flags

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def breaks(self) -> Flags:
        """Where no block may continue from the unit before: a section begins, or ids were dropped."""
        changes = (self.section[1:] != self.section[:-1]) | (self.first[1:] != self.last[:-1])
        return np.append(True, changes)[: len(self)]

    @cached_property
    def low(self) -> Ints:
        """Where each unit begins, with every EOS at a section's end counted as an id of the text."""
        # Sections are numbered from 0, so the number of a section is that of the EOS before it.
        return self.first + self.section * self.rules.closing

    @cached_property
    def high(self) -> Ints:
        return self.last + (self.section + self.ends_section) * self.rules.closing

    @cached_property
    def reach(self) -> Ints:
        """For a block that begins at a unit, one past the last unit that fits."""
        unit = np.arange(len(self))
        # On this scale, what fits is a difference of two places: a binary search replaces the loop over units.
        first_beyond = np.searchsorted(self.high, self.low + self.rules.room, side="right")
        breaks = np.append(np.flatnonzero(self.breaks), len(self))
        next_break = breaks[np.searchsorted(breaks, unit, side="right")]
        return np.minimum(np.maximum(first_beyond, unit + 1), next_break)  # at least the unit itself


def build_units(text: str, encoder: Encoder, rules: SlicingRules, find: BoundsFinder) -> Units:
    """Find sections and sentences, tokenize, and move every bound to the corresponding token bound."""
    sections = find_sections(text, rules.hard_cut)
    with ThreadPoolExecutor(1) as executor:  # the tokenizer releases the GIL
        pending_bounds = executor.submit(find, text, sections)
        tokens = _tokenize(text, sections, encoder)
    bounds = pending_bounds.result()
    sentences = _sentence_tokens(bounds.ends, sections, tokens)
    sentences = _refine_long_lines(sentences, bounds, tokens, rules, sections)
    (first, last, section), opens, closes = _divide_long(text, tokens, rules, sentences)
    # A unit begins where the one before it ends, so that no character is between two units.
    previous_end = tokens.ends[np.maximum(first, 1) - 1]
    start = np.where(first == tokens.first[section], sections.start[section], previous_end)
    end = tokens.ends[last - 1].astype(np.int64)
    ends_section = np.isin(last, sentences[1][_is_last_of_section(sentences[2])])
    sections = replace(sections, by_lines=bounds.by_lines)
    return Units(text, rules, sections, tokens.ids, first, last, section, start, end, opens, closes, ends_section)


def _is_last_of_section(section: Ints) -> Flags:
    """Which rows are the last of their section."""
    return np.append(section[1:] != section[:-1], True)[: len(section)]


@dataclass(frozen=True, eq=False)
class Sections:
    """The parts of a text between hard cuts that hold more than spaces."""

    start: Ints
    end: Ints
    content_start: Ints  # without leading blank lines
    content_end: Ints  # without trailing spaces and blank lines
    cuts: Ints  # where each hard-cut string begins
    by_lines: Flags  # whether its units are lines, not sentences

    def __len__(self) -> int:
        return len(self.start)


def find_sections(text: str, hard_cut: str) -> Sections:
    """The parts of a text between its hard cuts."""
    cuts = [match.start() for match in re.finditer(re.escape(hard_cut), text)] if hard_cut else []
    rows = []
    for start, end in zip([0, *(cut + len(hard_cut) for cut in cuts)], [*cuts, len(text)], strict=True):
        content = NOT_SPACE.search(text, start, end)
        if not content:  # only spaces: no section
            continue
        content_start = max(start, text.rfind("\n", start, content.start()) + 1)
        content_end = end
        while text[content_end - 1].isspace():
            content_end -= 1
        rows.append((start, end, content_start, content_end))
    starts, ends, content_starts, content_ends = np.array(rows, np.int64).reshape(-1, 4).T
    unknown: Flags = np.zeros(len(rows), bool)
    return Sections(starts, ends, content_starts, content_ends, np.array(cuts, np.int64), unknown)


@dataclass(frozen=True, eq=False)
class Tokens:
    """The ids of a text, its sections one after another."""

    ids: Ids
    ends: Ints  # where each token's characters end
    whole: Flags  # before each token and at the end, whether this is a bound between two characters
    first: Ints  # the first token of each section, then the number of all tokens

    def bound(self, places: Ints) -> Ints:
        """For each place, the first token bound at or after it that is also a bound between characters."""
        same_type = np.asarray(places).astype(self.ends.dtype)  # otherwise all ends are converted at each call
        bounds = np.minimum(np.searchsorted(self.ends, same_type) + 1, len(self.ids))
        # Within a character of several ids, such as an emoji of four byte tokens, go on to its end.
        while not self.whole[bounds].all():
            bounds += ~self.whole[bounds]
        return bounds


def _tokenize(text: str, sections: Sections, encoder: Encoder) -> Tokens:
    """Tokenize each section as a text of its own."""
    batches, batch, size = [], list[tuple[int, int, int]](), 0
    for section, (start, end) in enumerate(zip(sections.start.tolist(), sections.end.tolist(), strict=True)):
        for low, high in split_section(text, start, end):
            batch.append((low, high, section))
            size += high - low
            if size >= BATCH_CHARS:
                batches.append(_encode_batch(text, batch, encoder))
                batch, size = [], 0
    if batch:
        batches.append(_encode_batch(text, batch, encoder))
    if not batches:
        return Tokens(np.zeros(0, np.int32), np.zeros(0, np.int64), np.ones(1, bool), np.zeros(1, np.int64))
    ids, ends, is_bound = (np.concatenate([batch[column] for batch in batches]) for column in range(3))
    first: Ints = np.zeros(len(sections) + 1, np.int64)
    for _, _, _, section, counts in batches:
        np.add.at(first, section + 1, counts)
    first = np.cumsum(first)
    filled = np.flatnonzero(first[1:] > first[:-1])
    # Characters that a tokenizer drops belong to the token before them.
    ends[first[filled + 1] - 1] = sections.end[filled]
    return Tokens(ids, ends, np.append(is_bound, True), first)


def split_section(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A section in pieces that end at a line end, else before a space, else between two characters."""
    while end - start > PIECE_CHARS:
        limit = start + PIECE_CHARS
        cut = text.rfind("\n", start, limit) + 1 or text.rfind(" ", start + 1, limit)
        if cut <= start:
            cut = limit
            while _is_joined(text, cut) and cut > start + PIECE_CHARS // 2:
                cut -= 1
        yield start, cut
        start = cut
    yield start, end


def _encode_batch(
    text: str, batch: Sequence[tuple[int, int, int]], encoder: Encoder
) -> tuple[Ids, Ints, Flags, Ints, Ints]:
    """The ids of a batch, where each ends in the whole text, whether it begins a character, and their count."""
    pieces = encoder([text[start:end] for start, end, _ in batch])
    counts = np.array([len(piece.ids) for piece in pieces], np.int64)
    shift: Ints = np.repeat(np.array([start for start, _, _ in batch], np.int64), counts)
    starts = np.concatenate([np.asarray(piece.starts, np.int64) for piece in pieces]) + shift
    ends = np.concatenate([np.asarray(piece.ends, np.int64) for piece in pieces]) + shift
    ends = np.maximum.accumulate(ends)  # places are found by binary search, so no end may go back
    # A token that begins before the end of the one before it is a part of the same character.
    is_bound = np.append(True, starts[1:] >= ends[:-1])[: len(ends)]
    ids = np.concatenate([np.asarray(piece.ids, np.int32) for piece in pieces])
    place_type = np.int32 if len(text) < 2**31 else np.int64  # four bytes less for each token of the text
    return ids, ends.astype(place_type), is_bound, np.array([section for _, _, section in batch], np.int64), counts


def _sentence_tokens(ends: Ints, sections: Sections, tokens: Tokens) -> tuple[Ints, Ints, Ints]:
    """Each sentence by its first token, one past its last, and its section."""
    inner = places_inside(ends, sections)
    # A section opens at the token with its first character, or earlier, where that character is in the middle of
    # a token; it closes at the token after its last one, at the latest at the end of its tokens.
    opening = np.searchsorted(tokens.ends, sections.content_start, side="right")
    while not tokens.whole[opening].all():
        opening -= ~tokens.whole[opening]
    opening = np.where(sections.content_start == sections.start, tokens.first[:-1], opening)
    closing = np.minimum(tokens.bound(sections.content_end), tokens.first[1:])
    bounds = np.unique(np.concatenate([opening, tokens.bound(inner), closing]))
    first, last = bounds[:-1], bounds[1:]
    section: Ints = np.searchsorted(opening, first, side="right") - 1
    # Between the closing of a section and the opening of the next one there are only blank lines.
    is_inside = last <= closing[section]
    return first[is_inside], last[is_inside], section[is_inside]


def _refine_long_lines(
    lines: TokenRanges, bounds: UnitBounds, tokens: Tokens, rules: SlicingRules, sections: Sections
) -> TokenRanges:
    """The same rows, with lines that are longer than a block replaced by their sentences."""
    is_long = lines[1] + rules.closing * _is_last_of_section(lines[2]) - lines[0] > rules.room
    if not len(bounds.inner) or not is_long.any():
        return lines
    rows = _sentence_tokens(np.union1d(bounds.ends, bounds.inner), sections, tokens)
    in_long_line = is_long[np.searchsorted(lines[0], rows[0], side="right") - 1]
    first, last, section = (
        np.concatenate([row[~is_long], finer[in_long_line]]) for row, finer in zip(lines, rows, strict=True)
    )
    order = np.argsort(first, kind="stable")
    return first[order], last[order], section[order]


def places_inside(places: Ints, sections: Sections) -> Ints:
    """The places strictly inside the contents of a section."""
    if not len(sections):
        return places[:0]
    section = np.searchsorted(sections.content_start, places, side="right") - 1
    is_inside = (places > sections.content_start[section]) & (places < sections.content_end[section])
    return places[(section >= 0) & is_inside]


def _divide_long(
    text: str, tokens: Tokens, rules: SlicingRules, sentences: TokenRanges
) -> tuple[TokenRanges, Flags, Flags]:
    """Sentences with those too long for a block in pieces, and which pieces open and close a sentence."""
    first, last, section = sentences
    closing = rules.closing * _is_last_of_section(section)  # EOS must fit behind the last piece, too
    is_long = last + closing - first > rules.room
    if not is_long.any():
        return sentences, np.ones(len(first), bool), np.ones(len(first), bool)
    pieces = []
    for number in np.flatnonzero(is_long).tolist():
        start, end = int(first[number]), int(last[number])
        low = start
        while low < end:
            is_rest = end + closing[number] - low <= rules.room
            limit = min(low + rules.room, end - 1)
            high = end if is_rest else _last_division(text, tokens, low, limit)
            if is_rest or high <= limit:  # else it is a single character that no block can hold: counted as lost
                pieces.append((low, high, section[number], low == start, high == end))
            low = high
    short = np.column_stack([first, last, section, np.ones((len(first), 2), np.int64)])[~is_long]
    rows = np.concatenate([short, np.array(pieces, np.int64).reshape(-1, 5)])
    rows = rows[np.argsort(rows[:, 0], kind="stable")].T
    return (rows[0], rows[1], rows[2]), rows[3].astype(bool), rows[4].astype(bool)


def _last_division(text: str, tokens: Tokens, first: int, limit: int) -> int:
    """The last token bound up to a limit at the end of a clause, else of a word, else between two characters."""
    # Only the second half of the room is searched for clauses and words: shorter pieces would waste the block.
    low, high = int(tokens.ends[max(first, (first + limit) // 2 - 1)]), int(tokens.ends[limit - 1])
    for pattern in (CLAUSE_END, WORD_END):
        places = np.array([match.end() for match in pattern.finditer(text, low, high + 1)], np.int64)
        bounds = tokens.bound(places)
        bounds = bounds[bounds <= limit]
        if len(bounds):
            return int(bounds[-1])
    char_bounds = first + 1 + np.flatnonzero(tokens.whole[first + 1 : limit + 1])
    if not len(char_bounds):
        return first + 1 + int(np.argmax(tokens.whole[first + 1 :]))
    # Not within a sign of several characters, but a run of joined ones may fill the block: look back eight bounds.
    separable = [bound for bound in char_bounds[-8:].tolist() if not _is_joined(text, int(tokens.ends[bound - 1]))]
    return separable[-1] if separable else int(char_bounds[-1])


def _is_joined(text: str, place: int) -> bool:
    """Whether the characters around a place form one sign: an accent, a joined emoji, a vowel sign."""
    after = text[place : place + 1]
    return unicodedata.category(after or "x").startswith("M") or ZERO_WIDTH_JOINER in text[place - 1 : place + 1]
