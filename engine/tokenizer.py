"""A working copy of the host's tokenizer: texts to ids with their places, and the BOS and EOS that are its own.

Places come the cheapest way that is exact. Tokens of byte-level and SentencePiece vocabularies stand for
known bytes: where these, joined, are the text itself, their lengths are the places, and the tokenizer need
not keep track (which saves a third of its time). Any other piece of text is asked for with offsets, and a
tokenizer that has none is followed along the text.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chunking import Encoded, Encoder
from ..data import prepared
from ..data.templates import CHATML
from . import mistral_format
from .mistral_format import MistralFormat

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

CODE = (Path(__file__), Path(mistral_format.__file__))  # that ids and places follow from, beside the tokenizer
NO_TEXT = b"\xff"  # stands in no UTF-8, so a text never equals anything with it
LONGEST_BLUR = 8  # ids whose places run into one another, before a slow tokenizer is asked word by word


@dataclass(frozen=True, eq=False)
class WorkingTokenizer:
    """What slicing needs of a tokenizer; `tokenizer` is a copy, so the host's own stays as it is."""

    tokenizer: Any
    encode: Encoder
    encode_marked: Encoder  # special tokens in the text are understood
    bos: int | None  # only where the tokenizer itself puts one
    eos: int | None
    specials: frozenset[str]
    stops: frozenset[int]  # the ids of special tokens, any of which may end a reply
    chat_template: Template | MistralFormat

    def decode(self, ids: Sequence[int]) -> str:
        """What ids stand for, special tokens written out."""
        try:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        except (TypeError, ValueError):  # one that cannot be asked for that
            return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    @cached_property
    def fingerprint(self) -> str:
        """All that ids and template follow from; empty for tokenizers written in Python, which hide it."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return ""
        _prepare(backend, marked=False)
        template = repr(self.chat_template.text or getattr(self.tokenizer, "chat_template", None))
        dated = datetime.date.today().isoformat() if "strftime_now" in template else ""
        versions = [version(name) for name in ("transformers", "tokenizers")]
        special = getattr(self.tokenizer, "special_tokens_map", {})
        known = (
            template,
            self.chat_template.origin,
            dated,
            versions,
            special,
            self.bos,
            self.eos,
            sorted(self.stops),
            prepared.of_files(CODE),
        )
        return hashlib.blake2b(f"{known!r}{backend.to_str()}".encode(), digest_size=20).hexdigest()


def working_tokenizer(tokenizer: Any, chat_template: str = "") -> WorkingTokenizer:
    """A copy on which marker-like text is text, and nothing is padded or truncated.

    `chat_template` is the host's, for a tokenizer that has none.
    """
    own = copy.deepcopy(tokenizer)
    backend = getattr(own, "backend_tokenizer", None)
    made = _quick_encoder if backend is not None else _slow_encoder
    encode, encode_marked = (made(own if backend is None else backend, marked=marked) for marked in (False, True))
    added = {n: str(token) for n, token in _added_tokens(own).items() if getattr(token, "special", True)}
    specials = frozenset(map(str, getattr(own, "all_special_tokens", ()))) | set(added.values())
    stops = frozenset(getattr(own, "all_special_ids", ())) | added.keys()
    template = _template(own, chat_template)
    return WorkingTokenizer(own, encode, encode_marked, _own_bos(own), own.eos_token_id, specials, stops, template)


def _added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """Special ones among them count too: a stop such as <|eot_id|> need not be named in the tokenizer."""
    found = getattr(tokenizer, "added_tokens_decoder", None)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, eq=False)
class Template:
    """A chat template, written out by transformers."""

    tokenizer: Any
    text: str | None  # None: the tokenizer's own
    origin: str

    @property
    def own(self) -> bool:
        return self.text is None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        from jinja2.exceptions import TemplateError

        try:
            written = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(tools) or None,
                chat_template=self.text,
                tokenize=False,
                add_generation_prompt=opening,
            )
        except (TemplateError, TypeError, KeyError, IndexError) as error:
            raise ValueError(str(error)) from error
        return str(written)


def _template(tokenizer: Any, hosts: str) -> Template | MistralFormat:
    """The tokenizer's own, else the host's, else ChatML."""
    if mistral_format.is_of_mistral(tokenizer):
        return mistral_format.MistralFormat(tokenizer)
    if getattr(tokenizer, "chat_template", None):
        return Template(tokenizer, None, "the model's own chat template")
    if hosts:
        return Template(tokenizer, hosts, "the webui's instruction template, since the model has none")
    return Template(tokenizer, CHATML, "ChatML, since the model has no chat template")


def _own_bos(tokenizer: Any) -> int | None:
    """The BOS, if the tokenizer puts it before a text of its own accord."""
    bos = tokenizer.bos_token_id
    ids = tokenizer("a")["input_ids"]
    return bos if bos is not None and len(ids) > 1 and ids[0] == bos else None


def _quick_encoder(backend: Any, *, marked: bool) -> Encoder:
    """Batches through the Rust tokenizer, with offsets only for what its bytes do not tell."""
    added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
    surfaces = Surfaces.of(backend.get_vocab(with_added_tokens=True), added)

    def encode(texts: Sequence[str]) -> list[Encoded]:
        _prepare(backend, marked=marked)
        ids = [piece.ids for piece in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        placed = surfaces.placed(texts, ids)
        unclear = [number for number, piece in enumerate(placed) if piece is None]
        pieces = backend.encode_batch([texts[number] for number in unclear], add_special_tokens=False)
        again = dict(zip(unclear, map(_with_offsets, pieces), strict=True))
        return [piece or again[number] for number, piece in enumerate(placed)]

    return encode


def _prepare(backend: Any, *, marked: bool) -> None:
    """Each time anew: any ordinary call of the tokenizer around it sets these as it likes."""
    backend.encode_special_tokens = not marked
    backend.no_padding()
    backend.no_truncation()


def _with_offsets(piece: Any) -> Encoded:
    import numpy as np

    places = np.fromiter(chain.from_iterable(piece.offsets), np.int64, 2 * len(piece.ids))
    return Encoded(np.array(piece.ids, np.int32), places[::2], places[1::2])


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


def _slow_encoder(tokenizer: Any, *, marked: bool) -> Encoder:
    """The same for a tokenizer that is written in Python and keeps no offsets."""
    written = {number: str(token) for number, token in _added_tokens(tokenizer).items()}
    surfaces = Surfaces.of(tokenizer.get_vocab(), written)
    options = _options(tokenizer, marked=marked)

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    apart = marked and mistral_format.is_of_mistral(tokenizer)
    ids_in = mistral_format.by_specials(tokenizer, ids_of) if apart else ids_of

    def encode(texts: Sequence[str]) -> list[Encoded]:
        ids = [ids_in(text) for text in texts]
        placed = surfaces.placed(texts, ids)
        pairs = zip(texts, ids, placed, strict=True)
        return [piece or _followed(tokenizer, text, own) or _by_word(text, ids_of) for text, own, piece in pairs]

    return encode


def _options(tokenizer: Any, *, marked: bool) -> dict[str, bool]:
    """Marker-like text is to stay text; a tokenizer that cannot be asked for that never reads it otherwise."""
    options = {"add_special_tokens": False, "split_special_tokens": not marked}
    try:
        tokenizer("a", **options)
    except (TypeError, ValueError):
        return {"add_special_tokens": False}
    return options


def _followed(tokenizer: Any, text: str, ids: list[int]) -> Encoded | None:
    """Places by finding each id's own text in turn; ids not found share the stretch between those that are."""
    places, at = [], 0
    for number in ids:
        own = tokenizer.decode([number]).strip()
        found = text.find(own, at, at + len(own) + 2 * LONGEST_BLUR) if own else -1
        places.append((found, found + len(own)) if found >= 0 else None)
        at = at if found < 0 else found + len(own)
    return _filled(ids, places, len(text))


