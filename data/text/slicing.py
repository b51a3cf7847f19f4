"""Slice a text into blocks by any of the chunking methods."""

from __future__ import annotations

from functools import partial

from ... import chunking, dementor
from ...chunking import Cutting, Encoder, Sliced
from .block_bounds import bounds


def slices(text: str, encoder: Encoder, rules: Cutting) -> Sliced:
    """The blocks of a text by the rules."""
    find_unit_bounds = partial(bounds, block_ends=rules.block_ends)
    if rules.chunking == "dementor":
        return dementor.sliced(text, encoder, rules, find_unit_bounds)
    return chunking.sliced(text, encoder, rules, find_unit_bounds)
