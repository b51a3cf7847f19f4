"""Training examples: token ids, the loss mask, and the place in the data that each example is from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..chunking import Flags, Ids, Ints, SlicedText, Text
from ..settings.definitions import TrainingSettings
from .dataset_index import parse_share
from .readers import LoadedText

# The label of a token that is read and not learned; what PyTorch's cross entropy ignores by default.
IGNORE_INDEX = -100
PROMPT_TOKENS, TARGET_TOKENS = 32, 32
MIN_TOKENS = 8  # of a prompt and of what follows it
MIN_PASSAGE_TOKENS = 2 * MIN_TOKENS
GOLDEN_RATIO = 0.618034  # multiples of it, without their whole part, are spread evenly
HEADING_CHARS = 60
ROW_ARRAYS = ("all_ids", "all_trained", "all_begins", "first", "rows", "follows", "desirable", "pair_ids")
KIND_WORDS = {"block": "block", "overlap": "overlap block", "dementor": "DEMENTOR window"}


@dataclass(frozen=True)
class TextSource:
    """The blocks of one text; every token is learned.

    `open_end`: the text goes on in the other part of the split, so its last section gets no EOS here.
    `part`: which part of a large file this is. `start`: where it begins in its file.
    """

    name: str
    sliced: SlicedText
    open_end: bool = False
    part: int = 0
    start: int = 0

    def __len__(self) -> int:
        return len(self.sliced)

    @cached_property
    def lengths(self) -> Ints:
        lengths: Ints = self.sliced.lengths
        units = self.sliced.units
        if self.open_end and self.sliced.rules.closing and len(units) and units.ends_section[-1]:
            # Slicing closes every text with an EOS, which this one does not have here. Blocks that end where it
            # ends are one id shorter; where the last block was dropped, there is none of them.
            lengths = lengths - (self.sliced.ends == units.end[-1])
        return lengths

    @property
    def learned(self) -> Ints:
        """The number of learned ids of each example; the first id is never learned."""
        return self.lengths - 1

    @property
    def sections(self) -> Ints:
        """The section of each example."""
        return self.sliced.units.section[self.sliced.spans.first]

    @property
    def successors(self) -> Ints:
        """For each example the number of the one that begins where it ends; -1 where there is none."""
        starts, ends, sections = self.sliced.starts, self.sliced.ends, self.sections
        positions: Ints = np.searchsorted(starts, ends)
        candidates = np.minimum(positions, max(len(self) - 1, 0))
        continues = (starts[candidates] == ends) & (sections[candidates] == sections)
        return np.where(continues, candidates, -1)

    def example(self, number: int) -> Example:
        ids = self.sliced.ids_of(self.sliced[number])
        return Example(ids[: int(self.lengths[number])] if self.open_end else ids, None, self, number)

    def text(self, number: int) -> str:
        return self.sliced.text_of(self.sliced[number])

    def place(self, number: int) -> str:
        """The example's position in the file, as users read it: 'row 12'."""
        block = self.sliced[number]
        return f"{KIND_WORDS[block.kind]} at characters {self.start + block.start} to {self.start + block.end}"


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of one file, with their ids in one array.

    Where preferences are learned, each row is compared with the row of the same number in `contrast`: with the
    rejected reply to its prompt, or, if the rows say whether their own reply is `desirable`, with another reply.
    """

    name: str
    all_ids: Ids
    all_trained: Flags
    first: Ints  # the first id of each row, then the number of all ids
    rows: Ints  # the position of each row in its file
    follows: Flags  # whether the row before it here is also the one before it in the file
    unit: str  # what a position counts: 'line' or 'row'
    decode: Callable[[Sequence[int]], str] = field(repr=False)
    # Of chats that may be divided: the first id after what each piece begins with, then that of each exchange but
    # the first. Empty where chats are not divided.
    all_begins: Flags = field(default_factory=lambda: np.zeros(0, bool))
    has_conversations: bool = False  # whether `follows` is true only within conversations that the rows name
    contrast: RowSource | None = None
    desirable: Flags | None = None
    pair_ids: Ints | None = None  # of each preference: a hash of its content, by which decisions are kept

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sides(self) -> tuple[RowSource, ...]:
        """The rows, and those that they are compared with."""
        return (self,) if self.contrast is None else (self, self.contrast)

    @property
    def own_lengths(self) -> Ints:
        return self.first[1:] - self.first[:-1]

    @property
    def lengths(self) -> Ints:
        """The number of ids of each example: of a pair, those of both sides."""
        return sum((side.own_lengths for side in self.sides[1:]), self.own_lengths)

    @property
    def longest_sides(self) -> Ints:
        """The number of ids that has to fit into the model at once."""
        return np.maximum.reduce([side.own_lengths for side in self.sides])

    @property
    def learned(self) -> Ints:
        return sum((side.own_learned for side in self.sides[1:]), self.own_learned)

    @cached_property
    def own_learned(self) -> Ints:
        totals: Ints = np.zeros(len(self), np.int64)
        # Of rows with ids: to an empty one, reduceat would give the number of the next row.
        filled = np.flatnonzero(self.own_lengths)
        if len(filled):
            first = self.first[filled]
            # The first id of a row is never learned: nothing comes before it to predict it from.
            totals[filled] = np.add.reduceat(self.all_trained, first, dtype=np.int64) - self.all_trained[first]
        return totals

    @cached_property
    def last_learned_ids(self) -> Ints:
        """The last learned id of each row, without the spaces that many templates put after it; -1 for none."""
        is_space = cache(lambda token: not self.decode([token]).strip())
        last_ids: Ints = np.full(len(self), -1, np.int64)
        # Row by row: the positions of all learned ids would take twice the memory of the ids.
        for row, (start, end) in enumerate(pairwise(self.first.tolist())):
            for position in reversed(range(start, end)):
                if self.all_trained[position]:
                    last_ids[row] = self.all_ids[position]
                    if not is_space(int(last_ids[row])):
                        break
        return last_ids

    @property
    def successors(self) -> Ints:
        """The next row of the file, blank lines ignored, or the next piece of the same row.

        -1 where a row between the two was dropped.
        """
        continues = np.append(self.follows[1:], [False])[: len(self)]
        return np.where(continues, np.arange(1, len(self) + 1), -1)

    def example(self, number: int) -> Example:
        bounds = slice(self.first[number], self.first[number + 1])
        contrast = None if self.contrast is None else self.contrast.example(number)
        desirable = None if self.desirable is None else bool(self.desirable[number])
        return Example(self.all_ids[bounds], self.all_trained[bounds], self, number, contrast, desirable)

    def text(self, number: int) -> str:
        return self.decode(self.example(number).ids.tolist())

    def place(self, number: int) -> str:
        return f"{self.unit} {self.rows[number]}"

    def arrays(self) -> dict[str, Any]:
        """The arrays that these rows have, by their names, without those of `contrast`."""
        return {name: array for name in ROW_ARRAYS if (array := getattr(self, name)) is not None}


# The examples of one file, indexed by number.
Source: TypeAlias = TextSource | RowSource


@dataclass(frozen=True, eq=False)
class Example:
    """The ids of one example, its loss mask, the source that it is from, and the example of its contrast."""

    ids: Ids
    loss_mask: Flags | None  # None where all ids are learned
    source: Source
    number: int
    contrast: Example | None = None
    desirable: bool | None = None

    @property
    def sides(self) -> tuple[Example, ...]:
        return (self,) if self.contrast is None else (self, self.contrast)

    @property
    def tokens(self) -> int:
        return sum(len(side.ids) for side in self.sides)

    @property
    def labels(self) -> Ids:
        """The labels, not shifted; the first id is ignored, since nothing comes before it to predict it from."""
        labels = self.ids.copy()
        if self.loss_mask is not None:
            labels[~self.loss_mask] = IGNORE_INDEX
        labels[:1] = IGNORE_INDEX
        return labels

    @property
    def text(self) -> str:
        return self.source.text(self.number)

    @property
    def place(self) -> str:
        return self.source.place(self.number)


class Examples:
    """All examples of a run in the order of the files; the ids of an example are sliced out on access.

    `picks` are the numbers to take of each source, in that order; without them, every example is taken once.
    """

    def __init__(self, sources: Sequence[Source], picks: Sequence[Ints] | None = None) -> None:
        self.sources = sources
        self._picks = [np.arange(len(source)) for source in sources] if picks is None else picks
        self._source_of: Ints = np.repeat(np.arange(len(sources)), [len(pick) for pick in self._picks])
        self._numbers: Ints = np.concatenate([np.zeros(0, np.int64), *self._picks])

    @staticmethod
    def join(parts: Iterable[Examples]) -> Examples:
        """The examples of several datasets, one after the other."""
        pairs = [pair for part in parts for pair in zip(part.sources, part._picks, strict=True)]
        return Examples([source for source, _ in pairs], [pick for _, pick in pairs])

    def without_lead(self, lead: Sequence[int]) -> Examples:
        """The same, where nothing of a reply is learned that its template has begun it with."""
        parts = [without_lead(part, lead) if isinstance(part, RowSource) else part for part in self.sources]
        return Examples(parts, self._picks)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Example:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.sources[int(self._source_of[number])].example(int(self._numbers[number]))

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(len(self)))

    @property
    def are_compared(self) -> bool:
        """Whether preferences between replies are learned, instead of the replies themselves."""
        return any(isinstance(source, RowSource) and source.contrast is not None for source in self.sources)

    def texts(self) -> list[Text]:
        """Return the texts that blocks were made of."""
        return [source.sliced.text for source in self.sources if isinstance(source, TextSource)]

    def lengths(self) -> list[int]:
        """Return the number of tokens of each example."""
        return self._concatenate("lengths")

    def learned(self) -> list[int]:
        """Return the number of learned tokens of each example."""
        return self._concatenate("learned")

    def source_numbers(self) -> list[int]:
        """Return for each example the number of its source in `sources`."""
        numbers: list[int] = self._source_of.tolist()
        return numbers

    def successors(self) -> list[int]:
        """Return for each example the number of the one that begins where it ends; -1 where the run has none."""
        result: list[int] = []
        for source, pick in zip(self.sources, self._picks, strict=True):
            following, numbers = source.successors.tolist(), pick.tolist()
            own, position = [-1] * len(numbers), {-1: -1}
            # From the end, so that of an example that a share of 200 % repeats, the nearest one after it is found.
            for n in reversed(range(len(numbers))):
                own[n] = position.get(following[numbers[n]], -1)
                position[numbers[n]] = len(result) + n
            result += own
        return result

    def digest(self) -> str:
        """Hash all ids in their order and the loss masks: equal for the same data, cut the same way."""
        digest = hashlib.sha256()
        for side in (side for example in self for side in example.sides):
            digest.update(side.ids.tobytes() + b"|")
            if side.loss_mask is not None:
                digest.update(side.loss_mask.tobytes() + b"|")
            if side.desirable is not None:
                digest.update(b"+" if side.desirable else b"-")
        return digest.hexdigest()

    def _concatenate(self, column: str) -> list[int]:
        pairs = zip(self.sources, self._picks, strict=True)
        return [value for source, pick in pairs for value in getattr(source, column)[pick].tolist()]


@dataclass(frozen=True)
class ExampleDatasets:
    """The names of the datasets, and the dataset of each source by the source's id()."""

    names: tuple[str, ...]
    of_source: dict[int, int]

    def of(self, examples: Sequence[Example]) -> list[int]:
        """Return the number of each example's dataset."""
        return [self.of_source[id(example.source)] for example in examples]

    @property
    def has_several(self) -> bool:
        return len(self.names) > 1


