"""The one way from a text to its blocks, whatever the chunking."""

from __future__ import annotations

from .. import chunking, dementor
from ..chunking import Cutting, Encoder, Sliced


def slices(text: str, encoder: Encoder, rules: Cutting) -> Sliced:
    """The blocks of a text as the rules ask for them."""
    return (dementor if rules.chunking == "dementor" else chunking).sliced(text, encoder, rules)
