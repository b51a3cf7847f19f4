"""Texts in equal stretches, so that it can be told where in them something is known."""

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
MOST, SHORTEST = 100, 16  # so many at most, of so many tokens at least
BEGINNING = 60  # characters


@dataclass(frozen=True)
class Stretches:
    """Texts one after the other, as one line of tokens that is cut into equal stretches."""

    written: Sequence[str]
    encoded: Sequence[Encoded]

    @property
    def count(self) -> int:
        return max(1, min(MOST, self._tokens // SHORTEST))

    @cached_property
    def of_tokens(self) -> list[Numbers]:
        """Of each text the number of the stretch that each of its tokens is in."""
        numbers: Numbers = np.arange(self._tokens) * self.count // max(1, self._tokens)
        return np.split(numbers.astype(np.int32), self._ends[:-1])

    def told(self, sums: Sums) -> tuple[Stretch, ...]:
        """What was measured of each; where nothing was to be predicted there is nothing to tell."""
        firsts = np.flatnonzero(np.diff(np.concatenate(self.of_tokens), prepend=-1))
        return tuple(
            Stretch(**sums.known(number), begins=self._words_at(int(first)))
            for number, first in enumerate(firsts)
            if sums.tokens[number]
        )

    @cached_property
    def _ends(self) -> Numbers:
        ends: Numbers = np.cumsum([len(one.ids) for one in self.encoded])
        return ends

    @property
    def _tokens(self) -> int:
        return int(self._ends[-1])

    def _words_at(self, token: int) -> str:
        """How the text goes on from a token."""
        number = int(np.searchsorted(self._ends, token, side="right"))
        within = token - int(self._ends[number]) + len(self.encoded[number].ids)
        start = int(self.encoded[number].starts[within])
        return " ".join(self.written[number][start : start + 2 * BEGINNING].split())[:BEGINNING]