def find_example_datasets(examples: Examples, settings: TrainingSettings) -> ExampleDatasets:
    """Group the sources by the datasets that the user named: a folder is one, however many files it has."""
    requested = [parse_share(name).name.rstrip("/\\") for name in (*settings.what.data, *settings.aside.eval_data)]
    names = []
    for source in examples.sources:
        folders = [folder for folder in requested if source.name.startswith(folder + "/")]
        names.append(max(folders, key=len) + "/" if folders else source.name)
    datasets = tuple(dict.fromkeys(names))
    numbers = {id(source): datasets.index(name) for source, name in zip(examples.sources, names, strict=True)}
    return ExampleDatasets(datasets, numbers)


Part = TypeVar("Part", LoadedText, TextSource)


def group_parts(items: Iterable[Part]) -> list[list[Part]]:
    """The parts of each large file together, and everything else by itself."""
    groups = groupby(items, key=lambda item: item.name if item.part else id(item))
    return [list(group) for _, group in groups]


class TruncatedRows(NamedTuple):
    """The rows after truncation, and how many were too long or dropped."""

    source: RowSource
    too_long: int  # rows longer than the cutoff
    nothing_learned: int  # examples dropped because no token of them would be learned


def truncate_rows(source: RowSource, cutoff: int, too_long: str, bos: int | None) -> TruncatedRows:
    """Drop, cut or split rows of more than `cutoff` ids; `too_long` is the value of that setting.

    A chat is split between its exchanges, and each piece begins with its system message. Another piece from
    inside a row that begins with BOS gets one, too. Labeled replies get what they are compared with.
    """
    is_long: Flags = source.longest_sides > cutoff
    shortened = source
    # Of a pair, each half would be a pair without one of its replies, so it is never split.
    if is_long.any() and (too_long in ("drop", "drop_any") or (source.contrast and too_long == "split")):
        shortened = select_rows(source, np.flatnonzero(~is_long))
    elif is_long.any():
        shortened = _cut_rows(source, cutoff, too_long, bos)
    # After the cut, because a reply may lie behind it.
    learned = np.minimum.reduce([side.own_learned for side in shortened.sides]) > 0
    kept = shortened if learned.all() else select_rows(shortened, np.flatnonzero(learned))
    if kept.desirable is not None and len(kept):
        kept = replace(kept, contrast=_with_other_replies(kept, cutoff))
    return TruncatedRows(kept, int(is_long.sum()), len(shortened) - len(kept))


