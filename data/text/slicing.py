"""Slice a text into blocks by any of the chunking methods."""

from __future__ import annotations

from functools import partial

from ... import chunking, dementor
from ...chunking import Encoder, SlicedText, SlicingRules
from .text_units import find_bounds


def slice_text(text: str, encoder: Encoder, rules: SlicingRules) -> SlicedText:
    """The blocks of a text by the rules."""
    find_unit_bounds = partial(find_bounds, block_ends=rules.block_ends)
    if rules.chunking == "dementor":
        return dementor.slice_windows(text, encoder, rules, find_unit_bounds)
    return chunking.slice_blocks(text, encoder, rules, find_unit_bounds)
