"""Scores along a text, for equal segments of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...chunking import Encoded
from ...core.jobs import Stretch
from .eval_loop import Sums

Numbers = np.ndarray[Any, Any]
MOST, SHORTEST = 100, 16  # most segments, and fewest tokens of one
BEGINNING = 60  # characters


@dataclass(frozen=True)
class Stretches:
    """Consecutive texts as one sequence of tokens, divided into equal segments."""

    texts: Sequence[str]
    encoded: Sequence[Encoded]

    @property
    def count(self) -> int:
        return max(1, min(MOST, self._tokens // SHORTEST))

    @cached_property
    def of_tokens(self) -> list[Numbers]:
        """For each text, the segment of each of its tokens."""
        numbers: Numbers = np.arange(self._tokens) * self.count // max(1, self._tokens)
        return np.split(numbers.astype(np.int32), self._ends[:-1])

    def score(self, sums: Sums) -> tuple[Stretch, ...]:
        """Return the scores of all segments that have predicted tokens."""
        firsts = np.flatnonzero(np.diff(np.concatenate(self.of_tokens), prepend=-1))
        return tuple(
            Stretch(**sums.figures(segment), begins=self._words_at(int(first)))
            for segment, first in enumerate(firsts)
            if sums.tokens[segment]
        )

    @cached_property
    def _ends(self) -> Numbers:
        ends: Numbers = np.cumsum([len(encoded.ids) for encoded in self.encoded])
        return ends

    @property
    def _tokens(self) -> int:
        return int(self._ends[-1])

    def _words_at(self, token: int) -> str:
        """Return the words of the text that follow a token."""
        text = int(np.searchsorted(self._ends, token, side="right"))
        offset = token - int(self._ends[text]) + len(self.encoded[text].ids)
        start = int(self.encoded[text].starts[offset])
        return " ".join(self.texts[text][start : start + 2 * BEGINNING].split())[:BEGINNING]