def _cut_rows(source: RowSource, cutoff: int, too_long: str, bos: int | None) -> RowSource:
    ids, flags = list[Ids](), list[Flags]()
    lengths, rows = [0], list[int]()
    for row, (first, last) in enumerate(pairwise(source.first.tolist())):
        has_bos = int(bos is not None and last > first and int(source.all_ids[first]) == bos)
        pieces = [(0, first, last)]  # each with the number of ids from the row's beginning that come before it
        if last - first > cutoff and too_long == "cut_end":
            pieces = [(0, first, first + cutoff)]
        elif last - first > cutoff and too_long == "cut_start":
            pieces = [(has_bos, last - cutoff + has_bos, last)]
        elif last - first > cutoff:
            head, *begins = (first + np.flatnonzero(source.all_begins[first:last])).tolist() or [first]
            lead = head - first if 2 * (head - first) <= cutoff else has_bos
            pieces, end = [], first
            while end < last:
                start, before = end, lead if end in begins else has_bos * (end > first)
                end = min(start + cutoff - before, last)
                if end < last:  # inside an exchange only where no other one begins
                    end = max((begin for begin in begins if start < begin <= end), default=end)
                pieces.append((before, start, end))
        for before, start, end in pieces:
            ids += [source.all_ids[first : first + before], source.all_ids[start:end]]
            flags += [np.zeros(before, bool), source.all_trained[start:end]]
            lengths.append(before + end - start)
            rows.append(row)
    return replace(
        source,
        all_ids=np.concatenate(ids),
        all_trained=np.concatenate(flags),
        all_begins=source.all_begins[:0],
        first=np.cumsum(lengths, dtype=np.int64),
        rows=source.rows[rows],
        # A second piece continues the first one; what its row continues, only its first piece does.
        follows=source.follows[rows] | (np.diff(rows, prepend=-1) == 0),
        contrast=source.contrast and _cut_rows(source.contrast, cutoff, too_long, bos),
        desirable=None if source.desirable is None else source.desirable[rows],
        pair_ids=None if source.pair_ids is None else source.pair_ids[rows],
    )


