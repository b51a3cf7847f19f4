"""The bytes that the tokens of a vocabulary stand for: where these, joined, are a text, they tell its places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...chunking import Encoded

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

NO_TEXT = b"\xff"  # stands in no UTF-8, so a text never equals anything with it


@dataclass(frozen=True, eq=False)
class Surfaces:
    """The bytes that each id of a vocabulary stands for in running text."""

    of_id: list[bytes]
    lengths: Numbers

    @staticmethod
    def of(vocabulary: dict[str, int], added: dict[int, str]) -> Surfaces:
        """Read a vocabulary in the way that it is written; added tokens are written out in any."""
        import numpy as np

        read = _reading(vocabulary)
        of_id = [NO_TEXT] * (max(vocabulary.values(), default=0) + 1)
        for token, number in vocabulary.items():
            of_id[number] = read(token)
        for number, token in added.items():
            of_id[number] = read(token) if read is _sentencepiece else token.encode()
        return Surfaces(of_id, np.array([len(surface) for surface in of_id], np.int32))

    def placed(self, texts: Sequence[str], ids: Sequence[list[int]]) -> list[Encoded | None]:
        """Each text's ids with their places, where their bytes are that text; nothing where they are not."""
        data = [text.encode() for text in texts]
        heads = [self._head(piece, own) for piece, own in zip(data, ids, strict=True)]
        good = [number for number, head in enumerate(heads) if head is not None]
        found = self._places([data[n] for n in good], [ids[n] for n in good], [heads[n] or 0 for n in good])
        encoded = dict(zip(good, found, strict=True))
        return [encoded.get(number) for number in range(len(texts))]

    def _head(self, data: bytes, ids: list[int]) -> int | None:
        """How many bytes the tokenizer put before a text: 0, or 1 for a space; nothing if it is not that text."""
        try:
            joined = b"".join(map(self.of_id.__getitem__, ids))
        except IndexError:  # an id that is in no vocabulary
            return None
        if joined == data:
            return 0
        return 1 if joined == b" " + data else None

    def _places(self, data: list[bytes], ids: list[list[int]], heads: list[int]) -> Iterator[Encoded]:
        """All at once, because many short sections cost more by the piece than by the id."""
        import numpy as np

        counts = [len(piece) for piece in ids]
        last = np.cumsum([0, *counts])
        numbers = np.fromiter(chain.from_iterable(ids), np.int32, int(last[-1]))
        lengths = self.lengths[numbers]
        filled = [number for number, count in enumerate(counts) if count]
        lengths[last[filled]] -= np.array([heads[number] for number in filled], np.int32)
        end = np.cumsum(lengths, dtype=np.int64)
        starts, ends, base = _characters(data, end - lengths, end)
        for number in range(len(ids)):
            own = slice(last[number], last[number + 1])
            yield Encoded(numbers[own], starts[own] - base[number], ends[own] - base[number])


def _characters(data: list[bytes], start: Numbers, end: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Places in bytes as places in characters, outwards where they cut one, and where each text begins."""
    import numpy as np

    base = np.cumsum([0, *map(len, data)])
    joined = np.frombuffer(b"".join(data), np.uint8)
    leads = np.append((joined & 0xC0) != 0x80, True)
    if leads.all():
        return start, end, base
    before = np.concatenate([[0], np.cumsum(leads[:-1])])
    return before[start] - ~leads[start], before[end], before[base]


def _reading(vocabulary: dict[str, int]) -> Callable[[str], bytes]:
    """How tokens are written: with a sign for each byte, as bare bytes, or as SentencePiece does."""
    if "Ġ" in vocabulary or "Ċ" in vocabulary:
        return _byte_level
    return _bare_byte if all(chr(byte) in vocabulary for byte in range(256)) else _sentencepiece


def _bare_byte(token: str) -> bytes:
    return token.encode("latin-1") if len(token) == 1 and token <= "\xff" else NO_TEXT


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return NO_TEXT


def _byte_level_alphabet() -> dict[int, int]:
    """The signs by which byte-level vocabularies write bytes: visible ones themselves, the rest from 256 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {256 + place: byte for place, byte in enumerate(hidden)}


BYTE_LEVEL = _byte_level_alphabet()
BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _sentencepiece(token: str) -> bytes:
    byte = BYTE_FALLBACK.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """Special ones among them count too: a stop such as <|eot_id|> need not be named in the tokenizer."""
    found = getattr(tokenizer, "added_tokens_decoder", None)
    return found if isinstance(found, Mapping) else {}
