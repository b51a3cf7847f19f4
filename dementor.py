"""DEMENTOR: Deep Memorization Enforcement Through Overlapping and Repetition, windows sliding over the sentences.

    sentences     a b c d e f g h  |hard cut|  i j
    windows       a b c d                          a window starts at every sentence
                    b c d e                        and takes as many as the cutoff holds;
                      c d e f
                        d e f g
                          e f g h                  the first that reaches a hard cut is the last before it,
                                               i j and the next starts after it

Every sentence is seen in many contexts: at the beginning of a block, in its middle and at its end.
"""

from __future__ import annotations

import numpy as np

from .chunking import (
    BoundsFinder,
    Encoder,
    Flags,
    Ints,
    SlicedText,
    SlicingRules,
    Spans,
    Units,
    build_blocks,
    build_units,
)


def slice_windows(text: str, encoder: Encoder, rules: SlicingRules, find: BoundsFinder) -> SlicedText:
    """Windows of whole sentences over a text; `dementor_repeats` is how often each sentence should be seen."""
    units = build_units(text, encoder, rules, find)
    starts = _spread_starts(units, rules.dementor_repeats) if rules.dementor_repeats else _all_starts(units)
    windows = Spans.of(starts, units.reach[starts], "dementor")
    spans, left_out = windows.select(_is_worthwhile(units, windows)).split_short(units)
    return SlicedText(units, spans, left_out)


def _all_starts(units: Units) -> Ints:
    return np.arange(len(units))


def _spread_starts(units: Units, repeats: int) -> Ints:
    """Window starts so that about `repeats` windows cover each sentence, evenly spread over a window's length."""
    blocks = build_blocks(units)
    low, length = units.low[blocks.first], units.high[blocks.last - 1] - units.low[blocks.first]
    shares = np.arange(repeats) / repeats
    places = (low[:, None] + length[:, None] * shares).ravel()
    return np.unique(np.searchsorted(units.low, places - 0.5, side="left").clip(max=len(units) - 1))


def _is_worthwhile(units: Units, windows: Spans) -> Flags:
    """Windows that do not only repeat the end of the one before: none at a hard cut, no short ones elsewhere."""
    reaches_further = np.diff(windows.last, prepend=-1) > 0
    long = units.high[windows.last - 1] - units.low[windows.first] >= units.rules.room / 2
    return reaches_further | (long & ~units.ends_section[windows.last - 1])