def _with_other_replies(source: RowSource, cutoff: int) -> RowSource:
    """The prompt of each row with the reply of another one, cut at the cutoff."""
    # KTO (Ethayarajh et al., 2024) measures on them how far the model has moved from the base. The row is far
    # away: those beside it may be other versions of the same reply.
    bounds = list(pairwise(source.first.tolist()))
    replies = [start + int(source.all_trained[start:end].argmax()) for start, end in bounds]
    away = max(1, round(0.382 * len(bounds)))
    ids, flags = list[Ids](), list[Flags]()
    for number, (start, _) in enumerate(bounds):
        prompt, reply = slice(start, replies[number]), slice(replies[number - away], bounds[number - away][1])
        ids.append(np.concatenate([source.all_ids[prompt], source.all_ids[reply]])[:cutoff])
        flags.append(np.concatenate([source.all_trained[prompt], source.all_trained[reply]])[:cutoff])
    lengths = [0, *map(len, ids)]
    return replace(
        source,
        all_ids=np.concatenate(ids),
        all_trained=np.concatenate(flags),
        first=np.cumsum(lengths, dtype=np.int64),
        contrast=None,
        desirable=None,
    )


def join_rows(parts: Sequence[RowSource]) -> RowSource:
    """The rows of several sources of one file, one source after the other."""
    columns = [part.arrays() for part in parts]
    arrays = {name: np.concatenate([own[name] for own in columns]) for name in columns[0]}
    lengths = [length for part in parts for length in part.own_lengths.tolist()]
    arrays["first"] = np.cumsum([0, *lengths], dtype=np.int64)
    contrasts = [part.contrast for part in parts if part.contrast]
    return replace(parts[0], **arrays, contrast=join_rows(contrasts) if contrasts else None)


