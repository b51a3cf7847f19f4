"""Places for a tokenizer that is written in Python and keeps none: it is followed along the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ...chunking import Encoded, Encoder
from . import mistral_chat_template
from .token_bytes import Surfaces, added_tokens

LONGEST_BLUR = 8  # ids whose places run into one another, before it is asked word by word


def slow_encoder(tokenizer: Any, *, marked: bool) -> Encoder:
    """Texts to ids; a text that its bytes do not tell is followed, or done word by word."""
    written = {number: str(token) for number, token in added_tokens(tokenizer).items()}
    known = Surfaces.of(tokenizer.get_vocab(), written)
    options = _options(tokenizer, marked=marked)

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    apart = marked and mistral_chat_template.is_of_mistral(tokenizer)
    ids_in = mistral_chat_template.by_specials(tokenizer, ids_of) if apart else ids_of

    def encode(texts: Sequence[str]) -> list[Encoded]:
        ids = [ids_in(text) for text in texts]
        placed = known.placed(texts, ids)
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
