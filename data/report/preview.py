"""Preview of examples as the model sees them: learned, only read, and special tokens in separate pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice

from ...core.engine import PreviewQuery
from ..examples import IGNORE_INDEX, Example, Examples, RowSource

LEARNED_MARKS = ("⟦", "⟧")
PARTIAL_CHARACTER = "\ufffd"  # what the first bytes of a character decode to


@dataclass(frozen=True)
class PreviewPiece:
    """A run of tokens that are equally learned or not, special or not."""

    text: str
    learned: bool
    special: bool


@dataclass(frozen=True)
class ExamplePreview:
    """One example and where it is from; `number` counts all examples from 1."""

    number: int
    source: str
    place: str
    tokens: int
    pieces: tuple[PreviewPiece, ...]
    pair: str = ""  # of a preference: the name under which a decision about it is kept

    def text(self) -> str:
        """Return the text with marks around what is learned."""
        marked = ""
        for learned, group in groupby(self.pieces, key=lambda piece: piece.learned):
            text = "".join(piece.text for piece in group)
            marked += f"{LEARNED_MARKS[0]}{text}{LEARNED_MARKS[1]}" if learned and text else text
        legend = f"text in {''.join(LEARNED_MARKS)} is trained on"
        return f"--- {self.number}: {self.source}, {self.place}, {self.tokens} tokens; {legend}\n{marked}"


def preview_examples(
    examples: Examples, query: PreviewQuery, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> tuple[ExamplePreview, ...]:
    """Preview the examples of a query, in the order of the search."""
    if query.first or query.containing:
        first = max(1, query.first) - 1
        searched = range(first, len(examples))
        if query.backward:
            searched = range(min(first, len(examples) - 1), -1, -1)
        words = query.containing.casefold()

        def shown(example: Example) -> Iterator[Example]:  # beside a labeled reply stands one of another row
            yield from example.sides if example.desirable is None else (example,)

        found = (
            n for n in searched if not words or any(words in each.text.casefold() for each in shown(examples[n]))
        )
        numbers = list(islice(found, query.count))
    else:
        # Examples of each source at equal distances, since a book begins with its title and its contents.
        by_source: dict[int, list[int]] = {}
        for number, source in enumerate(examples.source_numbers()):
            by_source.setdefault(source, []).append(number)
        turns = Counter(islice(cycle(by_source), query.count))
        shares = [(by_source[source], min(turn, len(by_source[source]))) for source, turn in turns.items()]
        numbers = sorted(own[len(own) * n // share] for own, share in shares for n in range(share))
    previews = []
    for number in numbers:
        example = examples[number]
        pieces, place = _pieces(example, decode, specials), example.place
        if example.desirable is not None:
            place += ", desirable" if example.desirable else ", undesirable"
        elif example.contrast is not None:
            pieces.append(PreviewPiece("\n\nWith the rejected reply:\n", learned=False, special=False))
            pieces += _pieces(example.contrast, decode, specials)
        name, tokens = example.source.name, example.tokens if example.desirable is None else len(example.ids)
        pair_ids = example.source.pair_ids if isinstance(example.source, RowSource) else None
        pair = "" if pair_ids is None else str(pair_ids[example.number])
        previews.append(ExamplePreview(number + 1, name, place, tokens, tuple(pieces), pair))
    return tuple(previews)


def _pieces(
    example: Example, decode: Callable[[Sequence[int]], str], specials: Collection[int]
) -> list[PreviewPiece]:
    pieces = list[PreviewPiece]()
    ids, labels = example.ids.tolist(), example.labels.tolist()
    kinds = [(label != IGNORE_INDEX, token in specials) for token, label in zip(ids, labels, strict=True)]
    # The text of a piece is what it adds to the decoded text, since tokens can't be decoded one by one. A
    # character whose bytes two pieces share is in the second one.
    decoded, start = "", 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and kinds[end] == kinds[start]:
            continue
        text = decode(ids[:end])
        if end < len(ids):
            text = text.rstrip(PARTIAL_CHARACTER)
        pieces.append(PreviewPiece(text[len(decoded) :], *kinds[start]))
        decoded, start = text, end
    return pieces