def label_pairs(source: RowSource) -> RowSource:
    """Two labeled rows for each pair: the chosen replies as desirable, then the rejected ones as undesirable."""
    assert source.contrast is not None
    both = join_rows([replace(source, contrast=None), source.contrast])
    return replace(both, follows=np.zeros(len(both), bool), desirable=np.arange(len(both)) < len(source))


def switch_replies(source: RowSource, switched: Flags) -> RowSource:
    """The pairs of a source, of which some have their two replies the other way around."""
    stacked, rows = replace(label_pairs(source), desirable=None), np.arange(len(source))
    places = (rows + len(source) * switched, rows + len(source) * ~switched)
    chosen, rejected = (reorder_rows(stacked, each, source.follows) for each in places)
    return replace(chosen, contrast=rejected)


def select_rows(source: RowSource, numbers: Ints) -> RowSource:
    """Return a source with only these rows, in the order of the file."""
    return reorder_rows(source, numbers, source.follows[numbers] & (np.diff(numbers, prepend=-1) == 1))


def reorder_rows(source: RowSource, order: Ints, follows: Flags) -> RowSource:
    """Return rows in this order; `follows` says of each whether it continues the one before it there."""
    contrast = source.contrast and reorder_rows(source.contrast, order, follows)
    desirable = None if source.desirable is None else source.desirable[order]
    if np.array_equal(order, np.arange(len(source))):
        return replace(source, follows=follows, contrast=contrast)
    # Views of the rows: positions of all their ids would take twice the memory of the ids.
    bounds = [slice(source.first[row], source.first[row + 1]) for row in order.tolist()]
    return replace(
        source,
        all_ids=np.concatenate([source.all_ids[:0], *(source.all_ids[each] for each in bounds)]),
        all_trained=np.concatenate([source.all_trained[:0], *(source.all_trained[each] for each in bounds)]),
        all_begins=np.concatenate([source.all_begins[:0], *(source.all_begins[each] for each in bounds)]),
        first=np.cumsum([0, *source.own_lengths[order].tolist()], dtype=np.int64),
        rows=source.rows[order],
        follows=follows,
        contrast=contrast,
        desirable=desirable,
        pair_ids=None if source.pair_ids is None else source.pair_ids[order],
    )


