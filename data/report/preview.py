"""Examples as the model will see them: in pieces that are learned or only read, special tokens told apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ...core.engine import Showing
from ..examples import IGNORED, Example, Examples

LEARNED = ("⟦", "⟧")


@dataclass(frozen=True)
class Piece:
    """Neighbouring tokens that are alike."""

    text: str
    learned: bool
    special: bool


@dataclass(frozen=True)
class Shown:
    """One example, with where it came from; `number` counts all of them from 1."""

    number: int
    source: str
    place: str
    tokens: int
    pieces: tuple[Piece, ...]

    def text(self) -> str:
        """With signs around what is learned."""
        marked = "".join(f"{LEARNED[0]}{p}{LEARNED[1]}" if on else p for on, p in _runs(self.pieces))
        around = f"{''.join(LEARNED)} is around what is learned"
        return f"--- {self.number}: {self.source}, {self.place}, {self.tokens} tokens; {around}\n{marked}"


def shown(
    examples: Examples, wanted: Showing, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> tuple[Shown, ...]:
    """Those that are wanted, in the order in which they are found."""
    return tuple(_shown(number + 1, examples[number], decode, specials) for number in _numbers(examples, wanted))


def _numbers(examples: Examples, wanted: Showing) -> Iterable[int]:
    if not wanted.first and not wanted.holding:
        return _firsts(examples, wanted.count)
    first = max(1, wanted.first) - 1
    numbers = range(min(first, len(examples) - 1), -1, -1) if wanted.back else range(first, len(examples))
    words = wanted.holding.casefold()
    return islice((n for n in numbers if not words or words in examples[n].text.casefold()), wanted.count)


def _firsts(examples: Examples, count: int) -> list[int]:
    """The first ones, some of each source."""
    firsts: dict[int, list[int]] = {}
    for number, source in enumerate(examples.source_of_each()):
        firsts.setdefault(source, []).append(number)
    taken: list[int] = []
    for turn in range(count):
        taken += [numbers[turn] for numbers in firsts.values() if turn < len(numbers)]
    return sorted(taken[:count])


def _shown(
    number: int, example: Example, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> Shown:
    pieces = tuple(_pieces(example, decode, specials))
    return Shown(number, example.source.name, example.place, len(example.ids), pieces)


def _pieces(
    example: Example, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> Iterator[Piece]:
    """Runs of tokens that are alike; their texts are what the whole text grows by with them."""
    ids, labels = example.ids.tolist(), example.labels.tolist()
    kinds = [(label != IGNORED, number in specials) for number, label in zip(ids, labels, strict=True)]
    written, start = "", 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and kinds[end] == kinds[start]:
            continue
        text = decode(ids[:end])
        yield Piece(text[len(written) :], *kinds[start])
        written, start = text, end


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[bool, str]]:
    text, on = "", False
    for piece in pieces:
        if piece.learned != on and text:
            yield on, text
            text = ""
        text, on = text + piece.text, piece.learned
    if text:
        yield on, text
