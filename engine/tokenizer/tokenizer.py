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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from ...chunking import Encoded, Encoder
from ...data import arrow_store
from ...data.rows import CHATML
from . import mistral_chat_template, slow_offsets, token_bytes
from .mistral_chat_template import MistralFormat
from .slow_offsets import slow_encoder
from .token_bytes import Surfaces, added_tokens

CODE = tuple(map(Path, (__file__, token_bytes.__file__, slow_offsets.__file__, mistral_chat_template.__file__)))
"""What ids and places follow from, beside the tokenizer itself."""


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
            arrow_store.of_files(CODE),
        )
        return hashlib.blake2b(f"{known!r}{backend.to_str()}".encode(), digest_size=20).hexdigest()


def working_tokenizer(tokenizer: Any, chat_template: str = "") -> WorkingTokenizer:
    """A copy on which marker-like text is text, and nothing is padded or truncated.

    `chat_template` is the host's, for a tokenizer that has none.
    """
    own = copy.deepcopy(tokenizer)
    backend = getattr(own, "backend_tokenizer", None)
    made = _quick_encoder if backend is not None else slow_encoder
    encode, encode_marked = (made(own if backend is None else backend, marked=marked) for marked in (False, True))
    added = {n: str(token) for n, token in added_tokens(own).items() if getattr(token, "special", True)}
    specials = frozenset(map(str, getattr(own, "all_special_tokens", ()))) | set(added.values())
    stops = frozenset(getattr(own, "all_special_ids", ())) | added.keys()
    template = _template(own, chat_template)
    return WorkingTokenizer(own, encode, encode_marked, _own_bos(own), own.eos_token_id, specials, stops, template)


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
    if mistral_chat_template.is_of_mistral(tokenizer):
        return mistral_chat_template.MistralFormat(tokenizer)
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
    written = Surfaces.of(backend.get_vocab(with_added_tokens=True), added)

    def encode(texts: Sequence[str]) -> list[Encoded]:
        _prepare(backend, marked=marked)
        ids = [piece.ids for piece in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        placed = written.placed(texts, ids)
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