def without_lead(source: RowSource, lead: Sequence[int]) -> RowSource:
    """The rows whose replies are learned from behind this, which a template puts before each of them."""
    trained = source.all_trained.copy()
    for start in np.flatnonzero(np.diff(trained.astype(np.int8), prepend=0) == 1).tolist() if len(lead) else ():
        if source.all_ids[start : start + len(lead)].tolist() == [*lead]:
            trained[start : start + len(lead)] = False
    return replace(source, all_trained=trained)


class Passage(NamedTuple):
    """A prompt and what follows it; only what follows is labelled."""

    example: Example
    prompt_tokens: int
    part: str  # where it comes from: the first words of its section, or the name of its file


def pick_passages(examples: Examples, count: int, bos: int | None) -> list[Passage]:
    """Pick up to `count` passages, one from each of as many examples, evenly spaced; the same ones every time.

    `bos` is the start token that the tokenizer adds, if any: a prompt from within a text begins with it, too.
    """
    numbers = np.flatnonzero(np.asarray(examples.learned()) >= MIN_PASSAGE_TOKENS)
    places = np.linspace(0, max(len(numbers) - 1, 0), min(count, len(numbers))).round().astype(int)
    passages = []
    for position, number in enumerate(numbers[places].tolist()):
        example = examples[number]
        mask = np.ones(len(example.ids), bool) if example.loss_mask is None else example.loss_mask
        # Where the mask changes: the start and the end of each run of learned tokens.
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]]).astype(np.int8))).reshape(-1, 2).tolist()
        replies = [(begin, end) for begin, end in edges if begin >= MIN_TOKENS and end - begin >= MIN_TOKENS]
        if replies:  # of a row: the beginning of one of its replies
            middle, end = replies[position % len(replies)]
            start, end = 0, min(end, middle + TARGET_TOKENS)
        else:  # of a text: a place inside it
            start, end = max(edges, key=lambda run: run[1] - run[0])
            length = end - start
            if length < MIN_PASSAGE_TOKENS:
                continue
            target = min(TARGET_TOKENS, length // 2)
            prompt = min(PROMPT_TOKENS, length - target)
            # Each time somewhere else, or all passages would come from the beginnings of their examples.
            start += int((length - prompt - target) * (position * GOLDEN_RATIO % 1))
            middle, end = start + prompt, start + prompt + target
        start_token = example.ids[:1][[bos is not None and start > 0 and example.ids[0] == bos]]
        ids: Ids = np.concatenate([start_token, example.ids[start:end]])
        prompt_tokens = len(start_token) + middle - start
        labelled: Flags = np.arange(len(ids)) >= prompt_tokens
        part, source = example.source.name, example.source
        if isinstance(source, TextSource):
            begin = int(source.sliced.sections.start[source.sliced[example.number].section])
            part = section_title(source.sliced.text, begin)
        passages.append(Passage(Example(ids, labelled, source, example.number), prompt_tokens, part))
    return passages


def section_title(text: Text, start: int) -> str:
    """The first words of the section that begins here: a heading, where it has one."""
    title = " ".join(text[start : start + 3 * HEADING_CHARS].split())
    return title if len(title) <= HEADING_CHARS else f"{title[:HEADING_CHARS].rsplit(' ', 1)[0]} ..."
