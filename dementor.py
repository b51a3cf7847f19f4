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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .chunking import (
    BoundsFinder,
    Encoder,
    Ints,
    SlicedText,
    SlicingRules,
    Spans,
    Units,
    build_blocks,
    build_units,
)

MIN_CUTOFF = 16  # also the step between the cutoffs that are tried


def slice_windows(text: str, encoder: Encoder, rules: SlicingRules, find: BoundsFinder) -> SlicedText:
    """Windows of whole sentences over a text; `dementor_repeats` is how often each sentence should be seen."""
    units = build_units(text, encoder, rules, find)
    spans, left_out = _find_windows(units).split_short(units)
    return SlicedText(units, spans, left_out)


def is_one_window_each(units: Units) -> bool:
    """Whether each section fits into one window, so that nothing repeats."""
    starts = np.flatnonzero(units.breaks)
    return np.array_equal(units.reach[starts], np.append(starts[1:], len(units))[: len(starts)])


@dataclass(frozen=True)
class CutoffFit:
    """A cutoff, and how many times a token is seen with it on average."""

    cutoff: int
    repeats: float


def fit_cutoff(texts: Sequence[Units], repeats: int) -> CutoffFit:
    """Find the largest cutoff with about `repeats` repeats, otherwise the one with the most.

    The cutoffs are sixteenths of the longest section: near its length nothing repeats, near a sentence's little.
    """
    longest = longest_section(texts)
    cutoffs = {max(MIN_CUTOFF, longest * n // 16 // MIN_CUTOFF * MIN_CUTOFF) for n in range(1, 16)}
    fits = [CutoffFit(cutoff, _mean_repeats(texts, cutoff)) for cutoff in sorted(cutoffs, reverse=True)]
    enough = (fit for fit in fits if repeats and fit.repeats > repeats - 0.5)
    return next(enough, max(fits, key=lambda fit: fit.repeats))


def longest_section(texts: Sequence[Units]) -> int:
    """The tokens of the longest section."""
    return max(int(np.bincount(units.section, units.last - units.first).max()) for units in texts)


def _mean_repeats(texts: Sequence[Units], cutoff: int) -> float:
    """How many times a token is seen on average."""
    trained = total = 0
    for units in texts:
        # Units that are too long for the shorter cutoff stay as they are: an estimate needs no second slicing.
        shorter = replace(units, rules=replace(units.rules, cutoff=cutoff))
        windows = _find_windows(shorter)
        trained += int((shorter.last[windows.last - 1] - shorter.first[windows.first]).sum())
        total += int((units.last - units.first).sum())
    return trained / max(total, 1)


def _find_windows(units: Units) -> Spans:
    """Windows at every unit, or so that about `dementor_repeats` of them cover each one, without useless ones."""
    repeats = units.rules.dementor_repeats
    starts: Ints = np.arange(len(units))
    if repeats:
        # Blocks cover each unit once, so `repeats` evenly spread starts in each block cover it that often.
        blocks = build_blocks(units)
        low, length = units.low[blocks.first], units.high[blocks.last - 1] - units.low[blocks.first]
        places = (low[:, None] + length[:, None] * (np.arange(repeats) / repeats)).ravel()
        # The unit that begins at the place or behind it; half an id less, because shares are rounded.
        starts = np.unique(np.searchsorted(units.low, places - 0.5, side="left").clip(max=len(units) - 1))
    windows = Spans.of(starts, units.reach[starts], "dementor")
    # A window must not only repeat the end of the one before: none at a hard cut, no short one elsewhere.
    reaches_further = np.diff(windows.last, prepend=-1) > 0
    long = units.high[windows.last - 1] - units.low[windows.first] >= units.rules.room / 2
    return windows.select(reaches_further | (long & ~units.ends_section[windows.last - 1]))
