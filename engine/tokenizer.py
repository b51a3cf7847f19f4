"""Working copy of the host's tokenizer: texts to ids with character offsets, and its own BOS and EOS.

Where the bytes of the tokens join up to the text, their lengths give the offsets. That takes 0.67 to 0.93 of the
time of offsets by the tokenizer (SmolLM2, Tekken, Mistral's SentencePiece; one AMD EPYC), 1.6 where the tokenizer
changes its text, and gives offsets of the same kind for every vocabulary. Any other text is encoded again with
offsets; a tokenizer written in Python, which reports none, is refused there.
"""

from __future__ import annotations

import copy
import ctypes
import datetime
import hashlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain, count
from typing import Any

import numpy as np

from ..chunking import EncodedText, Encoder
from ..core.errors import ModelError, first_line
from ..data.rows import CHATML

Numbers = np.ndarray[Any, np.dtype[Any]]

# transformers 5 takes this class for Mistral's models where mistral-common is installed and tekken.json is found.
# Its tokenizers format chats in code instead of a Jinja template, and report no offsets.
MISTRAL_MODULE = "transformers.tokenization_mistral_common"
# To format one chat: a foreign template may loop for years. It would do so at once, and a limit takes 0.4 ms.
TEMPLATE_SECONDS, LIMITED_RENDERS = 10.0, 100
MAX_PROBLEM_CHARS = 300  # of what a template raises, in a message
NOT_UTF8 = b"\xff"  # never occurs in UTF-8, so no text matches it
# Byte-level alphabet: visible bytes stand for themselves, the others are characters from 256 on.
VISIBLE = frozenset({*range(33, 127), *range(161, 173), *range(174, 256)})
BYTE_LEVEL = {256 + index: byte for index, byte in enumerate(sorted({*range(256)} - VISIBLE))}
BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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
        inputs = (template, self.chat_template.origin, date, versions, *tokens)
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
    if type(copied).__module__ == MISTRAL_MODULE:
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


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in the Python code that runs within this context after so many seconds."""
    thread, lock, is_done = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not is_done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeoutError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_done = True
        timer.cancel()


@dataclass(frozen=True, eq=False)
class JinjaChatTemplate:
    """Jinja chat template, rendered by transformers."""

    tokenizer: Any
    text: str | None  # None: the tokenizer's own
    origin: str
    own: bool = False
    _renders: Iterator[int] = field(default_factory=count)

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
            if not self.own or next(self._renders) > LIMITED_RENDERS:
                return str(apply())
            with limit_time(TEMPLATE_SECONDS):  # it comes with the model, from anybody
                return str(apply())
        except TimeoutError as error:
            raise ValueError(f"it takes more than {TEMPLATE_SECONDS:g} seconds.") from error
        except RecursionError as error:
            raise ValueError("it calls itself too many times.") from error
        except Exception as error:  # a template may raise anything
            raise ValueError(first_line(error)[:MAX_PROBLEM_CHARS]) from error


@dataclass(frozen=True, eq=False)
class MistralChatTemplate:
    """Chat template of a tokenizer of mistral_common; a reply follows the prompt as it would in a longer chat."""

    tokenizer: Any
    text: str = "Mistral's own"
    origin: str = "the model's own chat format"
    own: bool = True

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """Format a chat; ValueError if it ends with a tool call, which is not supported as a reply."""
        from mistral_common.exceptions import MistralCommonException

        prompt, reply = list(map(dict, messages)), ""
        if prompt and prompt[-1].get("role") == "assistant":
            last = prompt.pop()
            if last.get("tool_calls"):
                raise ValueError("a chat can't end with a tool call.")
            reply = f"{last['content']}{self.tokenizer.eos_token}"
        # It warns that every chat as text is unsafe, but special tokens are encoded by themselves here.
        logger = logging.getLogger(MISTRAL_MODULE)
        was_disabled, logger.disabled = logger.disabled, True
        try:
            text = self.tokenizer.apply_chat_template(prompt, tools=list(tools) or None, tokenize=False)
        except (MistralCommonException, TypeError, KeyError) as error:
            raise ValueError(" ".join(str(error).split())) from error
        finally:
            logger.disabled = was_disabled
        return f"{text}{reply}"


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
    is_mistral = type(tokenizer).__module__ == MISTRAL_MODULE
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

    # Mistral's tokenizers would read the special tokens in a text as text, so the text is split at them.
    special_ids: dict[str, int] = {}
    if marked and is_mistral:
        special_ids = {
            str(token): tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens
        }
    longest_first = sorted(special_ids, key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def ids_of(text: str) -> list[int]:
        ids: list[int] = []
        for part in filter(None, pattern.split(text) if special_ids else [text]):
            ids += [special_ids[part]] if part in special_ids else tokenizer(part, **options)["input_ids"]
        return ids

    def encode(texts: Sequence[str]) -> list[EncodedText]:
        aligned = known_bytes.align(texts, [ids_of(text) for text in texts])
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


class TokenBytes:
    """Bytes that each id of a vocabulary stands for in a text."""

    def __init__(self, bytes_of_id: list[bytes]) -> None:
        self._bytes_of_id = bytes_of_id
        self._lengths = np.array([len(data) for data in bytes_of_id], np.int32)

    @staticmethod
    def of(vocabulary: dict[str, int], added: dict[int, str]) -> TokenBytes:
        """Decode a vocabulary by its own scheme; added tokens are plain text in all of them."""
        decode = _decode_sentencepiece
        if "Ġ" in vocabulary or "Ċ" in vocabulary:
            decode = _decode_byte_level
        elif all(chr(byte) in vocabulary for byte in range(256)):
            decode = _decode_bare_byte
        of_id = [NOT_UTF8] * (max(vocabulary.values(), default=0) + 1)
        for token, token_id in vocabulary.items():
            of_id[token_id] = decode(token)
        for token_id, token in added.items():
            of_id[token_id] = decode(token) if decode is _decode_sentencepiece else token.encode()
        return TokenBytes(of_id)

    def align(self, texts: Sequence[str], ids: Sequence[list[int]]) -> list[EncodedText | None]:
        """Add offsets to the ids of each text; None where their bytes do not join up to the text."""
        aligned: list[EncodedText | None] = [None] * len(texts)
        data: list[bytes] = []
        matching: list[int] = []
        prefixes: list[int] = []  # bytes that are put before a text: none, or a space
        for index, text in enumerate(texts):
            encoded = text.encode()
            try:
                joined = b"".join(map(self._bytes_of_id.__getitem__, ids[index]))
            except IndexError:  # an id outside the vocabulary
                continue
            if joined == encoded or joined == b" " + encoded:
                matching.append(index)
                data.append(encoded)
                prefixes.append(len(joined) - len(encoded))
        # All texts at once: with many short sections the cost per text would exceed that per id.
        counts = [len(ids[index]) for index in matching]
        bounds = np.cumsum([0, *counts])
        all_ids = np.fromiter(chain.from_iterable(ids[index] for index in matching), np.int32, int(bounds[-1]))
        lengths = self._lengths[all_ids]
        nonempty = [number for number, count in enumerate(counts) if count]
        lengths[bounds[nonempty]] -= np.array([prefixes[number] for number in nonempty], np.int32)
        byte_ends = np.cumsum(lengths, dtype=np.int64)
        starts, ends, base = _character_offsets(data, byte_ends - lengths, byte_ends)
        for number, index in enumerate(matching):
            part = slice(bounds[number], bounds[number + 1])
            aligned[index] = EncodedText(all_ids[part], starts[part] - base[number], ends[part] - base[number])
        return aligned


def _character_offsets(data: list[bytes], start: Numbers, end: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Byte offsets as character offsets, rounded outwards inside a character, and the start of each text."""
    base = np.cumsum([0, *map(len, data)])
    joined = np.frombuffer(b"".join(data), np.uint8)
    is_first_byte = np.append((joined & 0xC0) != 0x80, True)
    if is_first_byte.all():
        return start, end, base
    characters_before = np.concatenate([[0], np.cumsum(is_first_byte[:-1])])
    return characters_before[start] - ~is_first_byte[start], characters_before[end], characters_before[base]


def _decode_bare_byte(token: str) -> bytes:
    return token.encode("latin-1") if len(token) == 1 and token <= "\xff" else NOT_UTF8


def _decode_byte_level(token: str) -> bytes:
    try:
        return token.translate(BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return NOT_UTF8


def _decode_sentencepiece(token: str) -> bytes:
    fallback = BYTE_FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("▁", " ").encode()


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """All added tokens by id; a stop token such as <|eot_id|> need not be one of the named special tokens."""
    tokens = getattr(tokenizer, "added_tokens_decoder", None)
    return tokens if isinstance(tokens, Mapping) else {}
