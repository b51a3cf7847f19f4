"""How much of a text stands in the training data: the share of its 8-word runs that are also there."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

RUN_WORDS = 8
WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


def copied_shares(texts: Sequence[str], training: Iterable[str]) -> list[float | None]:
    """For each text the share of its runs that stand in the training data; None for a text without a run.

    Only the runs of the texts are kept in memory: the training data may be large.
    """
    runs = [list(_runs(text)) for text in texts]
    wanted = {run for text_runs in runs for run in text_runs}
    found = {run for text in training for run in _runs(text) if run in wanted}
    return [sum(run in found for run in text_runs) / len(text_runs) if text_runs else None for text_runs in runs]


def count_runs(text: str) -> int:
    return sum(1 for _ in _runs(text))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Each run of 8 words, in lowercase and without punctuation."""
    window: deque[str] = deque(maxlen=RUN_WORDS)
    for match in WORD.finditer(text):
        window.append(match[0].lower())
        if len(window) == RUN_WORDS:
            yield tuple(window)