def _filled(ids: list[int], places: list[tuple[int, int] | None], length: int) -> Encoded | None:
    """Ids without a place get all that lies between their neighbours; nothing where that are too many."""
    import numpy as np

    starts, ends, blur, at = [], [], 0, 0
    for place in [*places, (length, length)]:
        if place is None:
            blur += 1
            continue
        if blur > LONGEST_BLUR:
            return None
        starts += [at] * blur + [place[0]]
        ends += [place[0]] * blur + [place[1]]
        blur, at = 0, place[1]
    return Encoded(np.array(ids, np.int32), np.array(starts[:-1], np.int64), np.array(ends[:-1], np.int64))


def _by_word(text: str, ids_of: Callable[[str], list[int]]) -> Encoded:
    """The last resort: each word for itself, and a word of many ids by the letter, so that bounds are known."""
    import numpy as np

    rows: list[tuple[int, int, int]] = []
    for match in re.finditer(r"\s*\S+|\s+$", text):
        ids = ids_of(match[0])
        if len(ids) <= LONGEST_BLUR:
            rows += [(number, *match.span()) for number in ids]
        else:
            rows += [(number, at, at + 1) for at in range(*match.span()) for number in ids_of(text[at])]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Encoded(columns[0].astype(np.int32), columns[1], columns[2])
