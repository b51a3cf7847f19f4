"""A working copy of the host's tokenizer: texts to ids with their places, and the BOS and EOS that are its own."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..chunking import Encoded, Encoder

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class WorkingTokenizer:
    """What slicing needs of a tokenizer; `tokenizer` is a copy, so the host's own stays as it is."""

    tokenizer: Any
    encode: Encoder
    bos: int | None  # only where the tokenizer itself puts one
    eos: int | None


def working_tokenizer(tokenizer: Any) -> WorkingTokenizer:
    """A copy on which marker-like text is text, without padding or truncation."""
    own = copy.deepcopy(tokenizer)
    return WorkingTokenizer(own, _encoder(own), _own_bos(own), own.eos_token_id)


def _own_bos(tokenizer: Any) -> int | None:
    """The BOS, if the tokenizer puts it before a text of its own accord."""
    bos = tokenizer.bos_token_id
    ids = tokenizer("a")["input_ids"]
    return bos if bos is not None and len(ids) > 1 and ids[0] == bos else None


def _encoder(tokenizer: Any) -> Encoder:
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()

    def encode(texts: Sequence[str]) -> list[Encoded]:
        return [_with_offsets(piece) for piece in backend.encode_batch(list(texts), add_special_tokens=False)]

    return encode


def _with_offsets(piece: Any) -> Encoded:
    import numpy as np

    ids = np.array(piece.ids, np.int32)
    places: np.ndarray[Any, Any] = np.fromiter(
        itertools.chain.from_iterable(piece.offsets), np.int64, 2 * len(ids)
    )
    return Encoded(ids, places[::2], places[1::2])
