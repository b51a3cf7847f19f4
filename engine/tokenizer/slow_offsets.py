"""Character offsets for tokenizers written in Python, which report none: tokens are searched in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...chunking import EncodedText, Encoder
from . import mistral_chat_template
from .token_bytes import TokenBytes, added_tokens

MAX_GAP = 8  # consecutive ids without known offsets before the text is encoded word by word


def slow_encoder(tokenizer: Any, *, marked: bool) -> Encoder:
    """Encoder with offsets: from token bytes if they match the text, else by search, else word by word."""
    added = {number: str(token) for number, token in added_tokens(tokenizer).items()}
    token_bytes = TokenBytes.of(tokenizer.get_vocab(), added)
    options = _options(tokenizer, marked=marked)

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    needs_split = marked and mistral_chat_template.is_mistral_tokenizer(tokenizer)
    encode_ids = mistral_chat_template.split_at_special_tokens(tokenizer, ids_of) if needs_split else ids_of

    def encode(texts: Sequence[str]) -> list[EncodedText]:
        batch_ids = [encode_ids(text) for text in texts]
        encodings = token_bytes.align(texts, batch_ids)
        pairs = zip(texts, batch_ids, encodings, strict=True)
        return [
            encoding or _encode_by_search(tokenizer, text, ids) or _encode_by_word(text, ids_of)
            for text, ids, encoding in pairs
        ]

    return encode


def _options(tokenizer: Any, *, marked: bool) -> dict[str, bool]:
    """Options that keep special tokens in a text as text; a tokenizer without the option does so anyway."""
    options = {"add_special_tokens": False, "split_special_tokens": not marked}
    try:
        tokenizer("a", **options)
    except (TypeError, ValueError):
        return {"add_special_tokens": False}
    return options


def _encode_by_search(tokenizer: Any, text: str, ids: list[int]) -> EncodedText | None:
    """Offsets by searching the text of each id in turn; ids not found share the span between their neighbors."""
    spans, position = [], 0
    for token_id in ids:
        token = tokenizer.decode([token_id]).strip()
        start = text.find(token, position, position + len(token) + 2 * MAX_GAP) if token else -1
        spans.append((start, start + len(token)) if start >= 0 else None)
        position = position if start < 0 else start + len(token)
    return _fill_gaps(ids, spans, len(text))


def _fill_gaps(ids: list[int], spans: list[tuple[int, int] | None], length: int) -> EncodedText | None:
    """Give ids without offsets the span between their neighbors; None if there are too many in a row."""
    starts, ends, gap, position = [], [], 0, 0
    for span in [*spans, (length, length)]:
        if span is None:
            gap += 1
            continue
        if gap > MAX_GAP:
            return None
        starts += [position] * gap + [span[0]]
        ends += [span[0]] * gap + [span[1]]
        gap, position = 0, span[1]
    return EncodedText(np.array(ids, np.int32), np.array(starts[:-1], np.int64), np.array(ends[:-1], np.int64))


def _encode_by_word(text: str, ids_of: Callable[[str], list[int]]) -> EncodedText:
    """Last resort: encode each word alone, and a word of many ids letter by letter, so that offsets are known."""
    rows: list[tuple[int, int, int]] = []
    for match in re.finditer(r"\s*\S+|\s+$", text):
        ids = ids_of(match[0])
        if len(ids) <= MAX_GAP:
            rows += [(token_id, *match.span()) for token_id in ids]
        else:
            rows += [
                (token_id, position, position + 1)
                for position in range(*match.span())
                for token_id in ids_of(text[position])
            ]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return EncodedText(columns[0].astype(np.int32), columns[1], columns[2])
