"""Working copy of the host's tokenizer: texts to ids with character offsets, and its own BOS and EOS.

Where the bytes of the tokens join up to the text, their lengths give the offsets (`token_bytes.py`). Any other
text is encoded again with offsets; a tokenizer written in Python, which reports none, is refused there.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...chunking import EncodedText, Encoder
from ...core.errors import ModelError, first_line
from ...data import arrow_store
from ...data.rows import CHATML
from . import mistral_chat_template as mistral
from . import token_bytes
from .mistral_chat_template import MistralChatTemplate
from .token_bytes import TokenBytes, added_tokens

# Source files that ids and offsets depend on besides the tokenizer itself.
SOURCE_FILES = tuple(Path(file) for file in (__file__, token_bytes.__file__, mistral.__file__))
MAX_PROBLEM_CHARS = 300  # of what a template raises, in a message


@dataclass(frozen=True, eq=False)
class WorkingTokenizer:
    """A tokenizer as slicing needs it; `tokenizer` is a copy, so the host's own stays unchanged."""

    tokenizer: Any
    encode: Encoder
    encode_marked: Encoder  # parses special tokens in the text
    bos: int | None  # only if the tokenizer itself adds it
    eos: int | None
    specials: frozenset[str]
    stops: frozenset[int]  # the ids of special tokens, any of which may end a reply
    chat_template: JinjaChatTemplate | MistralChatTemplate

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids with special tokens written out."""
        try:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        except (TypeError, ValueError):  # a tokenizer without this option
            return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that ids and chat template depend on; empty for tokenizers written in Python."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return ""
        _set_options(backend, marked=False)
        template = repr(self.chat_template.text or getattr(self.tokenizer, "chat_template", None))
        date = datetime.date.today().isoformat() if "strftime_now" in template else ""
        versions = [version(name) for name in ("transformers", "tokenizers")]
        special_tokens = getattr(self.tokenizer, "special_tokens_map", {})
        tokens = (special_tokens, self.bos, self.eos, sorted(self.stops))
        digest = arrow_store.files_digest(SOURCE_FILES)
        inputs = (template, self.chat_template.origin, date, versions, *tokens, digest)
        return hashlib.blake2b(f"{inputs!r}{backend.to_str()}".encode(), digest_size=20).hexdigest()


def make_working_tokenizer(tokenizer: Any, chat_template: str = "") -> WorkingTokenizer:
    """Copy a tokenizer so that it keeps marker-like text as text; `chat_template` is for one that has none."""
    copied = copy.deepcopy(tokenizer)
    backend = getattr(copied, "backend_tokenizer", None)
    make_encoder = _fast_encoder if backend is not None else _python_encoder
    encode, encode_marked = (
        make_encoder(copied if backend is None else backend, marked=marked) for marked in (False, True)
    )
    added = {i: str(token) for i, token in added_tokens(copied).items() if getattr(token, "special", True)}
    specials = frozenset(map(str, getattr(copied, "all_special_tokens", ()))) | set(added.values())
    stops = frozenset(getattr(copied, "all_special_ids", ())) | added.keys()
    if type(copied).__module__ == mistral.MISTRAL_MODULE:
        template: JinjaChatTemplate | MistralChatTemplate = MistralChatTemplate(copied)
    elif getattr(copied, "chat_template", None):
        template = JinjaChatTemplate(copied, None, "the model's own chat template", own=True)
    elif chat_template:
        origin = "the webui's instruction template (the model has no chat template)"
        template = JinjaChatTemplate(copied, chat_template, origin)
    else:
        template = JinjaChatTemplate(copied, CHATML, "ChatML (the model has no chat template)")
    # The BOS id counts only if the tokenizer adds it to a text by default.
    bos, ids = copied.bos_token_id, copied("a")["input_ids"]
    bos = bos if len(ids) > 1 and ids[0] == bos else None
    return WorkingTokenizer(copied, encode, encode_marked, bos, copied.eos_token_id, specials, stops, template)


@dataclass(frozen=True, eq=False)
class JinjaChatTemplate:
    """Jinja chat template, rendered by transformers."""

    tokenizer: Any
    text: str | None  # None: the tokenizer's own
    origin: str
    own: bool = False

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        apply = partial(
            self.tokenizer.apply_chat_template,
            [dict(message) for message in messages],
            tools=list(tools) or None,
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=opening,
        )
        try:
            return str(apply())
        except RecursionError as error:
            raise ValueError("it calls itself too many times.") from error
        except Exception as error:  # a template may raise anything
            raise ValueError(first_line(error)[:MAX_PROBLEM_CHARS]) from error


def _fast_encoder(backend: Any, *, marked: bool) -> Encoder:
    """Batch encoder of a Rust tokenizer; offsets are requested only where token bytes do not give them."""
    added = {index: token.content for index, token in backend.get_added_tokens_decoder().items()}
    known_bytes = TokenBytes.of(backend.get_vocab(with_added_tokens=True), added)

    def encode(texts: Sequence[str]) -> list[EncodedText]:
        _set_options(backend, marked=marked)
        ids = [result.ids for result in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        encodings = known_bytes.align(texts, ids)
        unmatched = [index for index, encoding in enumerate(encodings) if encoding is None]
        results = backend.encode_batch([texts[index] for index in unmatched], add_special_tokens=False)
        retried: dict[int, EncodedText] = {}
        for index, result in zip(unmatched, results, strict=True):
            offsets = np.fromiter(chain.from_iterable(result.offsets), np.int64, 2 * len(result.ids))
            retried[index] = EncodedText(np.array(result.ids, np.int32), offsets[::2], offsets[1::2])
        return [encoding or retried[index] for index, encoding in enumerate(encodings)]

    return encode


def _python_encoder(tokenizer: Any, *, marked: bool) -> Encoder:
    """Encoder of a tokenizer written in Python, which refuses a text that the bytes of its tokens are not."""
    is_mistral = type(tokenizer).__module__ == mistral.MISTRAL_MODULE
    if is_mistral:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        # The vocabulary that transformers shows has \ufffd for tokens of half a character.
        tekken = tokenizer.tokenizer.instruct_tokenizer.tokenizer
        pieces = [tekken.id_to_byte_piece(number, SpecialTokenPolicy.KEEP) for number in range(tekken.n_words)]
        known_bytes = TokenBytes(pieces)
    else:
        added = {number: str(token) for number, token in added_tokens(tokenizer).items()}
        known_bytes = TokenBytes.of(tokenizer.get_vocab(), added)
    options = {"add_special_tokens": False, "split_special_tokens": not marked}
    try:
        tokenizer("a", **options)
    except (TypeError, ValueError):  # without this option, special tokens in a text stay text anyway
        del options["split_special_tokens"]

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    encode_ids = mistral.split_at_special_tokens(tokenizer, ids_of) if marked and is_mistral else ids_of

    def encode(texts: Sequence[str]) -> list[EncodedText]:
        aligned = known_bytes.align(texts, [encode_ids(text) for text in texts])
        encodings = [encoded for encoded in aligned if encoded is not None]
        if len(encodings) < len(texts):
            raise ModelError(
                f"The model's tokenizer ({type(tokenizer).__name__}) doesn't tell which characters of a text its "
                "tokens stand for, so Training PRO can't use it. Choose a model that has a tokenizer.json file."
            )
        return encodings

    return encode


def _set_options(backend: Any, *, marked: bool) -> None:
    """Set the options before each batch: any ordinary call of the tokenizer around it changes them."""
    backend.encode_special_tokens = not marked
    backend.no_padding()
    backend.no_truncation()
