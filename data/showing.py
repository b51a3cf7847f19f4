"""Examples as the model will see them: in pieces that are learned or only read, special tokens told apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from .examples import IGNORED, Example, Examples

LEARNED = ("⟦", "⟧")


@dataclass(frozen=True)
class Piece:
    """Neighbouring tokens that are alike."""

    text: str
    learned: bool
    special: bool


@dataclass(frozen=True)
class Shown:
    """One example, with where it came from."""

    source: str
    place: str
    tokens: int
    pieces: tuple[Piece, ...]

    def text(self) -> str:
        """With signs around what is learned."""
        marked = "".join(f"{LEARNED[0]}{p}{LEARNED[1]}" if on else p for on, p in _runs(self.pieces))
        head = (
            f"--- {self.source}, {self.place}, {self.tokens} tokens; {''.join(LEARNED)} is around what is learned"
        )
        return f"{head}\n{marked}"


def shown(
    examples: Examples, count: int, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> tuple[Shown, ...]:
    """The first so many examples of each source in turn."""
    return tuple(_shown(examples[number], decode, specials) for number in _numbers(examples, count))


def _numbers(examples: Examples, count: int) -> list[int]:
    """The first ones, some of each source."""
    firsts: dict[int, list[int]] = {}
    for number, source in enumerate(examples.source_of_each()):
        firsts.setdefault(source, []).append(number)
    taken: list[int] = []
    for turn in range(count):
        taken += [numbers[turn] for numbers in firsts.values() if turn < len(numbers)]
    return sorted(taken[:count])


def _shown(example: Example, decode: Callable[[Sequence[int]], str], specials: Collection[int]) -> Shown:
    return Shown(example.source.name, example.place, len(example.ids), tuple(_pieces(example, decode, specials)))


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
