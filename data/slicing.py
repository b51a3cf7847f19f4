"""The one way from a text to its blocks, whatever the chunking."""

from __future__ import annotations

from .. import chunking, dementor
from ..chunking import Cutting, Encoder, Sliced
from .sentences import sentence_ends


def slices(text: str, encoder: Encoder, rules: Cutting) -> Sliced:
    """The blocks of a text as the rules ask for them."""
    if rules.chunking == "dementor":
        return dementor.sliced(text, encoder, rules, sentence_ends)
    return chunking.sliced(text, encoder, rules, sentence_ends)
