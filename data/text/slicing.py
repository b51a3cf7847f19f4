"""The one way from a text to its blocks, whatever the chunking."""

from __future__ import annotations

from functools import partial

from ... import chunking, dementor
from ...chunking import Cutting, Encoder, Sliced
from .block_bounds import bounds


def slices(text: str, encoder: Encoder, rules: Cutting) -> Sliced:
    """The blocks of a text as the rules ask for them."""
    find = partial(bounds, asked=rules.block_ends)
    if rules.chunking == "dementor":
        return dementor.sliced(text, encoder, rules, find)
    return chunking.sliced(text, encoder, rules, find)
